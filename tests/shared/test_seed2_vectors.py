"""The recorded behaviour of the second seed, against the records that stand for it here."""

from __future__ import annotations

from typing import Any

import pytest

from shared.errors import InvalidRequest
from shared.sampling import SamplingParams
from shared.status import ReqStatus
from tests.api.vectors import vectors

SAMPLING = vectors("seed2", "sampling_params.from_dict")
GROUPS = vectors("seed2", "same_batch_group")
MOVES = vectors("seed2", "set_status")
NUMBERS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def name_of(vector: dict[str, Any]) -> str:
    return str(vector["name"])


def with_numbers(fields: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN, so the file has its name."""
    return {k: NUMBERS.get(v, v) if isinstance(v, str) else v for k, v in fields.items()}


def right(vector: dict[str, Any]) -> dict[str, Any]:
    """What is right is what the seed did, with what is decided otherwise put over it."""
    over: dict[str, Any] = vector.get("right_output") or {}
    if vector["verdict"] in ("bug", "spec"):
        return over
    return {**vector["output"], **over}


def test_the_vectors_are_there() -> None:
    assert (len(SAMPLING), len(GROUPS), len(MOVES)) == (43, 9, 15)


@pytest.mark.parametrize("vector", SAMPLING, ids=name_of)
def test_sampling_params(vector: dict[str, Any]) -> None:
    asked, answer = with_numbers(vector["input"]), right(vector)
    # A number written as text may be taken or refused by the vector; it is refused here.
    if not answer["valid"] or answer.get("or") == "422":
        with pytest.raises(InvalidRequest) as refused:
            SamplingParams.from_dict(asked)
        field = answer.get("field") or next(k for k, v in asked.items() if isinstance(v, str))
        assert refused.value.param == field.partition(">")[0]
        return
    taken = SamplingParams.from_dict(asked).to_dict()
    if "to_dict" in answer:
        assert taken == answer["to_dict"]
    else:
        given = {k: v for k, v in asked.items() if v is not None}
        assert taken == {**taken, **given, **answer.get("normalised", {})}


@pytest.mark.parametrize("vector", GROUPS, ids=name_of)
def test_same_batch_group(vector: dict[str, Any]) -> None:
    a, b = (SamplingParams.from_dict(vector["input"][side]) for side in "ab")
    assert (a.bucket_key == b.bucket_key) is right(vector).get(
        "same_group", right(vector).get("same_hash")
    )


@pytest.mark.parametrize("vector", MOVES, ids=name_of)
def test_set_status(vector: dict[str, Any]) -> None:
    start, to = ReqStatus(vector["input"]["from"]), ReqStatus(vector["input"]["to"])
    assert start.can_become(to) is right(vector)["applied"]
