"""What an engine is given and gives back shows no text by its `repr`, and no token: ids are text too."""

from __future__ import annotations

import pytest

from shared.errors import EngineError
from shared.request import FinishReason
from worker.engines.base import EngineOutput, EnginePrompt

SECRET = "what nobody may read"
IDS = (815_001, 815_002)
RID = "default.0-01h8xgjwbwbaq4.7"


def test_a_prompt_tells_how_long_it_is() -> None:
    said = repr(EnginePrompt(RID, IDS, SECRET, 4))
    assert said == "EnginePrompt(id=...jwbwbaq4.7, text_len=20, n_tokens=2, max_tokens=4)"


def test_a_piece_tells_how_long_it_is_and_how_it_ended() -> None:
    said = repr(EngineOutput(RID, SECRET, IDS, FinishReason.stop, stop_reason=SECRET))
    size = "text_len=20, n_tokens=2"
    assert said == f"EngineOutput(id=...jwbwbaq4.7, {size}, finish_reason=stop, error=None)"


@pytest.mark.parametrize(
    "value",
    [
        EnginePrompt(RID, IDS, SECRET),
        EngineOutput(RID, SECRET, IDS, stop_reason=SECRET, logprobs=[{"token": SECRET}]),
        EngineOutput(RID, error=EngineError(SECRET)),
    ],
    ids=["prompt", "piece", "error"],
)
def test_no_repr_shows_text_or_tokens(value: object) -> None:
    said = f"{value!r} {[value]}"
    assert SECRET not in said
    assert "815" not in said
