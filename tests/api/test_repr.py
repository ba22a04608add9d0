"""What a client wrote is in no `repr` of what the front door makes of it."""

from __future__ import annotations

import pytest

from api.intake import Ask
from api.schemas import read_predict, read_request, read_system_prompt
from shared.request import Message

SECRET = "what nobody may read"
PART = {"type": "text", "text": SECRET}


@pytest.mark.parametrize(
    "value",
    [
        Ask(
            path="/requests",
            tenant="t",
            digest="d",
            is_routed=False,
            prompt=[SECRET],
            messages=(Message("user", SECRET),),
            system_prompt=SECRET,
        ),
        read_predict({"prompt": [SECRET]}),
        read_request({"prompt": SECRET, "system_prompt": SECRET}),
        read_request({"messages": [{"role": "user", "content": SECRET}]}),
        read_request({"messages": [{"role": "user", "content": [PART]}]}),
        read_system_prompt({"system_prompt": SECRET}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_no_repr_shows_a_prompt(value: object) -> None:
    assert SECRET not in f"{value!r} {value}"
