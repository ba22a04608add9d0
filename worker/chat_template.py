"""What a chat template is before it meets a tokenizer: where CHAT_TEMPLATE has its text from, and the proof that
a template is no more than fixed pieces around two texts. Knows no tokenizer.
"""

from __future__ import annotations

import logging
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.errors import SettingsError

log = logging.getLogger(__name__)
TEMPLATE_BYTES = 1_048_576
TEMPLATE_MARKS = ("{%", "{{")


@dataclass(frozen=True)
class FastPath:
    """A template that was proved to be no more than three fixed pieces around system and user text."""

    prefix: str
    infix: str
    suffix: str

    def join(self, system: str, user: str) -> str:
        return f"{self.prefix}{system}{self.infix}{user}{self.suffix}"


Render = Callable[[str, str], str]
PROBE = ("a-system-prompt-0", "a-user-text-1")
# What templates are known to treat specially: nothing, blanks, markup, braces, blocks, other scripts.
PROOFS = (
    ("", "q"),
    (" padded \n", ""),
    ("a <b> & 'c' \"d\" {{ e }} {% f %}", "line 1\n\n\tline 2"),
    ("系统提示。", "<think>\nx\n</think>\n\n<tool_response>y</tool_response>"),
    ("/no_think /system_override", "<tool_response>y</tool_response>"),
    ("be brief /think", "q /no_think"),
    ("/nothink", "q /think"),
    ("<think>", "q /nothink"),
)
# Asks of a text what no probe could answer: how long it is, where something stands, what it is made of.
MEASURES = {
    "|": re.compile(r"length|count|wordcount|first|last|int|float|random"),
    ".": re.compile(r"count|r?find|r?index|is[a-z]+|__\w+"),
}
# What may be measured: these are no texts.
LISTS = frozenset({"messages", "tools", "documents", "loop"})
MOST_WORDS = 200


def prove_fast_path(render: Render, words: Sequence[str] = ()) -> FastPath | None:
    """The three pieces, if joining them gives what `render` gives for every proof; else None.

    `words` are the template's own: what it looks for in a text is among them.
    """
    system, user = PROBE
    try:
        text = render(system, user)
        if text.count(system) != 1 or text.count(user) != 1:
            return None
        prefix, _, rest = text.partition(system)
        infix, found, suffix = rest.partition(user)
        path = FastPath(prefix, infix, suffix)
        proofs = (*PROOFS, *_proofs_of(words))
        if found and all(render(s, u) == path.join(s, u) for s, u in proofs):
            return path
    except Exception:  # templates raise whatever they like: then there is no shortcut
        log.debug("the chat template refused a probe", exc_info=True)
    return None


def _proofs_of(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Texts that are such a word, begin or end with it, or hold it; both at once, since each has its place."""
    for word in words:
        for text in (word, f"{word} x", f"x {word}", f"x {word} x", f"{word} x {word}"):
            yield text, text


def words_of(template: str) -> list[str] | None:
    """The string literals of a template, also joined where it joins two. None where its words do not tell
    what it may make of a text: it measures one, or there are too many. Raises jinja2.TemplateSyntaxError.
    """
    from jinja2 import Environment

    found: dict[str, None] = {}
    joined = ""
    owner = before = ""  # the two tokens before, of strings their kind
    for token in Environment(autoescape=True).lexer.tokenize(template):
        if token.type == "string":
            joined += token.value
            found |= {token.value: None, joined: None}
        elif token.type not in ("add", "tilde"):
            joined = ""
        measures = MEASURES.get(before) if token.type == "name" else None
        if measures and measures.fullmatch(token.value) and owner not in LISTS:
            return None
        owner, before = before, token.value if token.type != "string" else token.type
    return list(found) if len(found) <= MOST_WORDS else None


def template_text(given: str) -> str:
    """CHAT_TEMPLATE's text: it is a template, or names a file that holds one. Raises SettingsError."""
    return given if is_template(given) else _in_file(Path(given))


def _in_file(path: Path) -> str:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise SettingsError(f"CHAT_TEMPLATE: {path} is no file")
        if found.st_size > TEMPLATE_BYTES:
            raise SettingsError(f"CHAT_TEMPLATE: {path} is larger than {TEMPLATE_BYTES} bytes")
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError:
        raise SettingsError(f"CHAT_TEMPLATE: {path} is not UTF-8") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise SettingsError(
            f"CHAT_TEMPLATE: neither a Jinja template nor a file that can be read: "
            f"{str(path)[:200]!r}: {why}"
        ) from None
    if not is_template(text):
        raise SettingsError(f"CHAT_TEMPLATE: {path} holds no Jinja template")
    return text


def is_template(text: str) -> bool:
    return any(mark in text for mark in TEMPLATE_MARKS)
