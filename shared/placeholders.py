"""`{{id.text}}` in a prompt stands for the answer of a request that it depends on. Pure.

One pass: what is put in is not looked at again, and what is no placeholder of a known id stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from shared.request import Message, Req

_PLACEHOLDER = re.compile(r"\{\{([A-Za-z0-9._-]{1,128})\.text\}\}")


def names_in(text: str) -> Iterator[str]:
    return (match[1] for match in _PLACEHOLDER.finditer(text))


def count(texts: Iterable[str | None]) -> int:
    return sum(1 for text in texts if text for _ in names_in(text))


def filled(text: str, by: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda match: by.get(match[1], match[0]), text)


def renamed(text: str, ids: Mapping[str, str]) -> str:
    """The same placeholders under other ids."""
    return filled(text, {name: f"{{{{{to}.text}}}}" for name, to in ids.items()})


def awaited_by(req: Req) -> list[str]:
    """Of what it depends on, that whose answer it repeats."""
    texts = (req.prompt, req.system_prompt, *(m.content for m in req.messages or ()))
    named = {name for text in texts if text for name in names_in(text)}
    return [rid for rid in req.depends_on if rid in named]


def with_answers(req: Req, answers: Mapping[str, str]) -> Req:
    """The request with the answers in their places."""
    return with_texts(req, lambda text: filled(text, answers))


def with_texts(req: Req, change: Callable[[str], str]) -> Req:
    """Prompt, messages and system prompt, each through `change`."""
    return msgspec.structs.replace(
        req,
        prompt=None if req.prompt is None else change(req.prompt),
        system_prompt=None if req.system_prompt is None else change(req.system_prompt),
        messages=None if req.messages is None else changed(req.messages, change),
    )


def changed(messages: tuple[Message, ...], change: Callable[[str], str]) -> tuple[Message, ...]:
    return tuple(msgspec.structs.replace(m, content=change(m.content)) for m in messages)
