"""`python -m worker`: one engine on one queue, until a signal or the engine's death.

Exit codes: 0 drained, 1 the engine died, 2 a bad setting, 3 no engine could be started, 4 stalled.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import sys
import time
from functools import partial
from pathlib import Path
from typing import NoReturn

import msgspec
import uvloop

from shared import garbage
from shared.errors import BrokerRefused, BrokerUnavailable, SettingsError, SluiceError
from shared.log import hold_lines, set_up_logging
from shared.open_files import raise_open_files
from shared.port_holder import holder
from shared.queue.connection import Connection
from shared.queue.consumer import Consumer
from shared.queue.fitness import look_at
from shared.queue.housekeeper import Housekeeper
from shared.queue.keys import Keys
from shared.queue.scripts import Scripts
from shared.settings import unknown_names
from shared.worker_info import WorkerInfo, WorkerState
from worker.engines.children import kill_descendants
from worker.engines.vllm_args import shown
from worker.generate import OWN_POWERS
from worker.hubs import ModelError
from worker.ladder import SetupFailed
from worker.leases import Leases
from worker.loop import Loop
from worker.metrics import MetricsPort, WorkerMetrics
from worker.model import choose, choose_draft, is_model_folder, prepare
from worker.settings import ObsoleteSettings, WorkerSettings
from worker.startup import Started, start
from worker.warmup import warm_up

log = logging.getLogger("worker")
LINGER_S, FINAL_S = 10.0, 1.0
LOOK_S = 1.0
# How the process ends: a bad setting is not tried again.
BAD_SETTING, NO_ENGINE = 2, 3


class Worker:
    """The process: tells what it does from its first second, serves, and leaves in order."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._id = settings.worker_id or f"{socket.gethostname().lower()[:40]}-{os.getpid()}"
        self._connection = Connection.open(settings)
        self._consumer = Consumer(self._connection, settings, worker_id=self._id)
        self._info = WorkerInfo(
            id=self._id,
            state=WorkerState.STARTING,
            host=socket.gethostname(),
            pid=os.getpid(),
            batch_mode=settings.batch_mode,
            started_at=time.time(),
        )
        self._metrics = WorkerMetrics(self._id)

    async def run(self) -> int:
        port = await asyncio.to_thread(self._open_port)
        try:
            return await self._live()
        finally:
            if port is not None:
                port.close()

    def _open_port(self) -> MetricsPort | None:
        """Before the engine is loaded, which takes minutes. Figures are not worth an answer, so a port that
        cannot be had costs nothing but them.
        """
        host, number = self._settings.worker_host, self._settings.worker_port
        if not number:
            return None
        try:
            return MetricsPort(self._metrics, host, number)
        except OSError as error:
            is_held = error.errno == errno.EADDRINUSE
            log.warning(
                "WORKER_PORT=%d cannot be opened on WORKER_HOST=%s (%s): this worker serves without /metrics",
                number,
                host,
                f"in use by {holder(number)}" if is_held else error.strerror or error,
            )
            return None

    async def _live(self) -> int:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        starting = Leases(
            self._consumer,
            info=lambda: self._info,
            progress=lambda: 0,
            stall_limit_s=float("inf"),
            on_reply=lambda reply: None,
            on_stalled=lambda seconds: None,
        )
        starting.start()
        loading = asyncio.create_task(self._load())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not loading.done():
            log.info("stopped while the engine was loading")
            await starting.stop()
            await self._leave()
            # The engine has begun threads that no exit waits for, and processes that would outlive it.
            exit_now(0)
        try:
            started = loading.result()
        except Exception as error:
            if not isinstance(error, (SetupFailed, SluiceError, ModelError, OSError)):
                log.exception("loading failed in a way that nobody foresaw")
            code = await self._tell_failure(error, starting, stopping)
            stopping.cancel()
            return code
        await starting.stop()
        stopping.cancel()
        return await self._serve(started, stop)

    async def _load(self) -> Started:
        settings = self._settings
        is_broker_seen = await self._look_at_broker()
        if not is_broker_seen:
            log.warning("the broker does not answer; the engine is loaded meanwhile")
        model_dir: Path | None = None
        if settings.engine != "simulated":
            source = choose(settings, is_model_folder)
            model_dir = await asyncio.to_thread(prepare, source)
            await self._fetch_draft()
        name = settings.served_model_name or (model_dir.name if model_dir else "simulated")
        self._info = msgspec.structs.replace(self._info, model=name, model_dir=str(model_dir or ""))
        log.info(
            "model: %s from %s; batch mode: %s", name, model_dir or "no folder", settings.batch_mode
        )
        started = await start(
            settings, model_dir, self._metrics.repaired, partial(warm_up, settings=settings)
        )
        try:
            while not is_broker_seen:
                await asyncio.sleep(LOOK_S)
                is_broker_seen = await self._look_at_broker()
        except BaseException:
            await started.engine.close()
            raise
        return started

    async def _fetch_draft(self) -> None:
        """Speculation that cannot be had is no reason not to serve, unless the operator says so."""
        try:
            source = choose_draft(self._settings, is_model_folder)
            if source is not None:
                await asyncio.to_thread(prepare, source, is_draft=True)
        except ModelError as error:
            if not self._settings.spec_draft_optional:
                raise
            log.warning("speculation is off: %s", error)

    async def _look_at_broker(self) -> bool:
        """Whether it answered. Raises SettingsError where it would lose requests, or turns this process away."""
        scripts = Scripts(Keys(self._settings.queue_name))
        try:
            found = await look_at(self._connection.line, scripts, self._settings)
        except BrokerRefused as error:
            raise SettingsError(error.message) from error
        except BrokerUnavailable:
            return False
        if found.problem:
            raise SettingsError(f"REDIS_URL: {found.problem}")
        if found.warning:
            log.warning("%s", found.warning)
        return True

    async def _tell_failure(
        self, error: Exception, leases: Leases, stopping: asyncio.Task[bool]
    ) -> int:
        report = error.report if isinstance(error, SetupFailed) else ()
        log.error("this worker cannot start: %s", error)
        self._info = msgspec.structs.replace(
            self._info, state=WorkerState.SETUP_FAILED, reason=str(error), start_report=report
        )
        self._metrics.state(WorkerState.SETUP_FAILED, 0)
        leases.beat_now()
        # Long enough to be seen in /workers; then the supervisor may try again, but not with a bad setting.
        is_final = isinstance(error, SettingsError)
        await asyncio.wait({stopping}, timeout=FINAL_S if is_final else LINGER_S)
        await leases.stop()
        # What it said last stays: whoever looks later is told as well, until it is forgotten.
        await self._connection.close()
        await asyncio.to_thread(kill_descendants)
        return BAD_SETTING if isinstance(error, SettingsError) else NO_ENGINE

    async def _serve(self, started: Started, stop: asyncio.Event) -> int:
        settings, engine = self._settings, started.engine
        self._metrics.engine = engine.name
        self._info = msgspec.structs.replace(
            self._info,
            state=WorkerState.READY,
            engine=engine.name,
            max_model_len=engine.max_model_len,
            slots=engine.slots,
            capabilities=tuple(sorted(engine.capabilities.fields | OWN_POWERS)),
            effective_args=_plain(engine.effective_args()) | self._limits(),
            start_report=started.report,
        )
        work = Loop(
            engine,
            started.prompts,
            self._consumer,
            info=self._info,
            metrics=self._metrics,
            claim_max=settings.claim_max,
            drain_s=settings.drain_s,
            stall_limit_s=settings.stall_limit_s,
            on_stalled=self._on_stalled,
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, work.stop)
        if stop.is_set():
            work.stop()
        garbage.settle()
        housekeeping = asyncio.create_task(Housekeeper(self._connection, settings).run())
        log.info("%s serves %s with %s", self._id, self._info.model, engine.name)
        try:
            return await work.run()
        finally:
            housekeeping.cancel()
            await asyncio.gather(housekeeping, return_exceptions=True)
            await engine.close()
            await self._connection.close()

    def _limits(self) -> dict[str, object]:
        """The worker's own limits, so that `/info` can show them beside the front door's."""
        names = ("stall_limit_s", "drain_s", "claim_max")
        return {name: getattr(self._settings, name) for name in names}

    def _on_stalled(self, seconds: float) -> None:
        """A lease after the stall its work is others'; a wedged engine ends with its process."""
        if seconds > self._settings.lease_s:
            log.critical(
                "the engine has been stuck for %.0f s more than its limit; exiting", seconds
            )
            exit_now(4)

    async def _leave(self) -> None:
        try:
            await self._consumer.leave()
        except BrokerUnavailable as error:
            log.warning("left without a word to the broker: %s", error)
        await self._connection.close()


def exit_now(code: int) -> NoReturn:
    """Without waiting for a thread that may never come back; no process below is left."""
    kill_descendants()
    logging.shutdown()
    os._exit(code)


def _plain(args: dict[str, object]) -> dict[str, object]:
    """Arguments as they can be shown: numbers, words and flags; the rest as text."""
    plain = (str, int, float, bool, type(None))
    return {
        name: value if isinstance(value, plain) else str(value)
        for name, value in shown(args).items()
    }


def main() -> int:
    hold_lines()
    try:
        settings = WorkerSettings.load()
    except SettingsError as error:
        print(error.message, file=sys.stderr)
        return BAD_SETTING
    set_up_logging(settings)
    told = (*unknown_names(), *ObsoleteSettings.load().told, settings.lease_warning)
    for line in filter(None, told):
        log.warning("%s", line)
    raise_open_files()
    try:
        return uvloop.run(Worker(settings).run())
    except SettingsError as error:
        print(error.message, file=sys.stderr)
        return BAD_SETTING


if __name__ == "__main__":
    sys.exit(main())
