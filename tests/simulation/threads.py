"""Threads in step with the event loop: one of them runs at a time, and only where the other waits.

They stand for `threading` where the product starts a thread of its own (the worker's beats), so that its code runs as
it is and yet in one order.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any


class Killed(BaseException):
    """Ends the thread of a process that is no more."""


class SteppedThread:
    """As `threading.Thread`, as far as it is used here. Waits in it are `pause` and somebody's `wake`."""

    def __init__(self, target: Callable[[], None], name: str = "", daemon: bool = True) -> None:
        self._target = target
        self._real = threading.Thread(target=self._main, name=name, daemon=True)
        self._go = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._is_woken = False
        self._is_killed = False
        self._has_begun = False
        self._is_over = False
        self._joiners: list[SteppedThread] = []
        self._error: BaseException | None = None

    def start(self) -> None:
        from tests.simulation.loop import HOST

        self.loop: Any = asyncio.get_running_loop()
        host = HOST.get()
        self.context = host.thread_context if host else contextvars.copy_context()
        if host is not None:
            host.threads.append(self)
        self._has_begun = True
        self._real.start()
        self.wake()

    def is_alive(self) -> bool:
        return self._has_begun and not self._is_over

    def join(self) -> None:
        """From another such thread."""
        while not self._is_over:
            me = current()
            self._joiners.append(me)
            me.pause()

    def wake(self) -> None:
        if not self._is_woken and not self._is_over:
            self._is_woken = True
            self.loop.call_soon(self._step, context=self.context)

    def pause(self) -> None:
        """Only in this thread: until somebody wakes it."""
        self._back.release()
        self._go.acquire()
        if self._is_killed:
            raise Killed

    def kill(self) -> None:
        """Only in the loop: it ends where it waits."""
        if self.is_alive():
            self._is_killed = True
            self._step()

    def _step(self) -> None:
        self._is_woken = False
        if self._is_over:
            return
        self._go.release()
        self._back.acquire()
        if self._is_over:
            self._real.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _main(self) -> None:
        self._go.acquire()
        _here.thread = self
        try:
            if not self._is_killed:
                # A copy: the loop is inside the other while this runs.
                self.context.copy().run(self._target)
        except Killed:
            pass
        except BaseException as error:
            self._error = error
        self._is_over = True
        for joiner in self._joiners:
            joiner.wake()
        self._back.release()


_here = threading.local()


def current() -> SteppedThread:
    thread: SteppedThread = _here.thread
    return thread


class Event:
    """As `threading.Event`; only one thread waits for it."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: SteppedThread | None = None

    def set(self) -> None:
        self._is_set = True
        if self._waiting is not None:
            self._waiting.wake()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float) -> bool:
        if self._is_set:
            return True
        thread = current()
        self._waiting = thread
        timer = thread.loop.call_at(
            thread.loop.time() + timeout, thread.wake, context=thread.context
        )
        thread.pause()
        timer.cancel()
        self._waiting = None
        return self._is_set


# What the product finds under `threading`. Nobody waits while holding a lock, so a real one will do.
Lock = threading.Lock
Thread = SteppedThread
