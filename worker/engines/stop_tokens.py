"""Where an answer ends: the request's stop strings and ids, and the model's own ends.

`built_stops` is what the first seed hands an engine. `as_tokens` lies below it: special tokens never show up
in the text, so a string that is one is handed over as its id alone, which costs nothing for each token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from shared.sampling import SamplingParams

END_MARKERS = ("<|im_end|>", "<|endoftext|>")


class Stops(msgspec.Struct, frozen=True):
    """`strings` are matched in the text; at `ids` an engine stops, whoever asked for them. `asked` are the
    ids that the request named itself, `named` tells which of its strings an id stands for.
    """

    strings: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()
    asked: frozenset[int] = frozenset()
    named: dict[int, str] = {}

    def reason(self, reported: str | int | None) -> str | int | None:
        """In the words of whoever asked: the string that was given, not the id it became. An id that
        nobody asked for is one of the model's own ends, which have no reason. Engines hand over every id
        that ended an answer, the end of sequence too.
        """
        if not isinstance(reported, int):
            return reported
        return reported if reported in self.asked else self.named.get(reported)


class StopRules(msgspec.Struct, frozen=True):
    """Of one model: the ids that end its answers, and its special tokens by their text."""

    ends: tuple[int, ...] = ()
    special: dict[str, int] = {}

    @classmethod
    def of(cls, tokenizer: Any, n_ids: int) -> StopRules:
        """Without what the model cannot say: some tokenizers know more tokens than their model's `n_ids`."""
        return cls(
            ends=tuple(token_id for token_id in end_token_ids(tokenizer) if token_id < n_ids),
            special={
                text: token_id
                for text, token_id in special_tokens(tokenizer).items()
                if token_id < n_ids
            },
        )

    def stops(self, params: SamplingParams) -> Stops:
        return as_tokens(built_stops(params, self.ends), self.special)


def end_token_ids(tokenizer: Any) -> tuple[int, ...]:
    """The tokenizer's end of sequence and the two end markers, each where it has it.

    A look-up that answers with the unknown token's id has found nothing, unless the marker is that token.
    """
    found = [getattr(tokenizer, "eos_token_id", None)]
    unknown = getattr(tokenizer, "unk_token_id", None)
    unknown_text = getattr(tokenizer, "unk_token", None)
    for marker in END_MARKERS:
        try:
            token_id = tokenizer.convert_tokens_to_ids(marker)
        except Exception:
            # Tokenizers come from models' own code too; one that lacks a marker may raise anything.
            continue
        if token_id != unknown or marker == unknown_text:
            found.append(token_id)
    return tuple(dict.fromkeys(i for i in found if type(i) is int and i >= 0))


def built_stops(params: SamplingParams, ends: tuple[int, ...]) -> Stops:
    """Every stop string, the request's own ids, and the model's ends unless it is to go on past them."""
    own = params.stop_token_ids
    return Stops(
        strings=params.stop,
        ids=own if params.ignore_eos else tuple(dict.fromkeys((*own, *ends))),
        asked=frozenset(own),
    )


def as_tokens(stops: Stops, special: Mapping[str, int]) -> Stops:
    """The same stops, with strings that are one special token as that token's id alone. One at which the
    answer ends anyway adds nothing, and is no reason.
    """
    named = {
        special[text]: text
        for text in stops.strings
        if text in special and special[text] not in stops.ids
    }
    return Stops(
        strings=tuple(text for text in stops.strings if text not in special),
        ids=tuple(dict.fromkeys((*stops.ids, *named))),
        asked=stops.asked,
        named=named,
    )


def special_tokens(tokenizer: Any) -> dict[str, int]:
    """Texts and ids of a tokenizer's special tokens; of one text, the first id.

    A lookup by text would not do: it answers the unknown token's id for what the tokenizer lacks.
    """
    found: dict[str, int] = {}
    for token_id, token in sorted(tokenizer.added_tokens_decoder.items()):
        if token.special:
            found.setdefault(token.content, token_id)
    return found
