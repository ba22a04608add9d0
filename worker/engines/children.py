"""The processes that an engine starts below this one, so that none outlives it. Knows no engine."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)
LAST_S = 3.0


class Children:
    """`look` notes what there is below this process; `end` kills what came after the first look."""

    def __init__(self) -> None:
        self._before: set[tuple[int, float]] | None = None
        self._ours: dict[tuple[int, float], object] = {}

    def look(self) -> None:
        """Grandchildren move away from us when their parent dies, so look before ending anything."""
        import psutil

        found = {}
        for process in psutil.Process().children(recursive=True):
            try:
                found[process.pid, process.create_time()] = process
            except psutil.NoSuchProcess:
                continue
        if self._before is None:
            self._before = set(found)
            return
        self._ours.update({key: found[key] for key in found.keys() - self._before})

    def has_lost_one(self) -> bool:
        """Whether one of those that were seen has ended."""
        return any(map(_has_ended, list(self._ours.values())))

    def end(self) -> None:
        """Blocks for a few seconds where something has to be killed."""
        import psutil

        left = [p for p in self._ours.values() if isinstance(p, psutil.Process) and p.is_running()]
        # Python's own tracker of shared memory serves the whole process and ends with it.
        left = [p for p in left if not _is_tracker(p)]
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        _, alive = psutil.wait_procs(left, timeout=LAST_S)
        if alive:
            log.error("processes of the engine could not be killed: %s", [p.pid for p in alive])
        self._ours.clear()


def _has_ended(process: object) -> bool:
    import psutil

    assert isinstance(process, psutil.Process)
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _is_tracker(process: object) -> bool:
    import psutil

    assert isinstance(process, psutil.Process)
    try:
        return any("resource_tracker" in part for part in process.cmdline())
    except psutil.Error:
        return False


def kill_descendants() -> None:
    """Everything below this process, at once: for an exit that waits for nothing."""
    import psutil

    below = psutil.Process().children(recursive=True)
    for process in below:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(below, timeout=LAST_S)
