"""The queue's other half for tests that must say what comes back: a real consumer, answers by the prompt.

Not an engine: the worker's own loop is used where what it does counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from shared import codec
from shared.queue.claiming import Grant
from shared.queue.connection import Connection
from shared.queue.consumer import Consumer
from shared.request import Body, FinishReason, Report, Req, Usage
from shared.settings import QueueSettings
from shared.worker_info import WorkerInfo, WorkerState

FAILURES = {
    "!raise": "engine_error",
    "!engine": "engine_error",
    "!long": "prompt_too_long",
    "!dead": "attempts_exhausted",
}
# What an engine tells of one token where it is asked to.
TOKEN = {"token": "A", "logprob": -0.5, "top_logprobs": [{"token": "A", "logprob": -0.5}]}


class Answerer:
    """Answers `A(<prompt>)`; `!slow` waits for `go`, FAILURES fail, `!say <text>` answers the text.

    `script` says what else a prompt is answered: a text, one of FAILURES, or None for nothing.
    """

    def __init__(self, settings: QueueSettings, info: WorkerInfo) -> None:
        self.info = info
        self.seen: list[Req] = []
        self.aborted: list[str] = []
        self.go = asyncio.Event()
        self.script: dict[str, str | None] = {}
        self._connection = Connection.open(settings)
        self._consumer = Consumer(self._connection, settings, worker_id=info.id)
        self._held: dict[str, tuple[str, bool]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._beat())
            group.create_task(self._claim())

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._consumer.leave()
        self._consumer.close_beats()
        await self._connection.close()

    async def _beat(self) -> None:
        while True:
            info = msgspec.structs.replace(self.info, running=len(self._held))
            reply = await asyncio.to_thread(self._consumer.beat, dict(self._held), info)
            for rid in reply.lost:
                self._held.pop(rid, None)
            await asyncio.sleep(0.2)

    async def _claim(self) -> None:
        while True:
            claimed = await self._consumer.claim(64, is_idle=not self._held)
            for grant in claimed.grants:
                self._held[grant.id] = (grant.token, True)
                task = asyncio.create_task(self._answer(grant))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            if not claimed.grants:
                self.aborted += (await self._consumer.wait_for_work(0.5, wants_work=True)).ended

    async def _answer(self, grant: Grant) -> None:
        req = codec.decode_req(grant.payload)
        self.seen.append(req)
        prompt = req.prompt if req.prompt is not None else (req.messages or ())[-1].content
        if prompt.startswith("!slow"):
            await self.go.wait()
        said: str | None = prompt.removeprefix("!say ")
        said = self.script.get(prompt, said if said != prompt else f"A({prompt})")
        text = said or ""
        code = FAILURES.get(prompt.split(" ")[0], "") or FAILURES.get(text, "")
        report = Report(
            finish_reason=FinishReason.error if code else FinishReason.stop,
            usage=Usage(prompt_tokens=7, completion_tokens=3),
            inference_s=0.25,
            batch_id="b1",
            batch_size=1,
            bucket_key=req.bucket_key,
            engine="simulated",
        )
        logprobs = [TOKEN] if req.sampling.logprobs is not None else None
        body = None if code else Body(text, token_ids=(1, 2, 3), logprobs=logprobs)
        message = f"failed as asked ({code})" if code else ""
        await self._consumer.finish(grant, report, body, code=code, message=message)
        self._held.pop(grant.id, None)


def worker_info(**changed: object) -> WorkerInfo:
    info = WorkerInfo(
        id="w-1",
        state=WorkerState.READY,
        engine="simulated",
        model="simulated-1",
        model_dir="/models/simulated-1",
        max_model_len=2048,
        slots=64,
        capabilities=("echo",),
        effective_args={"dtype": "bfloat16", "stall_limit_s": 60},
    )
    return msgspec.structs.replace(info, **changed)


@asynccontextmanager
async def answering(settings: QueueSettings, **changed: object) -> AsyncIterator[Answerer]:
    answerer = Answerer(settings, worker_info(**changed))
    run = asyncio.create_task(answerer.run())
    try:
        yield answerer
    finally:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        await answerer.close()
