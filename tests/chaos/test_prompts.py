"""What the oracle expects is what the simulated engine says."""

from __future__ import annotations

import pytest

from shared.sampling import SamplingParams
from tests.chaos.prompts import Prompt
from worker.engines.base import EnginePrompt
from worker.engines.simulated import SimulatedEngine
from worker.settings import EngineSettings


@pytest.mark.parametrize("text", ["a", "some-words-that-go-on"])
@pytest.mark.parametrize("max_tokens", [1, 5, 40])
@pytest.mark.parametrize("ignore_eos", [True, False])
async def test_the_expected_answer_is_the_engines(
    text: str, max_tokens: int, *, ignore_eos: bool
) -> None:
    prompt = Prompt(text, max_tokens, ignore_eos)
    params = SamplingParams(max_tokens=max_tokens, min_tokens=0, ignore_eos=ignore_eos)
    asked = [EnginePrompt("id", (), text=text)]
    engine = SimulatedEngine(EngineSettings(_env_file=None))
    said = [piece.text async for piece in engine.generate(asked, params, stream=False)]
    assert "".join(said) == prompt.answer
