"""The model of what must happen though nobody asks: tick, sweep, prune."""

from __future__ import annotations

from typing import Any

from tests.protocol.presence import ABSENT_MS, Presence
from tests.protocol.state import READY

FORWARD_MS, BACK_MS = 5000, 1000
OFFERED_AGAIN_MS = 5000


class Upkeep(Presence):
    def tick(self, lease_ms: int, api: str | None = None, last_id: str = "0-0") -> list[Any]:
        """Moves the queue clock; a jump of the server's clock becomes one second and a grace of two leases."""
        flags = self.state.flags
        clock, off = int(flags.get("clk", 0)), int(flags.get("off", 0))
        now, step = self.now, self.at_ms - off - clock
        if clock == 0:
            flags.update(clk=str(self.at_ms), off="0", layout="1")
        elif step > FORWARD_MS or step < -BACK_MS:
            now = clock + 1000
            grace = now + 2 * lease_ms
            flags.update(clk=str(now), off=str(self.at_ms - now), grace=str(grace))
        elif step > 0:
            flags["clk"] = str(now)
        created = 0
        if api is not None:
            created = int(api not in self.state.outs)
            self.state.apis[api] = now
            if created:
                self._forget_apis(now - 10 * ABSENT_MS)
            self.state.outs.setdefault(api, [])
        return [now, int(flags.get("paused") == "1"), "0", created]

    def sweep(self, n: int) -> list[list[str]]:
        """Hands out what is due; a queued one that somebody waits for on the line is only looked at again."""
        due: list[str] = []
        looked = 0
        while (
            len(due) < n and looked < 2 * n and (ids := self.first("when", n - len(due), self.now))
        ):
            looked += len(ids)
            for rid in ids:
                record = self.state.live[rid]
                is_early = min(record.deadline_ms, record.queue_until_ms) > self.now
                is_held = record.held == 1 and record.state in "QLW" and is_early
                if is_held and not self.is_abandoned(record):
                    due_ms = (record.deadline_ms, record.queue_until_ms, self.abandoned_at(record))
                    self.put("when", rid, min(due_ms))
                    continue
                if is_held:
                    self.take_out((*READY, "later"), rid)
                    self.abandon(rid, record)
                due.append(rid)
                self.put("when", rid, self.now + OFFERED_AGAIN_MS)
        return [due, self.first("resv", n, self.now)]

    def prune(self, silent_ms: int) -> list[int]:
        state = self.state
        silent = [wid for wid, at in state.beats.items() if at < self.now - silent_ms]
        state.beats.update({wid: self.now for wid in state.claims if wid not in state.beats})
        for wid in silent:
            del state.beats[wid]
            state.infos.pop(wid, None)
            state.claims.pop(wid, None)
            state.flags.pop(f"drain:{wid}", None)
        if state.live:
            gone = [
                x
                for x in state.tags
                if x[0] == "f" and f"r:{x.partition(':')[2]}" not in state.room
            ]
            for own in gone:
                del state.tags[own]
        else:
            state.tags.clear()
            if not state.sets["resv"]:
                state.room.clear()
        return [len(silent)]

    def _forget_apis(self, until: int) -> None:
        self.state.apis = {api: at for api, at in self.state.apis.items() if at >= until}
