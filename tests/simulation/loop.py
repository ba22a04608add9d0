"""An event loop whose clock is a number: when nothing is ready it jumps to the next timer, so that no test waits.

Everything runs in one order that depends on nothing but the seed. Each simulated process has a context of its own;
what runs in it can be held (SIGSTOP, a blocked loop) or made to vanish (SIGKILL).
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import weakref
from asyncio import events
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from tests.simulation.threads import SteppedThread

# Most turns at one moment of the clock: more is a loop that never sleeps.
SPIN_MAX = 50_000
BEGINNING_S = 1000.0  # a clock that never was at 0


class Host:
    """What stands for one operating system process. `is_held`: stopped; `is_loop_held`: only its event loop is."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.is_held = False
        self.is_loop_held = False
        # After the verdict what is dead runs once more, cut off from the network, to be closed in order.
        self.is_ghost = False
        self.tasks: weakref.WeakSet[SteadyTask] = weakref.WeakSet()
        self.threads: list[SteppedThread] = []
        self.links: dict[Any, None] = {}
        self.waiting: list[events.Handle] = []
        self._buried: list[SteadyTask] = []
        self.context = contextvars.copy_context()
        self.context.run(HOST.set, self)
        self.thread_context = self.context.copy()
        self.thread_context.run(IN_THREAD.set, True)

    def vanish(self) -> None:
        """Nothing of it runs from now on."""
        self.is_dead = True
        # Kept, since a pending task that is collected runs its `finally`.
        self._buried = [task for task in self.tasks if not task.done()]

    def pending(self) -> list[SteadyTask]:
        return sorted((task for task in self.tasks if not task.done()), key=hash)


HOST: contextvars.ContextVar[Host | None] = contextvars.ContextVar("host", default=None)
IN_THREAD: contextvars.ContextVar[bool] = contextvars.ContextVar("in_thread", default=False)


class SteadyTask(asyncio.Task[Any]):
    """Hashes by its number, so that a set of tasks has the same order in every run."""

    numbers = itertools.count()

    def __init__(self, coro: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = next(self.numbers)
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


def _is_let(handle: events.Handle, context: contextvars.Context) -> bool:
    """Whether it may run now; if not, its host keeps it."""
    host = context.get(HOST)
    if host is None or host.is_ghost:
        return True
    if host.is_dead or host.is_held or (host.is_loop_held and not context.get(IN_THREAD)):
        # What is dead comes to it as a ghost.
        host.waiting.append(handle)
        return False
    return True


class _Handle(events.Handle):
    def _run(self) -> None:
        if _is_let(self, self._context):  # type: ignore[attr-defined]
            super()._run()


class _TimerHandle(events.TimerHandle):
    def __lt__(self, other: object) -> bool:
        return self._when < other._when  # type: ignore[attr-defined, no-any-return]

    def _run(self) -> None:
        if _is_let(self, self._context):  # type: ignore[attr-defined]
            super()._run()


class Stuck(AssertionError):
    """Nothing will ever happen again, or it never stops happening."""


class _Jump:
    """In place of a selector."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._turns = 0

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Stuck("nothing is ready, and no timer is set")
        if timeout > 0:
            self._loop.now += timeout
            self._turns = 0
        self._turns += 1
        if self._turns > SPIN_MAX:
            raise Stuck(f"{SPIN_MAX} turns without a pause at {self._loop.now:.3f}")
        return []

    def close(self) -> None:
        return None


Connect = Callable[[Callable[[], asyncio.Protocol]], Coroutine[Any, Any, Any]]


class VirtualLoop(asyncio.BaseEventLoop):
    """`connect` is what opening a connection means here."""

    def __init__(self, connect: Connect) -> None:
        super().__init__()
        self.now = BEGINNING_S
        self._connect = connect
        self._selector: Any = _Jump(self)
        self._clock_resolution = 1e-9
        SteadyTask.numbers = itertools.count()
        self.set_task_factory(_make_task)

    def time(self) -> float:
        return self.now

    @property
    def age_s(self) -> float:
        """Since the loop was made."""
        return self.now - BEGINNING_S

    def _process_events(self, event_list: Any) -> None:
        return None

    def _write_to_self(self) -> None:
        return None

    def _call_soon(
        self, callback: Any, args: Any, context: contextvars.Context | None
    ) -> events.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Any,
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> events.TimerHandle:
        timer = _TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def go_on(self, host: Host) -> None:
        """What was held of it runs, in its order."""
        waiting, host.waiting = host.waiting, []
        self._ready.extend(h for h in waiting if not h.cancelled())  # type: ignore[attr-defined]

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()

        def run() -> None:
            result = func(*args)
            if not future.done():
                future.set_result(result)

        SteppedThread(run, name="executor").start()
        return future

    async def create_unix_connection(
        self, protocol_factory: Any, path: Any = None, **_: Any
    ) -> Any:
        return await self._connect(protocol_factory)


def _make_task(
    loop: asyncio.AbstractEventLoop,
    coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
    context: contextvars.Context | None = None,
) -> SteadyTask:
    task = SteadyTask(coro, loop=loop, context=context)  # type: ignore[arg-type]
    host = (context or contextvars.copy_context()).get(HOST)
    if host is not None:
        host.tasks.add(task)
    return task
