"""A first run before the first request: the greeting alone, then a full batch of it. Failure is told, not fatal."""

from __future__ import annotations

import logging
import time

from shared.request import Req
from shared.sampling import SamplingParams
from worker.engines.base import EngineDead, EnginePrompt
from worker.settings import EngineSettings
from worker.startup import Started

log = logging.getLogger(__name__)
TOKENS = 8
BATCH = 8
SYSTEM = "Answer briefly."


async def warm_up(started: Started, settings: EngineSettings) -> None:
    """Runs through template, engine and sampler as a request does, without the queue. Raises EngineDead."""
    engine = started.engine
    params = SamplingParams(max_tokens=TOKENS, min_tokens=0, temperature=0)
    began = time.monotonic()
    try:
        for size in (1, min(BATCH, engine.slots)):
            prompts = [
                await _prompt(started, settings.warmup_prompt, params, i)
                for i in range(1, size + 1)
            ]
            async for piece in engine.generate(prompts, params, stream=False):
                if piece.error is not None:
                    raise piece.error
    except EngineDead:
        raise
    except Exception as error:
        log.warning("warm-up failed, the first request will be slow: %s", error)
        return
    log.info("warmed up in %.1f s", time.monotonic() - began)


async def _prompt(started: Started, text: str, params: SamplingParams, n: int) -> EnginePrompt:
    """The text `n` times over: of several lengths, since equal ones would share a cached prefix."""
    req = Req(
        id=f"warm-up-{n}-{time.monotonic_ns()}",
        sampling=params,
        bucket_key=params.bucket_key,
        digest="",
        prompt=" ".join([text] * n),
        system_prompt=SYSTEM,
    )
    return await started.prompts.build(req, started.engine.max_model_len)
