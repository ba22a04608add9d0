"""What every client asked and every reply that it saw, in order: the only witness that the oracle hears.

Times are seconds since the run began. Knows no HTTP and no broker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

FINISHED, ERROR, CANCELLED = "finished", "error", "cancelled"
FINAL = (FINISHED, ERROR, CANCELLED)
UNKNOWN, EXPIRED = "unknown", "expired"
MAX_CRASHES = 2  # of the service under test: with one more a request is dead
LAST = "last"  # the call that looks at each id once all is over


@dataclass(frozen=True, slots=True)
class Look:
    """One reply about one id. `state` is the request's own, UNKNOWN for a 404, EXPIRED for a 410, "" where the
    reply says nothing of it. `text` is None where there is none. `final_at`: when it had ended, by the broker, where
    the reply tells.
    """

    began: float
    ended: float
    by: str
    call: str
    status: int
    state: str = ""
    code: str = ""
    text: str | None = None
    final_at: float | None = None

    @property
    def is_final(self) -> bool:
        return self.state in FINAL

    @property
    def line(self) -> str:
        text = "" if self.text is None else f" {self.text[:40]!r} ({len(self.text)})"
        told = " ".join(filter(None, (self.state, self.code)))
        return (
            f"{self.began:8.3f} {self.ended:8.3f}  {self.by:6} {self.call:8} {self.status} {told}"
            f"{text}"
        )


@dataclass(slots=True)
class Accepted:
    """An id that the service gave out, and what may rightly become of it.

    `answer` is the text that the engine must give; None for a list. `sent_at`: no earlier was it submitted.
    `needs`: what it depends on.
    """

    rid: str
    tenant: int
    sent_at: float
    answer: str | None
    children: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    may_expire: bool = False
    may_be_cancelled: bool = False
    is_dropped: bool = False
    looks: list[Look] = field(default_factory=list)

    @property
    def is_list(self) -> bool:
        return self.answer is None


@dataclass(frozen=True, slots=True)
class Wipe:
    """A FLUSHALL, sent and answered at these times."""

    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault that has struck the part `name`, for so long if it lasted; "" where none was meant."""

    at: float
    kind: str
    name: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Remains:
    """What the broker holds once all is over: `left`, what unfinished work still names, and the keys that do;
    `letters`, the ids of dead letters.
    """

    at: float
    left: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    letters: frozenset[str] = frozenset()


class History:
    """`unknown`: submits whose connection was lost before there was an id. `odd`: replies that nothing explains."""

    def __init__(self) -> None:
        self.accepted: dict[str, Accepted] = {}
        self.wipes: list[Wipe] = []
        self.full_since: float | None = None  # while the broker has no room for anything
        self.strikes: list[Strike] = []
        self.calls: Counter[str] = Counter()
        self.events: list[tuple[float, str]] = []
        self.odd: list[str] = []
        self.unknown = 0

    def accept(
        self, rid: str, tenant: int, sent_at: float, answer: str, *, may_expire: bool = False
    ) -> Accepted:
        """Twice is as once, but for `sent_at`: the first counts."""
        known = self.accepted.setdefault(rid, Accepted(rid, tenant, sent_at, answer))
        known.may_expire = known.may_expire or may_expire
        return known

    def accept_list(
        self, rid: str, tenant: int, sent_at: float, answers: list[str], *, may_expire: bool = False
    ) -> Accepted:
        """The list and each of its children."""
        children = tuple(f"{rid}.{i}" for i in range(len(answers)))
        for child, answer in zip(children, answers, strict=True):
            self.accept(child, tenant, sent_at, answer, may_expire=may_expire)
        parent = Accepted(rid, tenant, sent_at, None, children)
        return self.accepted.setdefault(rid, parent)

    def saw(self, rid: str, look: Look) -> None:
        if rid in self.accepted:
            self.accepted[rid].looks.append(look)

    def will_cancel(self, rid: str) -> None:
        """From here on a cancelled end is right, for a list's children too."""
        asked = self.accepted[rid]
        for name in (rid, *asked.children):
            self.accepted[name].may_be_cancelled = True

    def strike(self, strike: Strike, detail: str = "") -> None:
        self.strikes.append(strike)
        lasted = f"{strike.seconds:.1f} s" if strike.seconds else ""
        self.note(strike.at, " ".join(filter(None, (strike.kind, strike.name, lasted, detail))))

    @property
    def faults(self) -> Counter[str]:
        return Counter(strike.kind for strike in self.strikes)

    def note(self, at: float, text: str) -> None:
        self.events.append((at, text))

    def epoch(self, began: float, ended: float) -> int | None:
        """How many wipes came before; None where one may have been in between."""
        if any(began < wipe.ended and wipe.began < ended for wipe in self.wipes):
            return None
        return sum(wipe.ended <= began for wipe in self.wipes)

    def told(self, rid: str) -> str:
        """Everything that is known of one id, with the faults of its time."""
        asked = self.accepted.get(rid)
        if asked is None:
            return f"{rid}: never accepted"
        until = max(
            (look.ended for look in asked.looks if look.call != LAST), default=asked.sent_at
        )
        rows = [(look.began, look.line) for look in asked.looks]
        near = (
            e for e in self.events if asked.sent_at - 3 <= e[0] <= min(until, asked.sent_at + 60)
        )
        rows += [(at, f"{at:8.3f}           {text}") for at, text in near]
        rights = [n for n in ("may_expire", "may_be_cancelled", "is_dropped") if getattr(asked, n)]
        head = f"{rid}: tenant {asked.tenant}, sent at {asked.sent_at:.3f} {' '.join(rights)}"
        if asked.answer is not None:
            head += f", answer {asked.answer[:60]!r} ({len(asked.answer)})"
        return "\n".join([head, *(f"    {text}" for _, text in sorted(rows))])
