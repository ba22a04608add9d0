"""What has been seen of a shard since it was made, and what must hold of that: what one state cannot show.

S1 nothing accepted is lost, S3 each entry stays as it came in, S5 the fence, S6 one notice and outcomes that never
change, S8 limits, S9 the order of grants, S11 the text that each reader was told. Knows no model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from shared.request import Outcome, Record
from tests.protocol.invariants import check_state, room_of
from tests.protocol.state import READY, Entry, State, size_of
from tests.protocol.turns import Turns

# By how much a lane's requests are ahead of their submit time.
BOOST_MS = (30_000, 10_000, 0)
# The queue clock may be that much ahead of its last tick.
TICK_MS = 5000


class Limits(msgspec.Struct, frozen=True):
    """What the scripts are told of S8."""

    max_attempts: int
    max_crashes: int
    letters_max_bytes: int


class History:
    """`last` is the state after the last call; `note_…` say what a caller was told by it."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.accepted: set[str] = set()
        self.payloads: dict[str, bytes] = {}
        self.robbed: set[str] = set()
        self.ended: dict[str, Outcome] = {}
        self.owners: dict[str, tuple[str, str]] = {}
        self.tokens: set[tuple[str, str]] = set()
        self.notified: Counter[tuple[str, str]] = Counter()
        self.readers: dict[tuple[str, str], set[str]] = {}
        self.turns = Turns()
        self.last = State()

    def note_accepted(self, rids: Iterable[str], payload: bytes) -> None:
        for rid in rids:
            self.accepted.add(rid)
            self.payloads[rid] = payload

    def note_room(self, tenant: str, caps: Sequence[int]) -> None:
        """S8: what was let in is within the caps that it came with."""
        room = room_of(self.last)
        for name, cap in zip(("r", "t", f"r:{tenant}", f"t:{tenant}"), caps, strict=True):
            assert not cap or room.get(name, 0) <= cap, f"S8 {name} is above {cap}"

    def note_robbed(self, rid: str) -> None:
        """Its entry was removed by hand."""
        self.robbed.add(rid)

    # Workers

    def note_granted(self, rid: str, wid: str, token: str) -> None:
        assert rid not in self.ended, f"S5 {rid} was granted after its end"
        assert (rid, token) not in self.tokens, f"S5 {rid} was granted under {token} before"
        self.tokens.add((rid, token))
        self.owners[rid] = wid, token

    def note_taken(self, rid: str, wid: str, token: str) -> None:
        """A result, or what a run had used up: also of a lease that was lost and that nobody has claimed since."""
        assert self.owners.get(rid) == (wid, token), f"S5 {rid} took something from a former owner"

    def note_running(self, before: State, rid: str, wid: str, token: str) -> None:
        """A piece of text, a beat or a nack was taken: of what ran, and by whom it ran."""
        self.note_taken(rid, wid, token)
        record = before.live.get(rid)
        is_running = record is not None and record.state == "R"
        assert is_running, f"S5 {rid} did not run"

    def note_returned(self, rid: str) -> None:
        """Given back: from here on nothing more is taken from this run."""
        del self.owners[rid]

    def note_beat(
        self, before: State, wid: str, held: Mapping[str, str], lost: Iterable[str]
    ) -> None:
        """S5: leases of its own are renewed, no others; lost is what is not its own, and what nobody waits for."""
        kept = held.keys() - set(lost)
        for rid in kept:
            self.note_running(before, rid, wid, held[rid])
        for rid in held.keys() - kept:
            record, now = before.live.get(rid), self.last.live.get(rid)
            is_own = record is not None and record.state == "R"
            is_own = is_own and self.owners.get(rid) == (wid, held[rid])
            is_given_up = now is not None and now.state == "K"
            assert is_given_up or not is_own, f"S5 {rid} was told as lost to its owner"
        for rid, until in self.last.sets["lease"].items():
            is_same = before.sets["lease"].get(rid) == until
            assert is_same or rid in kept, f"S5 the beat of {wid} changed the lease of {rid}"

    # Readers

    def note_notified(self, rid: str, api: str) -> None:
        self.notified[rid, api] += 1

    def note_piece(self, before: State, rid: str, token: str, declared: Sequence[str]) -> None:
        """Who has been told of each piece of this run so far: was named, reads along, and has a stream."""
        told = {api for api in before.live[rid].apis if api in declared and api in before.outs}
        self.readers[rid, token] = self.readers.get((rid, token), told) & told

    def note_text(self, rid: str, token: str, text: str) -> None:
        """S11: the part is the finished request's whole text; each reader was told of all, and of nothing else."""
        part = self.last.parts.get(rid, {})
        kept = [(at - 1, data) for (_, at), (of, data) in sorted(part.items()) if of == token]
        assert _joined(kept) == text, f"S11 the part of {rid} is not its text"
        for api, entries in self.last.outs.items():
            chunks = [entry for entry in entries if entry.rid == rid and entry.outcome is None]
            grants = [_place(entry)[0] for entry in chunks]
            assert grants == sorted(grants), f"S11 {api} was told an older run of {rid} again"
            told_to = self._told_to([entry for entry in chunks if entry.token == token], text)
            is_all = told_to == len(text) or api not in self.readers.get((rid, token), ())
            assert is_all, f"S11 {api} was told {told_to} of {len(text)} of {rid}"

    def _told_to(self, chunks: Iterable[Entry], text: str) -> int:
        """How far a reader is without a gap. One without data sends it to the part, up to its place."""
        told_to = 0
        for entry in chunks:
            offset = _place(entry)[1]
            end = offset + len(entry.data)
            assert text[offset:end] == entry.data, f"S11 {entry} is not of {text!r}"
            if offset <= told_to or not entry.data:
                told_to = max(told_to, end)
        return told_to

    # Order

    def note_order(self, before: State, granted: Sequence[str]) -> None:
        """S9: in a lane by tags, and of one tenant by submit time; among lanes by submit time less boost."""
        for rid in granted:
            assert not self._is_due(before.live[rid]), f"S9 {rid} was granted after its time"
        lanes = [[rid for rid in granted if rid in before.sets[name]] for name in READY[:3]]
        for lane, name in enumerate(READY[:3]):
            taken = [before.live[rid] for rid in lanes[lane]]
            left = [self.last.live[rid] for rid in self.last.sets[name]]
            left = [record for record in left if self._is_due(record) is False]
            if not taken or not left:
                continue
            first = min(record.tag for record in left)
            assert max(record.tag for record in taken) <= first, f"S9 order in lane {lane}"
            for one in taken:
                for other in left:
                    if one.tenant == other.tenant and _is_fresh(one) and _is_fresh(other):
                        assert one.submitted_ms <= other.submitted_ms, (
                            f"S9 {one.tenant} in lane {lane}"
                        )
        ready = [rid for rid in granted if any(rid in lane for lane in lanes)]
        heads = [self._head(lane) for lane in range(3)]
        for rid in reversed(ready):
            lane = next(lane for lane in range(3) if rid in lanes[lane])
            heads[lane] = at = before.live[rid].submitted_ms - BOOST_MS[lane]
            assert all(head is None or at <= head for head in heads), f"S9 {rid} in lane {lane}"

    def _head(self, lane: int) -> int | None:
        """The next of what was left in a lane; None where there is none, or nobody can say."""
        ids = sorted((score, rid) for rid, score in self.last.sets[READY[lane]].items())
        for _, rid in ids:
            record = self.last.live[rid]
            is_due = self._is_due(record)
            if is_due is None:
                return None
            if not is_due:
                return record.submitted_ms - BOOST_MS[lane]
        return None

    def _is_due(self, record: Record) -> bool | None:
        """Whether its time is over; None where that depends on the clock since its last tick."""
        due_ms, clock = min(record.deadline_ms, record.queue_until_ms), self._clock
        return None if clock < due_ms <= clock + TICK_MS else due_ms <= clock

    @property
    def _clock(self) -> int:
        return int(self.last.flags.get("clk", 0))

    # After each call

    def check(self, state: State, missed: Iterable[str] = ()) -> None:
        """`missed` are the front doors that the call reported as not told."""
        check_state(state)
        lost = self.accepted - state.live.keys() - state.outcomes.keys() - state.groups.keys()
        assert not lost, f"S1 lost: {lost}"
        self._check_entries(state)
        self._check_limits(state)
        self._check_outcomes(state)
        self._check_notices(state, set(missed))
        self.turns.check(state)
        self.last = state

    def _check_entries(self, state: State) -> None:
        for rid, record in state.live.items():
            assert record.entry_id or rid in self.robbed, f"S3 {rid} has lost its entry"
        for rid, payload in state.entries.items():
            assert self.payloads.get(rid, payload) == payload, f"S3 the payload of {rid} changed"

    def _check_limits(self, state: State) -> None:
        limits = self.limits
        for rid, record in state.live.items():
            n_attempts, n_crashes = record.attempts, record.crashes
            is_used_up = n_attempts >= limits.max_attempts or n_crashes > limits.max_crashes
            assert not is_used_up or record.state == "K", f"S8 {rid} may run once more"
            assert n_attempts <= limits.max_attempts, f"S8 attempts of {rid}"
            assert n_crashes <= limits.max_crashes + 1, f"S8 crashes of {rid}"
        n_bytes = sum(map(size_of, state.letters))
        assert n_bytes <= limits.letters_max_bytes, "S8 bytes of dead letters"

    def _check_outcomes(self, state: State) -> None:
        for rid, first in self.ended.items():
            now = state.outcomes[rid]
            if now is not first and now != first:
                is_settled = not first.report_json and replace(now, report_json="") == first
                assert is_settled, f"S6 the outcome of {rid} changed"
        self.ended = dict(state.outcomes)

    def _check_notices(self, state: State, missed: set[str]) -> None:
        told = Counter((e.rid, api) for api, es in state.outs.items() for e in es if e.outcome)
        for key, n in told.items():
            assert n - self.notified[key] <= 1, f"S6 {key} was told {n} times"
        for rid in state.outcomes.keys() - self.last.outcomes.keys():
            for api in self._readers_of(rid) - missed:
                assert api not in state.outs or told[rid, api], f"S6 {rid} was not told to {api}"
        for api, entries in state.outs.items():
            for entry in entries[len(self.last.outs.get(api, ())) :]:
                if entry.outcome is not None:
                    rid, body = entry.rid, state.bodies.get(entry.rid)
                    assert entry.outcome == state.outcomes.get(rid), f"S6 {api} was told {entry}"
                    assert entry.body in (None, body), f"S6 {api} was told another answer of {rid}"

    def _readers_of(self, rid: str) -> set[str]:
        """The front doors that read what has just ended; a child's are told of its list."""
        if (record := self.last.live.get(rid)) is not None:
            return set() if record.parent else set(record.apis)
        group = self.last.groups.get(rid)
        return set(filter(None, group["apis"].split(","))) if group else set()


def _place(chunk: Entry) -> tuple[int, int]:
    """Grants, and the offset in the text of that run."""
    grants, _, offset = chunk.place.partition("/")
    return int(grants), int(offset)


def _joined(pieces: Iterable[tuple[int, str]]) -> str:
    """The text of pieces (offset, data), of which some may overlap and some may be there twice."""
    text = ""
    for offset, data in pieces:
        if offset <= len(text):
            text += data[len(text) - offset :]
    return text


def _is_fresh(record: Record) -> bool:
    """Queued from its submit on: neither tried before nor kept for later."""
    return record.grants == 0 and record.not_before_ms == 0 and len(record.events) == 1
