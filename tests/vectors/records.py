"""The second seed's records: parameters, batch groups, states, stop strings."""

from __future__ import annotations

from typing import Any

from shared.errors import InvalidRequest
from shared.sampling import SamplingParams
from shared.status import ReqStatus
from shared.stops import StopMatcher
from tests.vectors.comparison import Difference, Differences, exact, partial, stated
from tests.vectors.moves import is_carried_out
from tests.vectors.surroundings import Surroundings
from tests.vectors.vector import Vector

# JSON has no such numbers, so the files have their names.
NUMBERS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
TEXTS = ("stop",)
OFF = -1  # of top_k; 0 is the same
# The recordings' words for a refusal: the seed raised one exception or another, and the service answers 422.
REFUSED = ("ValueError", "TypeError", "422")


def from_dict(vector: Vector, around: Surroundings) -> Differences:
    """The seed's refusals say no field; ours do."""
    asked, wanted = with_numbers(vector.input), vector.wanted
    try:
        params = SamplingParams.from_dict(asked)
    except InvalidRequest as refused:
        return _refused(wanted, refused, asked)
    told = ("to_dict",) if "to_dict" in wanted else ("coerced", "or")
    wrong = stated(wanted, ("valid", "normalised", *told))
    wrong += exact(wanted.get("valid"), True, "valid")
    taken = params.to_dict()
    normalised = wanted.get("normalised", {})
    if "to_dict" in wanted:
        return wrong + exact({**wanted["to_dict"], **normalised}, taken, "to_dict")
    given = {name: value for name, value in asked.items() if value is not None}
    if "coerced" in wanted:
        given |= {name: wanted["coerced"] for name, value in given.items() if value != taken[name]}
    return wrong + partial({**given, **normalised}, taken, "to_dict")


def _refused(wanted: dict[str, Any], refused: InvalidRequest, asked: dict[str, Any]) -> Differences:
    """Where taking and refusing are both right, the refusal must name the field that is no number.
    `a>b` is the rule that was broken: `a` is the field, and the message speaks of `b`.
    """
    if wanted.get("or") == "422":
        wrong = stated(wanted, ("valid", "normalised", "coerced", "or"))
        return wrong + exact(_text_field(asked), refused.param, "field")
    wrong = stated(wanted, ("valid", "error", "field"))
    wrong += exact(wanted.get("valid"), False, "valid")
    if wanted.get("error", "422") not in REFUSED:
        wrong.append(Difference("error", wanted["error"], refused.code))
    if wanted.get("field") is not None:
        field, _, other = wanted["field"].partition(">")
        wrong += exact(field, refused.param, "field")
        if other not in refused.message:
            wrong.append(Difference("field", wanted["field"], refused.message))
    return wrong


def _text_field(asked: dict[str, Any]) -> str | None:
    return next((name for name, value in asked.items() if isinstance(value, str)), None)


def with_numbers(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        name: NUMBERS.get(value, value) if isinstance(value, str) and name not in TEXTS else value
        for name, value in fields.items()
    }


def with_one_off(fields: dict[str, Any]) -> dict[str, Any]:
    """A `top_k` that is off in one spelling."""
    return {**fields, "top_k": fields["top_k"] or OFF} if "top_k" in fields else fields


def same_batch_group(vector: Vector, around: Surroundings) -> Differences:
    """The seed's group is its hash, and ours the bucket key."""
    a, b = (SamplingParams.from_dict(with_numbers(vector.input[side])) for side in "ab")
    is_same = a.bucket_key == b.bucket_key
    found = {"same_hash": is_same, "same_group": is_same}
    return stated(vector.wanted, found) or partial(vector.wanted, found)


def set_status(vector: Vector, around: Surroundings) -> Differences:
    """`allowed` is whether the seed raises: the same state again is no change, and no fault. `applied` is what a
    move comes to, and stands beside it where both are told. The table of moves must say what the broker's
    scripts do.
    """
    start, to = ReqStatus(vector.input["from"]), ReqStatus(vector.input["to"])
    is_applied = is_carried_out(around.broker_url(), start, to)
    found = {"allowed": is_applied or start is to, "applied": is_applied}
    wrong = exact(start.can_become(to), is_applied, "the table of moves against the scripts")
    for wanted in [vector.wanted] + [vector.right] * bool(vector.right):
        wrong += stated(wanted, found) or partial(wanted, found)
    return wrong


def stream_with_stop(vector: Vector, around: Surroundings) -> Differences:
    """Each piece is the text of one token."""
    asked = vector.input
    matcher = StopMatcher(
        asked["stop"],
        min_tokens=asked["min_tokens"],
        include=asked["include_stop_str_in_output"],
    )
    shown, consumed, stop = "", 0, None
    for piece in asked["pieces"]:
        text, stop = matcher.feed(piece)
        shown += text
        consumed += 1
        if stop is not None:
            break
    found = {
        "text": shown + matcher.flush(),
        "finish_reason": "length" if stop is None else "stop",
        "stop_reason": stop,
        "pieces_consumed": consumed,
    }
    return stated(vector.wanted, found) or partial(vector.wanted, found)
