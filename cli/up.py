"""`up`: the whole service on this machine, one line of state for each part, until it is asked to
stop.

Owns the order of starting and stopping. Each part is its own process under a guard; nothing of them
is imported here.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

from cli import machine
from cli.board import Board
from cli.broker import Broker, BrokerError, socket_path
from cli.data_folder import DataFolder, FolderInUse
from cli.logs import last_lines
from cli.parts import api_part, broker_part, model_part, placement_env, placements, worker_part
from cli.ports import PortError, check_free
from cli.records import end_leftovers
from cli.service_view import ServiceView, WorkerView
from cli.settings import PlacementVariables, UpSettings, inherited
from cli.supervisor import Life, Supervised
from shared.open_files import raise_open_files

T = TypeVar("T")
LOOK_EVERY_S = 1.0
BROKER_TRIES = 5
BROKER_LAST_LINES = 6


class StartFailed(Exception):
    """A part cannot start with the settings that are given; the text is its own last line."""


START_ERRORS = (FolderInUse, PortError, BrokerError, StartFailed)


class Stopped(Exception):
    """The user asked to stop while the service was being started."""


class Up:
    """One run of the service."""

    def __init__(
        self,
        settings: UpSettings,
        placement: PlacementVariables,
        folder: DataFolder,
        board: Board,
    ) -> None:
        self._settings = settings
        self._placement = placement
        self._folder = folder
        self._board = board
        self._view = ServiceView(settings.host, settings.port)
        self._env: dict[str, str] = {**inherited(), "DATA_DIR": str(folder.path)}
        self._broker: Supervised | None = None
        self._api: Supervised | None = None
        self._workers: list[Supervised] = []
        self._model: Life | None = None
        self._seen: list[WorkerView] = []
        self._stop = asyncio.Event()
        self._failed: str | None = None
        self._socket: Path | None = None

    async def run(self) -> None:
        """Starts, watches and stops. Raises what kept it from starting; then nothing is left
        running either.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal)
        looking = asyncio.create_task(self._look())
        try:
            await self._start()
            await self._stop.wait()
        except Stopped:
            pass
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
            await self._stop_all()
            await self._view.close()
        if self._failed is not None:
            raise StartFailed(self._failed)

    def _give_up(self, reason: str) -> None:
        self._failed = reason
        self._stop.set()

    def _give_up_broker(self, reason: str) -> None:
        """What it wrote last says more than its very last line."""
        lines = last_lines(self._folder.log("broker"), BROKER_LAST_LINES)
        self._give_up("\n    ".join([f"the broker {reason}", *filter(None, lines)]))

    def _on_signal(self) -> None:
        """The first asks for a drain, the second one for no more waiting."""
        if not self._stop.is_set():
            self._stop.set()
            self._board.note("stopping: what has begun is finished first; Ctrl-C again to hurry")
            return
        for part in (*self._workers, self._api, self._broker):
            if part is not None:
                part.hurry()

    async def _unless_stopped(self, waiting: Awaitable[T]) -> T:
        """The result, or `Stopped` when the user asks for that first."""
        work = asyncio.ensure_future(waiting)
        stop = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait((work, stop), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise Stopped
            return work.result()
        finally:
            for task in (work, stop):
                task.cancel()
            await asyncio.gather(work, stop, return_exceptions=True)

    # Starting: broker, front door, model, workers. The front door answers while the rest is on its
    # way.

    async def _start(self) -> None:
        began = time.monotonic()
        if self._settings.redis_url is None:
            await self._start_broker()
        else:
            self._board.set("broker", "external  REDIS_URL")
        self._api = self._supervise_api()
        self._api.start()
        await self._unless_stopped(self._api.ready.wait())
        if self._settings.workers == 0:
            self._board.set("worker", "none here (WORKERS=0)")
            return
        model = await self._prepare_model()
        self._start_workers(model)
        await self._unless_stopped(
            asyncio.wait(
                [asyncio.ensure_future(w.ready.wait()) for w in self._workers],
                return_when=asyncio.FIRST_COMPLETED,
            )
        )
        self._board.note(f"serving after {time.monotonic() - began:.0f} s. Try:")
        wants_key = await self._view.wants_key()
        key = " -H 'authorization: Bearer <one of API_KEYS>'" if wants_key else ""
        self._board.note(
            f"  curl -s {self._view.url}/predict{key} -H 'content-type: application/json' "
            """-d '{"prompt": "What is the capital of France?"}'"""
        )

    async def _start_broker(self) -> None:
        self._socket = socket_path(self._folder.broker)
        broker = Broker(
            self._folder.broker,
            self._socket,
            durable=self._settings.durability == "aof",
            port=self._settings.broker_port,
            maxmemory=self._settings.broker_maxmemory,
        )
        self._env["REDIS_URL"] = broker.url
        # Where its socket really is: a long path to the folder has moved it away.
        self._folder.broker_url.write_text(broker.url + "\n", encoding="utf-8")

        async def is_ready(_: Life) -> str | None:
            answers = await asyncio.to_thread(broker.answers)
            return "ready" if answers else None

        allocator = await asyncio.to_thread(machine.allocator_library)
        part = broker_part(broker, self._folder, self._env, allocator, self._placement.ld_preload)
        self._broker = Supervised(
            part,
            self._board.set,
            is_ready,
            on_hopeless=self._give_up_broker,
            tries=BROKER_TRIES,
        )
        self._broker.start()
        await self._unless_stopped(self._broker.ready.wait())

    def _supervise_api(self) -> Supervised:
        async def is_ready(_: Life) -> str | None:
            return f"ready  {self._view.url}" if await self._view.is_alive() else None

        settings = self._settings
        part = api_part(self._folder, self._env, settings.host, settings.port, settings.api_drain_s)
        return Supervised(part, self._board.set, is_ready, on_hopeless=self._give_up)

    async def _prepare_model(self) -> Path | None:
        """Runs `python -m worker.model`, whose last line is the folder."""
        if not self._settings.needs_model:
            return None
        part = model_part(self._folder, self._env)
        self._board.set("model", "looking…")
        self._model = await Life.start(part, echo=True)
        end = await self._unless_stopped(self._model.end(on_line=self._show_model))
        self._model = None
        if end.code != 0:
            raise StartFailed(end.last_line or end.reason())
        self._board.set("model", f"ready  {end.last_line}")
        return Path(end.last_line)

    def _show_model(self, line: str) -> None:
        if not line.startswith("/"):  # the folder is the last line, shown as the result
            self._board.set("model", line)

    def _start_workers(self, model: Path | None) -> None:
        places = placements(
            self._settings.workers,
            machine.visible_gpus(self._placement.cuda_visible_devices),
            self._settings.tensor_parallel_size * self._settings.pipeline_parallel_size,
            machine.cores(),
            machine.openmp_library(),
        )
        host = None if self._settings.redis_url is None else socket.gethostname()
        bound = "vllm_cpu_omp_threads_bind" in self._settings.model_fields_set
        for index, place in enumerate(places, start=1):
            placed = placement_env(place, self._placement.ld_preload, bound)
            part = worker_part(
                index,
                self._folder,
                self._env,
                model,
                placed,
                self._settings.drain_s,
                host,
                self._settings.worker_port,
            )
            worker = Supervised(
                part, self._board.set, self._worker_is_ready, self._why, self._give_up
            )
            self._workers.append(worker)
            worker.start()

    # Watching: the front door knows what the workers say of themselves.

    async def _look(self) -> None:
        while True:
            await self._ask()
            if self._settings.redis_url is not None and not self._stop.is_set():
                broker = await self._view.broker()
                if broker is not None:
                    self._board.set("broker", f"external  {broker}")
            for worker in self._workers:
                view = self._view_of(worker.life)
                if view is not None and not self._stop.is_set():
                    self._board.set(worker.part.name, view.line())
            await asyncio.sleep(LOOK_EVERY_S)

    async def _ask(self) -> None:
        seen = await self._view.workers()
        self._seen = self._seen if seen is None else seen

    def _view_of(self, life: Life | None) -> WorkerView | None:
        """What this very process has said; an entry of an earlier life has another process id."""
        if life is None or life.pid is None:
            return None
        return next((view for view in self._seen if view.pid == life.pid), None)

    async def _worker_is_ready(self, life: Life) -> str | None:
        view = self._view_of(life)
        return view.line() if view is not None and view.serves else None

    async def _why(self, life: Life) -> str | None:
        """The reason that a worker gave before it ended, which says more than its last line of
        output.
        """
        await self._ask()
        view = self._view_of(life)
        return view.reason if view is not None and view.state == "setup_failed" else None

    # Stopping: workers drain while the front door still passes their answers on; the broker goes
    # last.

    async def _stop_all(self) -> None:
        self._stop.set()
        if self._model is not None:
            self._model.stop(0.0)
            await self._model.end()
        await asyncio.gather(*(worker.stop() for worker in self._workers))
        for part in (self._api, self._broker):
            if part is not None:
                await part.stop()
        if self._socket is not None and self._socket.parent != self._folder.broker:
            shutil.rmtree(self._socket.parent, ignore_errors=True)


def run_up(settings: UpSettings, placement: PlacementVariables, board: Board) -> None:
    """Starts everything and returns after the stop. Raises `START_ERRORS`."""
    with DataFolder(settings.data_dir) as folder:
        left = end_leftovers(folder.records())
        if left:
            board.note(f"ended what an earlier run had left: {', '.join(left)}")
        check_free(settings.host, settings.port)
        if settings.broker_port and settings.redis_url is None:
            check_free("127.0.0.1", settings.broker_port)
        raise_open_files()
        asyncio.run(Up(settings, placement, folder, board).run())
