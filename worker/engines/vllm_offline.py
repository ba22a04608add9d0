"""vLLM's offline `LLM`: the batch engine of the first seed, with its engine process driven by a thread of ours.

The object is not thread-safe, so one thread owns it: whatever others want of it comes in through an inbox.
Between two steps the owner takes in what is there, so that a later group joins one that runs and nobody
waits for a group before.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import queue
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec

from shared.request import FinishReason
from shared.sampling import SamplingParams
from worker.engines.base import EngineDead, EngineOutput, EnginePrompt
from worker.engines.stop_tokens import StopRules, Stops
from worker.engines.vllm_start import CAPABILITIES, CLOSE_S, Launch
from worker.engines.vllm_terms import NativeParams, piece_of, request_error, words
from worker.settings import EngineSettings

log = logging.getLogger(__name__)
LOOK_S = 1.0
Pieces = asyncio.Queue[EngineOutput | EngineDead]


class Order(msgspec.Struct, frozen=True):
    """One request as vLLM is to have it; `native` and `stops` are its parameters in vLLM's words."""

    prompt: EnginePrompt
    native: Any
    stops: Stops


class Live(msgspec.Struct, frozen=True):
    """One request inside vLLM; `internal_id` is vLLM's own name for it, `pieces` where its call waits."""

    internal_id: str
    stops: Stops
    pieces: Pieces


class VllmOfflineEngine:
    name = "vllm_offline"
    capabilities = CAPABILITIES

    def __init__(self, settings: EngineSettings, arguments: dict[str, Any]) -> None:
        self._arguments = arguments
        self._launch = Launch(settings, arguments)
        self._llm: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._natives = NativeParams(StopRules())
        self._max_model_len = 0
        self._owner = ThreadPoolExecutor(1, thread_name_prefix="vllm-offline")
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._live: dict[str, Live] = {}
        self._dead: EngineDead | None = None
        self._is_closing = False
        self._steps = 0
        self._watched: list[int] = []

    async def start(self) -> None:
        """Takes a minute on a CPU, in the owner's thread: the loop stays free for signals."""
        self._loop = asyncio.get_running_loop()
        loading = self._loop.run_in_executor(self._owner, self._load)
        try:
            while not (await asyncio.wait({loading}, timeout=LOOK_S))[0]:
                if await asyncio.to_thread(self._launch.has_lost_one):
                    await asyncio.to_thread(fail_open_calls)
            await loading
        except Exception as error:
            refused = self._launch.refused(error)
            await self.close()
            raise refused from error
        self._launch.began()
        self._watch()
        self._owner.submit(self._drive)

    def _load(self) -> None:
        from vllm import LLM

        # Kept here and not returned: the thread would hold it, and it is to go when it is closed.
        self._llm = LLM(**self._launch.prepare())
        config = self._llm.model_config
        self._max_model_len = int(config.max_model_len)
        rules = StopRules.of(self._llm.get_tokenizer(), int(config.get_vocab_size()))
        self._natives = NativeParams(rules)

    @property
    def max_model_len(self) -> int:
        return self._max_model_len

    @property
    def slots(self) -> int:
        return self._launch.slots

    @property
    def progress(self) -> int:
        return self._steps

    @property
    def failure(self) -> EngineDead | None:
        return self._dead

    # --- on the event loop

    async def generate(
        self, prompts: Sequence[EnginePrompt], params: SamplingParams, *, stream: bool
    ) -> AsyncIterator[EngineOutput]:
        if self._dead is not None:
            raise self._dead
        try:
            orders = [Order(p, *self._natives.of(p.own(params), stream)) for p in prompts]
        except Exception as error:
            # vLLM's own checks of the parameters: the whole bucket shares them.
            for prompt in prompts:
                yield EngineOutput(prompt.request_id, error=request_error(error))
            return
        pieces: Pieces = asyncio.Queue()
        self._inbox.put(partial(self._add, orders, pieces))
        left = {prompt.request_id for prompt in prompts}
        try:
            while left:
                piece = await pieces.get()
                if isinstance(piece, EngineDead):
                    raise piece
                if piece.is_last:
                    left.discard(piece.request_id)
                yield piece
        finally:
            if left:
                self._inbox.put(partial(self._abort, tuple(left)))

    async def abort(self, request_ids: Sequence[str]) -> None:
        # The inbox keeps its order, so whatever was handed over before is known by then.
        self._inbox.put(partial(self._abort, tuple(request_ids)))

    def effective_args(self) -> dict[str, Any]:
        return {**self._arguments, "max_model_len": self._max_model_len}

    async def close(self) -> None:
        """No process of the engine outlives this, hung or not."""
        self._launch.look()
        self._is_closing = True
        self._unwatch()
        self._wake()
        await asyncio.to_thread(self._owner.shutdown)
        self._llm = None
        await self._launch.end()

    def _watch(self) -> None:
        """vLLM sees its process die, but leaves whoever waits for the next step waiting."""
        assert self._loop is not None
        manager = self._llm.llm_engine.engine_core.resources.engine_manager
        self._watched = list(manager.sentinels())
        for sentinel in self._watched:
            self._loop.add_reader(sentinel, self._core_ended)

    def _unwatch(self) -> None:
        for sentinel in self._watched:
            assert self._loop is not None
            self._loop.remove_reader(sentinel)
        self._watched = []

    def _core_ended(self) -> None:
        self._unwatch()
        self._inbox.put(self._note_death)
        self._wake()

    def _wake(self) -> None:
        """The owner, whether it waits for vLLM or for something to do."""
        llm = self._llm
        if llm is not None:
            from vllm.v1.engine.exceptions import EngineDeadError

            llm.llm_engine.engine_core.outputs_queue.put_nowait(EngineDeadError())
        self._inbox.put(lambda: None)

    # --- in the owner's thread

    def _drive(self) -> None:
        """Until `close`: take in what has come, then one step while there is anything to do."""
        engine = self._llm.llm_engine
        while not self._is_closing:
            try:
                is_idle = self._dead is not None or not engine.has_unfinished_requests()
                self._take_in(is_idle)
                if self._dead is None and engine.has_unfinished_requests():
                    self._step()
            except Exception as error:
                if not self._is_closing:
                    self._fail(error)
        self._fail(EngineDead("vLLM's engine was closed"))
        try:
            engine.renderer.shutdown()
            engine.engine_core.shutdown(CLOSE_S)
        except Exception:
            log.exception("vLLM did not shut down in order")
        self._llm = None

    def _take_in(self, is_idle: bool) -> None:
        """Waits for one thing to do where there is nothing else."""
        if is_idle:
            self._inbox.get()()
        while not self._inbox.empty():
            self._inbox.get()()

    def _step(self) -> None:
        told: list[tuple[Pieces, EngineOutput]] = []
        for output in self._llm.llm_engine.step():
            rid = output.request_id
            live = self._live.get(rid)
            if live is None:
                continue
            try:
                piece = piece_of(rid, output, live.stops)
            except Exception as error:
                log.exception("what vLLM gave for one request cannot be told")
                piece = EngineOutput(rid, error=request_error(error))
                self._drop(rid)
            if piece.is_last:
                del self._live[rid]
            told.append((live.pieces, piece))
        self._steps += 1
        self._tell(told)

    def _add(self, orders: Sequence[Order], pieces: Pieces) -> None:
        """One group, as a whole: its rows are in vLLM before the next step."""
        from vllm.v1.engine.exceptions import EngineDeadError

        if self._dead is not None:
            self._tell([(pieces, self._dead)])
            return
        engine = self._llm.llm_engine
        for order in orders:
            rid = order.prompt.request_id
            rendered = {"type": "token", "prompt_token_ids": list(order.prompt.token_ids)}
            try:
                internal_id = engine.add_request(rid, rendered, order.native)
            except EngineDeadError:
                self._tell([(pieces, self._fail(EngineDeadError()))])
                return
            except Exception as error:
                self._tell([(pieces, EngineOutput(rid, error=request_error(error)))])
                self._drop(rid)  # whatever of it got in
            else:
                self._live[rid] = Live(internal_id, order.stops, pieces)

    def _abort(self, request_ids: Sequence[str]) -> None:
        """vLLM forgets an aborted request without a word when there is no queue of its own to tell."""
        for rid in request_ids:
            live = self._live.pop(rid, None)
            if live is not None:
                self._tell([(live.pieces, self._cut_short(rid, live))])
                self._drop(rid)

    def _cut_short(self, rid: str, live: Live) -> EngineOutput:
        """What there is of a request's answer."""
        from vllm.v1.engine import FinishReason as Reason

        try:
            state = self._llm.llm_engine.output_processor.request_states[live.internal_id]
            output = state.make_request_output([], None, Reason.ABORT, None)
            return piece_of(rid, output, live.stops)
        except Exception:
            log.exception("what vLLM has of an aborted request cannot be told")
            return EngineOutput(rid, finish_reason=FinishReason.abort)

    def _drop(self, rid: str) -> None:
        """vLLM goes on without it. If it cannot, nobody listens to what it says of it."""
        try:
            self._llm.llm_engine.abort_request([rid])
        except Exception as error:
            log.error("vLLM could not drop a request: %s", words(error))

    def _note_death(self) -> None:
        """Answers that came before the end are still to be told: its own word for the end lies behind them."""
        while self._dead is None:
            self._step()

    def _fail(self, error: BaseException) -> EngineDead:
        """Nothing can go on. The first cause stands."""
        if self._dead is None:
            self._dead = error if isinstance(error, EngineDead) else self._launch.dead(error)
        waiting = {id(live.pieces): live.pieces for live in self._live.values()}
        self._live.clear()
        self._tell([(pieces, self._dead) for pieces in waiting.values()])
        return self._dead

    def _tell(self, told: Sequence[tuple[Pieces, EngineOutput | EngineDead]]) -> None:
        """One call of the loop for a whole step."""
        if told:
            assert self._loop is not None
            self._loop.call_soon_threadsafe(_deliver, told)


def _deliver(told: Sequence[tuple[Pieces, EngineOutput | EngineDead]]) -> None:
    for pieces, piece in told:
        pieces.put_nowait(piece)


def fail_open_calls() -> None:
    """vLLM's client waits without a limit for the answer to a call of its own, also when the process has died
    that was to give it. While the `LLM` is being built nobody holds that client, so it is searched for.
    """
    from vllm.v1.engine.core_client import SyncMPClient
    from vllm.v1.engine.exceptions import EngineDeadError

    for client in gc.get_objects():
        if type(client) is not SyncMPClient:
            continue
        calls = vars(client).get("utility_results")  # the last thing that it gets
        if calls and client.resources.engine_dead:
            for future in list(calls.values()):
                if not future.done():
                    future.set_exception(EngineDeadError())
