"""Whether a broker can be trusted with requests: what it says of itself, and what is wrong with that."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import msgspec
from redis.exceptions import ResponseError

from shared.errors import BrokerRefused, BrokerUnavailable
from shared.queue.line import Line
from shared.queue.scripts import Scripts
from shared.settings import QueueSettings

log = logging.getLogger(__name__)
LOOK_S = 30.0
NEVER = float("-inf")
LAYOUT = 1  # of keys and records; written by tick
OLDEST = (7, 0)  # scripts with flags came with it


class Fitness(msgspec.Struct, frozen=True):
    """What it says, and what the settings ask of it.

    `version`: the Redis release that it is compatible with. `maxmemory`: bytes, 0 for no limit, None where it does
    not say, as some managed brokers. `policy`: what goes when memory is full, "" where it does not say.
    `log`: whether it keeps a log (AOF) and `fsync` when that is on disk; `saves`: whether it saves snapshots;
    None where it does not say. `layout`: None on a fresh queue.
    """

    version: str
    maxmemory: int | None
    policy: str
    log: bool | None
    fsync: str | None
    saves: bool | None
    layout: int | None
    durability: str = "none"
    require_persistence: bool = False

    @property
    def problem(self) -> str | None:
        """Why it must not be used; None if it may."""
        known = tuple(map(int, re.findall(r"\d+", self.version)[:2]))
        if known and known < OLDEST:
            oldest = ".".join(map(str, OLDEST))
            return f"the broker is release {self.version}; {oldest} is the oldest that will do"
        if self.maxmemory != 0 and self._may_evict:
            return (
                f"the broker evicts keys, and requests with them (maxmemory-policy {self.policy}); "
                "set it to noeviction"
            )
        if self.layout is not None and self.layout != LAYOUT:
            return f"the queue has layout {self.layout}, written by another release; this one knows {LAYOUT}"
        if self.durability == "aof":
            return self._not_durable
        if self.require_persistence and not (self.log or self.saves):
            return f"REQUIRE_PERSISTENCE=1, and {self._not_kept}"
        return None

    @property
    def warning(self) -> str | None:
        if not (self.log or self.saves):
            return self._not_kept
        if not self.log:
            return (
                "the broker keeps snapshots alone: a restart of it loses every request since the last one "
                "(set appendonly yes)"
            )
        if self._may_evict:
            return (
                f"the broker would evict keys (maxmemory-policy {self.policy}) once it is given a maxmemory; "
                "set it to noeviction"
            )
        if not self.policy:
            return (
                "the broker does not say its maxmemory-policy: see that it is noeviction, or requests may be "
                "lost when its memory is full"
            )
        return None

    @property
    def _may_evict(self) -> bool:
        return self.policy not in ("", "noeviction")

    @property
    def _not_durable(self) -> str | None:
        if self.log and self.fsync == "always":
            return None
        needs = "DURABILITY=aof needs a broker with appendonly yes and appendfsync always"
        if self.log is False or self.fsync is not None:
            is_log = "yes" if self.log else "no"
            return f"{needs}; this one has appendonly {is_log} and appendfsync {self.fsync}"
        return (
            f"{needs}; that cannot be verified, since this one does not allow CONFIG GET: "
            "allow it to the user of REDIS_URL (+config|get), or set DURABILITY=none"
        )

    @property
    def _not_kept(self) -> str:
        if self.log is None or self.saves is None:
            return (
                "the broker does not say whether it keeps anything on disk: if it does not, a restart of it "
                "loses every request"
            )
        return "the broker keeps nothing on disk: a restart of it loses every request (set appendonly yes)"


class Watch:
    """Looks at the broker before its first request, then now and then, so that a cure needs no restart."""

    def __init__(self, line: Line, scripts: Scripts, settings: QueueSettings) -> None:
        self.problem: str | None = None
        self._line = line
        self._scripts = scripts
        self._settings = settings
        self._looked_at = NEVER
        self._looking: asyncio.Future[None] | None = None

    async def require(self) -> None:
        """Raises BrokerUnavailable where the broker must not be used."""
        if self._looked_at == NEVER:
            await self.look()
        if self.problem is not None:
            raise BrokerUnavailable(self.problem)

    async def look(self) -> None:
        """Raises BrokerUnavailable."""
        if asyncio.get_running_loop().time() - self._looked_at < LOOK_S:
            return
        if self._looking is None or self._looking.done():
            # One for all who ask meanwhile, so that nobody waits for two.
            self._looking = asyncio.ensure_future(self._look())
            self._looking.add_done_callback(_note)
        await asyncio.shield(self._looking)

    async def _look(self) -> None:
        try:
            found = await look_at(self._line, self._scripts, self._settings)
        except BrokerRefused as error:
            self.problem = error.message
            raise
        is_first = self._looked_at == NEVER
        self._looked_at = asyncio.get_running_loop().time()
        if found.problem and not self.problem:
            log.critical("no request is taken: %s", found.problem)
        elif is_first and found.warning:
            log.warning("%s", found.warning)
        self.problem = found.problem


def _note(looking: asyncio.Future[None]) -> None:
    """Whoever asked is told; they may all have left."""
    if not looking.cancelled():
        looking.exception()


async def look_at(line: Line, scripts: Scripts, settings: QueueSettings) -> Fitness:
    """Asks by INFO and, where it is allowed, CONFIG GET, and runs one script. Raises BrokerUnavailable, among them
    BrokerRefused for a user that may not run it.
    """
    raw = (await line.run(("INFO",))).decode()
    info = dict(row.split(":", 1) for row in raw.splitlines() if ":" in row)
    if info.get("loading", "0") != "0":
        # Until it has read its log it says that it keeps none.
        raise BrokerUnavailable("the broker is still reading its log", retry_after_s=2)
    config = await _config(line)
    layout = await line.run(("HGET", scripts.keys.fixed("flags"), "layout"))
    maxmemory = info.get("maxmemory") or config.get("maxmemory")
    log = info.get("aof_enabled") or {"yes": "1", "no": "0"}.get(config.get("appendonly", ""))
    found = Fitness(
        version=info.get("redis_version", ""),
        maxmemory=int(maxmemory) if maxmemory else None,
        policy=info.get("maxmemory_policy") or config.get("maxmemory-policy", ""),
        log=None if log is None else log == "1",
        fsync=config.get("appendfsync"),
        saves=_saves(info, config),
        layout=None if layout is None else int(layout),
        durability=settings.durability,
        require_persistence=settings.require_persistence,
    )
    if found.problem is None:
        await line.run(scripts.tick(int(settings.lease_s * 1000)))
    return found


def _saves(info: dict[str, str], config: dict[str, str]) -> bool | None:
    if "save" in config:
        return bool(config["save"])
    # One that is not asked for its configuration shows it by what it has done.
    return info["rdb_saves"] != "0" if "rdb_saves" in info else None


async def _config(line: Line) -> dict[str, str]:
    """Empty where the command is not allowed or not there, as with managed brokers."""
    names = ("appendonly", "appendfsync", "save", "maxmemory", "maxmemory-policy")
    try:
        flat: list[Any] = await line.run(("CONFIG", "GET", *names))
    except (BrokerRefused, ResponseError):
        return {}
    words = [word.decode() for word in flat]
    return dict(zip(words[::2], words[1::2], strict=True))
