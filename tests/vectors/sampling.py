"""The parameters that a request of the first seed comes to, and what each engine makes of the record."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from shared.sampling import SamplingParams
from tests.vectors.comparison import (
    Difference,
    Differences,
    Meaning,
    exact,
    partial,
    prose,
    stated,
)
from tests.vectors.records import with_numbers, with_one_off
from tests.vectors.service import running
from tests.vectors.surroundings import Surroundings
from tests.vectors.vector import Vector
from worker.engines.hf_options import end_options, generation_options
from worker.engines.penalties import Penalties
from worker.engines.row_text import RowText, stop_table
from worker.engines.stop_tokens import Stops, built_stops, end_token_ids
from worker.engines.vllm_terms import native_fields

# Those that are given only where they say something.
SOMETIMES = frozenset({"temperature", "eos_token_id", "stop_strings", "tokenizer"})


class RecordedTokenizer:
    """Looks up what it was told, and answers the unknown token's id for everything else."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        self.eos_token_id = told.get("eos_token_id")
        self.unk_token_id = told.get("unknown_id")
        self._ids: Mapping[str, int] = told.get("ids", {})
        self._raises_for = told.get("raises_for", ())

    def convert_tokens_to_ids(self, token: str) -> int | None:
        if token in self._raises_for:
            raise KeyError(token)
        return self._ids.get(token, self.unk_token_id)


async def build_sampling_params(vector: Vector, around: Surroundings) -> Differences:
    """As they reach the engine behind the service, with the ends of the tokenizer's model."""
    given, told = vector.input, vector.input["tokenizer"]
    if isinstance(vector.wanted, str):
        return prose(vector.wanted, None, {})
    body = {"prompt": "recorded", "max_new_tokens": given["max_tokens"], **given["overrides"]}
    async with running(around, {}) as service:
        reply = await service.client.post("/predict", json=body)
        if reply.status_code != 200:
            return [Difference("", vector.wanted, reply.json())]
        (params,) = service.engine.params
    stops = built_stops(params, end_token_ids(RecordedTokenizer(told) if told else None))
    found = {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "max_tokens": params.max_tokens,
        "frequency_penalty": params.frequency_penalty,
        "repetition_penalty": params.repetition_penalty,
        "stop": list(stops.strings),
        "stop_token_ids": list(stops.ids),
    }
    wanted = vector.wanted if vector.must_be_right else {**dict.fromkeys(found), **vector.wanted}
    return _compare(wanted, found, found.keys())


def _compare(
    wanted: Any, found: Mapping[str, Any], known: Collection[str], where: str = ""
) -> Differences:
    """As far as it is told. An empty list says as much as none, and none as much as a name left out."""
    wrong = stated(wanted, known, where)
    return wrong or partial(_told(wanted), {**dict.fromkeys(wanted), **_told(found)}, where)


def _told(fields: Mapping[str, Any]) -> dict[str, Any]:
    return with_one_off({name: None if value == [] else value for name, value in fields.items()})


def get_sampling_config(vector: Vector, around: Surroundings) -> Differences:
    """The seed has one adapter, for transformers; the right outputs tell of both engines."""
    params = SamplingParams.from_dict(with_numbers(vector.input))
    stops = built_stops(params, ())
    wanted = vector.wanted
    if not vector.must_be_right:
        return exact(wanted, _transformers(params, stops))
    if isinstance(wanted, str):
        return prose(wanted, params, {})
    engines = {"transformers": _transformers(params, stops), "vllm": native_fields(params, stops)}
    wrong = stated(wanted, engines)
    for engine, found in engines.items():
        if engine not in wanted:
            continue
        if isinstance(wanted[engine], str):
            wrong += prose(wanted[engine], params, MEANINGS)
        else:
            wrong += _compare(wanted[engine], found, found.keys() | SOMETIMES, engine)
    return wrong


def _transformers(params: SamplingParams, stops: Stops) -> dict[str, Any]:
    """Of a model without ends of its own. Stop strings are matched beside `model.generate`, in what the
    tokenizer decodes.
    """
    found = generation_options(params) | end_options(stops, ())
    if stops.strings and all(_ends_at(text, stops, params.min_tokens) for text in stops.strings):
        found |= {"stop_strings": list(stops.strings), "tokenizer": "required"}
    return found


def _ends_at(text: str, stops: Stops, min_tokens: int) -> bool:
    """A row whose tokens are single characters is ended by the string's last one."""
    row = RowText(lambda ids: "".join(map(chr, ids)), stop_table(stops.strings), min_tokens)
    before = "." * (min_tokens + 1)
    return [row.add(ord(char)) for char in before + text][-1] == text


def _is_processed(words: re.Match[str], params: SamplingParams) -> Differences:
    """transformers has no such penalties: a logits processor of our own counts them."""
    is_asked = Penalties.are_asked(params)
    return [] if is_asked else [Difference("transformers", "a logits processor", "none asked for")]


MEANINGS: dict[str, Meaning] = {"(a )?custom logits processor": _is_processed}
