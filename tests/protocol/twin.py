"""The real scripts and the model side by side: every call goes to both, and replies and states must be the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import redis
from msgspec.structs import replace

from shared import codec
from shared.queue.loader import Script
from shared.queue.scripts import Call
from tests.protocol.history import History
from tests.protocol.invariants import check_again
from tests.protocol.model import Model
from tests.protocol.reader import Reader
from tests.protocol.state import State
from tests.queue.harness import Shard

# Where in their replies these scripts name the front doors that they could not tell.
MISSED_FROM = {"finish": 2, "end": 3, "end_missing": 3}
# How much of a life may have passed since it was set; no two lives of a test are so near to each other.
LATE_MS = 30_000


class Twin:
    """`is_compared` False leaves the model out, for scripts that are not all of this release: the invariants remain.

    `scripts` are run instead of the shard's own of the same names.
    """

    def __init__(
        self,
        shard: Shard,
        history: History,
        *,
        is_compared: bool = True,
        scripts: Mapping[str, Script] | None = None,
    ) -> None:
        self.shard = shard
        self.scripts = scripts or {}
        self.reader = Reader(shard.client, shard.keys)
        self.history = history
        self.model = Model(self.reader.read()) if is_compared else None
        self.look()
        self.n_calls = 0
        self.is_memory_full = False

    @property
    def state(self) -> State:
        """As it was read of the real server after the last call."""
        return self.history.last

    def unseen(self, name: str, *args: Any) -> list[Any]:
        """Runs one script of which only the reply is compared; the next call compares the state."""
        call = self._call(name, *args)
        return self._judged(name, plain(self.shard.run(call)), *args)

    def call(self, name: str, *args: Any, times: int = 1, **options: Any) -> list[Any]:
        """Runs one script `times` times, as after a lost reply, and returns the first reply; checks each."""
        first: list[Any] = []
        for n in range(times):
            before = self.state
            reply, state = self._once(name, *args, **options)
            self.history.check(state, reply[MISSED_FROM[name] :] if name in MISSED_FROM else ())
            if n == 0:
                first = reply
            else:
                check_again(name, first, reply, before, state)
            self._compare(name)
        return first

    def look(self) -> None:
        """After something that is no script's doing."""
        self.history.check(self.reader.read())

    def _call(self, name: str, *args: Any, **options: Any) -> Call:
        self.n_calls += 1
        call: Call = getattr(self.shard.scripts, name)(*args, **options)
        return replace(call, script=self.scripts.get(name, call.script))

    def _once(self, name: str, *args: Any, **options: Any) -> tuple[list[Any], State]:
        raw, state = self._run(self._call(name, *args, **options))
        if isinstance(raw, redis.exceptions.OutOfMemoryError):
            reply = ["OOM"]
        elif isinstance(raw, Exception):
            raise raw
        else:
            reply = self._peeked(args[0], raw) if name == "peek" else plain(raw)
        return self._judged(name, reply, *args, **options), state

    def _judged(self, name: str, reply: list[Any], *args: Any, **options: Any) -> list[Any]:
        """The reply, which must be the model's."""
        if self.model is not None:
            self.model.at_ms = self.shard.now_ms
            expected = plain(self.model.run(name, *args, **options))
            assert reply == expected, f"{name} replied {reply}, not {expected}"
        return reply

    def _run(self, call: Call) -> tuple[Any, State]:
        """What the script replies, or the error, and the state that it left."""
        both = self.shard.client.pipeline(transaction=False)
        both.execute_command(*call.command)
        both.execute_command(*self.reader.command)
        raw, keys = both.execute(raise_on_error=False)
        if isinstance(raw, redis.exceptions.NoScriptError):
            try:
                raw = self.shard.run(call)
            except redis.exceptions.OutOfMemoryError as error:
                raw = error
            return raw, self.reader.read()
        is_unknown = isinstance(keys, redis.exceptions.NoScriptError)
        return raw, self.reader.read() if is_unknown else self.reader.parse(keys)

    def _peeked(self, rid: str, raw: Any) -> list[Any]:
        now_ms, kind, value, position, wall_ms = raw
        found = value
        if kind == b"live":
            found = replace(codec.decode_record(value), entry_id=self.state.live[rid].entry_id)
        elif kind == b"done":
            found = codec.decode_outcome(value)
        elif kind == b"group":
            found = {value[i].decode(): value[i + 1].decode() for i in range(0, len(value), 2)}
        return [*plain([now_ms, kind]), plain(found), *plain([position, wall_ms])]

    def _compare(self, name: str) -> None:
        if self.model is None:
            return
        if self.state != self.model.state:
            raise AssertionError(f"after {name}:\n{difference(self.state, self.model.state)}")
        self.model.letter_ids = self.reader.letter_ids
        lives, expected = self.reader.lives, self.model.lives
        late = {key for key, ms in expected.items() if not -LATE_MS <= lives.get(key, 0) - ms <= 0}
        assert lives.keys() == expected.keys(), (
            f"after {name} other lives {lives.keys() ^ expected.keys()}"
        )
        assert not late, f"after {name} other lives of {late}"


def difference(real: State, expected: State) -> str:
    """The parts of two states that are not the same."""
    lines = []
    for name in real.__struct_fields__:
        one, two = getattr(real, name), getattr(expected, name)
        if one != two and isinstance(one, dict):
            keys = (key for key in sorted(one.keys() | two.keys()) if one.get(key) != two.get(key))
            lines += [f"{name} {k}:\n  real  {one.get(k)}\n  model {two.get(k)}" for k in keys]
        elif one != two:
            lines.append(f"{name}:\n  real  {one}\n  model {two}")
    return "\n".join(lines)


def plain(reply: Any) -> Any:
    """Numbers as text, since scripts reply some of them so; payloads too."""
    if isinstance(reply, list):
        return [plain(part) for part in reply]
    if isinstance(reply, bytes):
        return reply.decode("utf-8", "surrogateescape")
    return str(reply) if isinstance(reply, int) else reply
