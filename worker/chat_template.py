"""What a chat template is before it meets a tokenizer: where CHAT_TEMPLATE has its text from, and the proof that
a template is no more than fixed pieces around two texts. Knows no tokenizer.
"""

from __future__ import annotations

import logging
import stat
from collections.abc import Callable
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
)


def prove_fast_path(render: Render) -> FastPath | None:
    """The three pieces, if joining them gives what `render` gives for every proof; else None."""
    system, user = PROBE
    try:
        text = render(system, user)
        if text.count(system) != 1 or text.count(user) != 1:
            return None
        prefix, _, rest = text.partition(system)
        infix, found, suffix = rest.partition(user)
        path = FastPath(prefix, infix, suffix)
        if found and all(render(s, u) == path.join(s, u) for s, u in PROOFS):
            return path
    except Exception:  # templates raise whatever they like: then there is no shortcut
        log.debug("the chat template refused a probe", exc_info=True)
    return None


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
