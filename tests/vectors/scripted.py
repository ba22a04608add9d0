"""The engine of the recordings: answers `A(<user text>)` unless scripted, and writes down how it was called."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from shared.errors import EngineDead, EngineError
from shared.request import FinishReason
from shared.sampling import SamplingParams
from worker.engine_choice import ASYNC, OFFLINE, TRANSFORMERS
from worker.engines.base import EngineOutput, EnginePrompt
from worker.engines.hf_transformers import TransformersEngine
from worker.engines.simulated import ASSISTANT, USER, SimulatedTokenizer
from worker.engines.vllm_async import VllmAsyncEngine
from worker.engines.vllm_offline import VllmOfflineEngine

# The recordings' names for a way of calling an engine, by the engine that is called so here.
APIS = {ASYNC: "async", OFFLINE: "llm"}
RAISE = "!raise"
MANY = 1024
CAPABILITIES = {
    ASYNC: VllmAsyncEngine.capabilities,
    OFFLINE: VllmOfflineEngine.capabilities,
    TRANSFORMERS: TransformersEngine.capabilities,
}


class RecordedEngine:
    """Stands where the engine `name` would, and is able to do what that is. `script` by user text: what it
    answers, None for no completion at all, RAISE to fail on it.
    """

    max_model_len = 1_000_000
    slots = MANY
    failure: EngineDead | None = None

    def __init__(self, name: str, script: Mapping[str, str | None]) -> None:
        self.name = name
        self.capabilities = CAPABILITIES[name]
        self.progress = 0
        self.calls: list[dict[str, Any]] = []
        self.params: list[SamplingParams] = []
        self._script = script

    async def start(self) -> None:
        """Nothing to load."""

    async def generate(
        self, prompts: Sequence[EnginePrompt], params: SamplingParams, *, stream: bool
    ) -> AsyncIterator[EngineOutput]:
        self.params.append(params)
        self._note(prompts, params)
        for prompt in prompts:
            self.progress += 1
            yield self._answer(prompt)

    def _note(self, prompts: Sequence[EnginePrompt], params: SamplingParams) -> None:
        """The offline engine takes a batch in one call, the asynchronous one each prompt in its own."""
        api = APIS.get(self.name, self.name)
        if self.name == OFFLINE:
            self.calls.append({"api": api, "n": len(prompts), "max_tokens": params.max_tokens})
            return
        for prompt in prompts:
            own = prompt.own(params)
            self.calls.append(
                {
                    "api": api,
                    "max_tokens": own.max_tokens,
                    "temperature": own.temperature,
                    "top_k": own.top_k,
                }
            )

    def _answer(self, prompt: EnginePrompt) -> EngineOutput:
        user = prompt.text.rpartition(USER)[2].removesuffix(ASSISTANT)
        text = self._script.get(user, f"A({user})")
        if text is not None and text.startswith(RAISE):
            return EngineOutput(prompt.request_id, error=EngineError("it failed as it was told to"))
        ids = SimulatedTokenizer().encode(text or "")
        return EngineOutput(prompt.request_id, text or "", ids, FinishReason.stop)

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Everything is answered at once."""

    def effective_args(self) -> dict[str, Any]:
        return {}

    async def close(self) -> None:
        """Nothing to give back."""
