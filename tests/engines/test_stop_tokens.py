"""Where an answer ends: what is built from a request and a tokenizer, and what is folded below it."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from shared.sampling import SamplingParams
from worker.engines.stop_tokens import (
    END_MARKERS,
    StopRules,
    as_tokens,
    built_stops,
    end_token_ids,
    special_tokens,
)

IM_END, END_OF_TEXT = END_MARKERS


class Tokenizer:
    """Answers look-ups as tokenizers do: with the unknown token's id, or not at all."""

    def __init__(self, eos: Any, ids: Mapping[str, int], unknown: int | None = None) -> None:
        self.eos_token_id = eos
        self.unk_token_id = unknown
        self.unk_token = next((text for text, token_id in ids.items() if token_id == unknown), None)
        self._ids = ids
        self.added_tokens_decoder = {
            token_id: SimpleNamespace(content=text, special=True) for text, token_id in ids.items()
        }

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return self._ids.get(token, self.unk_token_id)


class Raising(Tokenizer):
    def convert_tokens_to_ids(self, token: str) -> int | None:
        return self._ids[token]


def asked(**fields: Any) -> SamplingParams:
    return SamplingParams(max_tokens=8, **fields)


@pytest.mark.parametrize(
    ("tokenizer", "ends"),
    [
        (Tokenizer(7, {IM_END: 7, END_OF_TEXT: 3}), (7, 3)),
        (Tokenizer([5, 6], {IM_END: 7}), (7,)),
        (Tokenizer(None, {}), ()),
        (Tokenizer(-1, {IM_END: -5, END_OF_TEXT: 0}), (0,)),
        (Tokenizer(2, {}, unknown=0), (2,)),
        (Tokenizer(4, {END_OF_TEXT: 4}, unknown=4), (4,)),
        (Tokenizer(2, {IM_END: 2, END_OF_TEXT: 0}, unknown=0), (2, 0)),
        (Raising(9, {END_OF_TEXT: 3}), (9, 3)),
    ],
)
def test_ends_are_the_tokenizers_own_and_the_markers_that_it_has(
    tokenizer: Tokenizer, ends: tuple[int, ...]
) -> None:
    assert end_token_ids(tokenizer) == ends


def test_the_tokenizer_of_a_model_says_where_it_ends(tokenizer: Any) -> None:
    """This one has both markers, and one of them is its unknown token too."""
    special = special_tokens(tokenizer)
    assert tokenizer.unk_token == END_OF_TEXT
    assert end_token_ids(tokenizer) == (special[IM_END], special[END_OF_TEXT])


def test_an_engine_is_given_every_string_and_every_id() -> None:
    params = asked(stop=("END", IM_END), stop_token_ids=(9, 3))
    stops = built_stops(params, (7, 3))
    assert stops.strings == ("END", IM_END)
    assert stops.ids == (9, 3, 7)


def test_who_goes_on_past_the_end_is_given_its_own_ids_alone() -> None:
    stops = built_stops(asked(stop=("END",), stop_token_ids=(9,), ignore_eos=True), (7, 3))
    assert (stops.strings, stops.ids) == (("END",), (9,))


def test_a_string_that_is_one_special_token_is_handed_over_as_its_id_alone() -> None:
    stops = as_tokens(built_stops(asked(stop=("END", IM_END)), (7, 3)), {IM_END: 7})
    assert (stops.strings, stops.ids) == (("END",), (7, 3))


def test_a_reason_is_given_in_the_words_of_whoever_asked() -> None:
    rules = StopRules(ends=(7, 3), special={IM_END: 7, END_OF_TEXT: 3, "<tool>": 8})
    stops = rules.stops(asked(stop=(IM_END, "END", "<tool>"), stop_token_ids=(9,)))
    assert stops.reason(8) == "<tool>"
    assert stops.reason(9) == 9
    assert stops.reason("END") == "END"
    assert stops.reason(None) is None
    assert stops.reason(3) is None, "nobody asked for it: an end of the model's own"
    assert stops.reason(7) is None, "an end anyway: the first seed's face asks for it each time"
    past = rules.stops(asked(stop=(IM_END,), ignore_eos=True))
    assert past.reason(7) == IM_END
    assert stops.reason(11) is None, "vLLM may know more of them"


def test_an_end_that_is_asked_for_by_id_has_that_reason() -> None:
    assert StopRules(ends=(7,)).stops(asked(stop_token_ids=(7,))).reason(7) == 7


def test_what_a_model_cannot_say_is_no_end_of_it() -> None:
    """Some tokenizers know more tokens than their model, and an engine refuses such ids."""
    rules = StopRules.of(Tokenizer(2, {IM_END: 2, END_OF_TEXT: 50}), n_ids=40)
    stops = rules.stops(asked(stop=(END_OF_TEXT,)))
    assert (stops.strings, stops.ids) == ((END_OF_TEXT,), (2,))
