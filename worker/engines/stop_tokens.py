"""Stop strings that the model says as one special token. Special tokens never show up in the text, so
their ids are handed to the engine instead: it stops at them at no cost for each token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


class Stops(msgspec.Struct, frozen=True):
    """`named` tells which string an id stands for."""

    strings: tuple[str, ...]
    ids: tuple[int, ...]
    named: dict[int, str]

    def reason(self, reported: str | int | None) -> str | int | None:
        """In the words of whoever asked: the string that was given, not the id it became. An id that
        nobody asked for is one of the model's own ends, which have no reason.
        """
        if isinstance(reported, int) and reported not in self.ids:
            return None
        return self.named.get(reported, reported) if isinstance(reported, int) else reported


def special_tokens(tokenizer: Any) -> dict[str, int]:
    """Texts and ids of a tokenizer's special tokens; of one text, the first id.

    A lookup by text would not do: it answers the unknown token's id for what the tokenizer lacks.
    """
    found: dict[str, int] = {}
    for token_id, token in sorted(tokenizer.added_tokens_decoder.items()):
        if token.special:
            found.setdefault(token.content, token_id)
    return found


def split_stops(stops: Sequence[str], ids: Sequence[int], special: Mapping[str, int]) -> Stops:
    named = {special[text]: text for text in stops if text in special}
    return Stops(
        strings=tuple(text for text in stops if text not in special),
        ids=tuple(dict.fromkeys((*ids, *named))),
        named=named,
    )
