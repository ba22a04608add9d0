"""What clients do, some tens at once: each picks a habit by its own dice, and comes back for what it began.

Every id that is given out is in the history before anything else is asked about it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import httpx

from tests.chaos.asking import UNAVAILABLE, Asker, Reply
from tests.chaos.history import History, Look
from tests.chaos.prompts import Prompt
from tests.chaos.stack import TENANTS

LONG_CHARS = 40_000
LONG_LIST = 200
# Some polls are held for longer than a front door takes to find out that the broker has forgotten.
WAIT_S, PATIENCE = (2, 2, 2, 10), 4
PAUSE_S = (0.0, 1.2)
# Without a space, which an answer that ends there would lose.
SENTENCE = "a-lighthouse-keeps-its-promise-while-the-keeper-sleeps-and-counts-waves-until-morning"


class Client:
    """`run` goes on until `is_over`, then until what it has begun is known or the patience is used up."""

    def __init__(
        self,
        number: int,
        asker: Asker,
        history: History,
        rng: random.Random,
        is_over: Callable[[], bool],
    ) -> None:
        self._number = number
        self._asker = asker
        self._history = history
        self._rng = rng
        self._is_over = is_over
        self._tenant = number % len(TENANTS)
        self._made = 0
        self._habits: dict[Callable[[], Awaitable[None]], int] = {
            self.predict: 6,
            self.predict_list: 2,
            self.predict_for_a_while: 1,
            self.predict_with_key: 2,
            self.leave_early: 1,
            self.submit_and_poll: 6,
            self.submit_list: 2,
            self.put_at_two_doors: 3,
            self.put_another_body: 1,
            self.cancel_own: 2,
            self.cancel_in_a_race: 3,
            self.chain: 2,
            self.drop: 1,
            self.short_deadline: 2,
            self.look_at_a_strangers: 1,
        }

    async def run(self) -> None:
        habits, weights = list(self._habits), list(self._habits.values())
        while not self._is_over():
            await self._rng.choices(habits, weights)[0]()
            await asyncio.sleep(self._rng.uniform(*PAUSE_S))

    # --- /predict: the caller waits

    async def predict(self) -> None:
        await self._predict(self._prompt())

    async def predict_list(self) -> None:
        prompts = [self._prompt() for _ in range(self._rng.randint(2, 9))]
        budget = max(prompt.max_tokens for prompt in prompts)
        # One budget for all.
        await self._predict(*(Prompt(prompt.text, budget) for prompt in prompts))

    async def predict_for_a_while(self) -> None:
        """What is not there in a second is come back for."""
        reply = await self._predict(self._prompt(), prefer="wait=1")
        if reply is not None and reply.status == httpx.codes.ACCEPTED and reply.rid is not None:
            await self._follow(reply.rid)

    async def predict_with_key(self) -> None:
        """What came to nothing is asked again under its key, at any door."""
        key, prompt = self._name(), self._prompt()
        for _ in range(PATIENCE):
            reply = await self._predict(prompt, idempotency_key=key)
            if reply is not None and reply.status != httpx.codes.SERVICE_UNAVAILABLE:
                return
            await asyncio.sleep(self._rng.uniform(0.1, 0.5))
        self._history.unknown += reply is None

    async def leave_early(self) -> None:
        """The client goes; what it asked for is cancelled, or has never come in."""
        call = asyncio.ensure_future(self._predict(self._prompt()))
        _, late = await asyncio.wait({call}, timeout=self._rng.uniform(0.0, 0.4))
        if late:
            self._history.unknown += 1
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    async def _predict(self, *prompts: Prompt, **headers: str) -> Reply | None:
        texts: Any = [prompt.text for prompt in prompts]
        body = {
            "prompt": texts if len(prompts) > 1 else texts[0],
            "max_new_tokens": prompts[0].max_tokens,
            "priority": prompts[0].priority,
        }
        reply = await self._asker.call(
            self._door(),
            "predict",
            "POST",
            "/predict",
            tenant=self._tenant,
            body=body,
            headers={name.replace("_", "-"): value for name, value in headers.items()},
            is_submit="idempotency_key" not in headers,
        )
        if reply is None:
            return None
        if reply.rid is not None:
            self._accept(reply.rid, reply.began, prompts)
            self._asker.note_answer(reply.rid, reply)
        self._check_answer(reply)
        return reply

    def _check_answer(self, reply: Reply) -> None:
        """A waiting caller is answered, told its request's own end, let go, or sent away."""
        if reply.status in (httpx.codes.OK, httpx.codes.ACCEPTED) and reply.rid is not None:
            return
        if reply.code in UNAVAILABLE:
            self._asker.check_broker_lost(reply)
        elif reply.code not in ("attempts_exhausted", "wait_timeout", "submit_incomplete"):
            self._asker.odd(reply, "to a waiting caller")

    # --- /requests: the caller comes back

    async def submit_and_poll(self) -> None:
        rid = await self._submit(self._prompt())
        if rid is not None:
            await self._follow(rid)

    async def submit_list(self) -> None:
        n = self._rng.choice((2, 5, 12, 70))
        budget = 1 + n % 5
        rid = await self._submit(*(Prompt(self._text(), budget) for _ in range(n)))
        if rid is not None and self._rng.random() < 0.3:
            await asyncio.sleep(self._rng.uniform(0.0, 0.5))
            await self._asker.cancel(self._door(), rid, self._tenant)
        if rid is not None:
            await self._follow(rid)

    async def submit_long_list(self, door: int) -> None:
        """In so many pieces that the door may be caught between two of them."""
        await self._submit(*(Prompt(self._text(), 1) for _ in range(LONG_LIST)), door=door)

    async def put_at_two_doors(self) -> None:
        """At once, so that one of them comes second: one id, one run."""
        name, prompt = self._name(), self._prompt()
        replies = await asyncio.gather(
            *(self._put(door, name, prompt) for door in range(self._asker.n_doors))
        )
        rids = {reply.rid for reply in replies if reply is not None and reply.rid}
        if len(rids) > 1:
            self._history.odd.append(f"{name} got two ids: {sorted(rids)}")
        for _ in range(PATIENCE):
            if rids:
                break
            await asyncio.sleep(self._rng.uniform(0.1, 0.5))
            reply = await self._put(self._door(), name, prompt)
            rids = {reply.rid} if reply is not None and reply.rid else set()
        else:
            self._history.unknown += 1
            return
        await self._follow(*filter(None, rids))

    async def put_another_body(self) -> None:
        name = self._name()
        reply = await self._put(self._door(), name, self._prompt())
        if reply is None or reply.rid is None:
            self._history.unknown += reply is None
            return
        other = await self._asker.call(
            self._door(),
            "other",
            "PUT",
            f"/requests/{name}",
            tenant=self._tenant,
            body={"prompt": "another", "max_tokens": 1},
        )
        if other is None or other.code in (*UNAVAILABLE, "idempotency_mismatch"):
            return
        if other.rid and self._history.epoch(reply.began, other.ended) is None:
            # Wiped in between, so that the name was free again: nobody can say whose answer it has now.
            del self._history.accepted[reply.rid]
            return
        self._asker.odd(other, "to another body under the same id")

    async def cancel_own(self) -> None:
        rid = await self._submit(self._prompt())
        if rid is not None:
            await asyncio.sleep(self._rng.uniform(0.0, 0.6))
            await self._asker.cancel(self._door(), rid, self._tenant)
            await self._follow(rid)

    async def cancel_in_a_race(self) -> None:
        """About when it finishes, from every door at once."""
        rid = await self._submit(Prompt(self._text(), 1))
        if rid is None:
            return
        await asyncio.sleep(self._rng.uniform(0.03, 0.12))
        doors = range(self._asker.n_doors)
        await asyncio.gather(*(self._asker.cancel(door, rid, self._tenant) for door in doors))
        await self._follow(rid)

    async def chain(self) -> None:
        """Each repeats the answer of the one before. Where one is cancelled, those after it fail."""
        before: tuple[str, str] | None = None
        rids = []
        for _ in range(3):
            prompt, needs = self._prompt(is_short=True), []
            if before is not None:
                rid, answer = before
                text, needs = prompt.text, [rid]
                prompt = replace(prompt, text=f"{text}{{{{{rid}.text}}}}", whole=text + answer)
            found = await self._submit(prompt, depends_on=needs)
            if found is None:
                break
            rids.append(found)
            before = found, prompt.answer
        if rids and self._rng.random() < 0.3:
            await self._asker.cancel(self._door(), self._rng.choice(rids), self._tenant)
        await self._follow(*reversed(rids))

    async def drop(self) -> None:
        rid = await self._submit(self._prompt())
        if rid is not None:
            await self._asker.poll(self._door(), rid, self._tenant, wait_s=self._rng.choice((0, 1)))
            await self._asker.drop(self._door(), rid, self._tenant)

    async def short_deadline(self) -> None:
        name = self._rng.choice(("timeout_s", "queue_timeout_s"))
        prompt = Prompt(self._text(), 40, ignore_eos=True)
        limit: dict[str, Any] = {name: self._rng.uniform(0.05, 1.0)}
        rid = await self._submit(prompt, may_expire=True, **limit)
        if rid is not None:
            await self._follow(rid)

    async def look_at_a_strangers(self) -> None:
        """An id of another tenant is as unknown as one that never was."""
        foreign = [a for a in self._history.accepted.values() if a.tenant != self._tenant]
        if not foreign:
            return
        rid = self._rng.choice(foreign[-50:]).rid
        reply = await self._asker.call(
            self._door(), "foreign", "GET", f"/requests/{rid}", tenant=self._tenant
        )
        if reply is not None and reply.status not in (
            httpx.codes.NOT_FOUND,
            httpx.codes.SERVICE_UNAVAILABLE,
        ):
            self._asker.odd(reply, "to a stranger")

    # --- what they are made of

    async def _submit(
        self,
        *prompts: Prompt,
        door: int | None = None,
        may_expire: bool = False,
        **fields: Any,
    ) -> str | None:
        reply = await self._asker.call(
            self._door() if door is None else door,
            "submit",
            "POST",
            "/requests",
            tenant=self._tenant,
            body=self._body(*prompts, **fields),
            is_submit=True,
        )
        needs = fields.get("depends_on", ())
        return None if reply is None else self._taken(reply, prompts, may_expire, needs)

    async def _put(self, door: int, name: str, prompt: Prompt) -> Reply | None:
        reply = await self._asker.call(
            door,
            "put",
            "PUT",
            f"/requests/{name}",
            tenant=self._tenant,
            body=self._body(prompt),
        )
        if reply is not None:
            self._taken(reply, (prompt,))
        return reply

    def _taken(
        self,
        reply: Reply,
        prompts: tuple[Prompt, ...],
        may_expire: bool = False,
        needs: Sequence[str] = (),
    ) -> str | None:
        """The id, if it was accepted."""
        if reply.status in (httpx.codes.OK, httpx.codes.ACCEPTED) and reply.rid is not None:
            self._accept(reply.rid, reply.began, prompts, may_expire)
            self._history.accepted[reply.rid].needs = tuple(needs)
            self._asker.note_shown(reply.rid, reply)
            full_since = self._history.full_since
            if reply.call == "submit" and full_since is not None and reply.began > full_since:
                self._asker.odd(reply, "of a broker without room")
            return reply.rid
        if reply.code not in UNAVAILABLE and not self._was_wiped(needs, reply):
            self._asker.odd(reply, "to a submit")
        return None

    def _was_wiped(self, needs: Sequence[str], reply: Reply) -> bool:
        """What it depends on, so that it was refused."""
        sent = [self._history.accepted[rid].sent_at for rid in needs]
        return any(self._history.epoch(at, reply.ended) is None for at in sent)

    def _accept(
        self, rid: str, sent_at: float, prompts: tuple[Prompt, ...], may_expire: bool = False
    ) -> None:
        answers = [prompt.answer for prompt in prompts]
        accept = self._history.accept if len(answers) == 1 else self._history.accept_list
        told: Any = answers[0] if len(answers) == 1 else answers
        accept(rid, self._tenant, sent_at, told, may_expire=may_expire)

    async def _follow(self, *rids: str) -> None:
        """Held polls at changing doors, until it is final. Who has no patience left leaves it to the last look."""
        for rid in rids:
            for _ in range(PATIENCE):
                looks = await self._held_polls(rid)
                if self._is_over() or any(look is not None and look.is_final for look in looks):
                    break
                await asyncio.sleep(self._rng.uniform(0.05, 0.3))

    async def _held_polls(self, rid: str) -> list[Look | None]:
        """At one door, or at two at once."""
        doors = {self._door() for _ in range(2)}
        wait_s = self._rng.choice(WAIT_S)
        polls = (self._asker.poll(d, rid, self._tenant, wait_s=wait_s, call="held") for d in doors)
        return await asyncio.gather(*polls)

    def _body(self, *prompts: Prompt, **fields: Any) -> dict[str, Any]:
        texts: Any = [prompt.text for prompt in prompts]
        return {
            "prompt": texts if len(prompts) > 1 else texts[0],
            "max_tokens": prompts[0].max_tokens,
            "ignore_eos": prompts[0].ignore_eos,
            "priority": prompts[0].priority,
            **fields,
        }

    def _prompt(self, *, is_short: bool = False) -> Prompt:
        is_long = not is_short and self._rng.random() < 0.06
        text = self._text(self._rng.randint(4_000, LONG_CHARS) if is_long else 0)
        return Prompt(text, self._rng.choice((1, 2, 5, 10, 20, 40)))

    def _text(self, chars: int = 0) -> str:
        """No two are equal."""
        words = SENTENCE[: self._rng.randint(1, len(SENTENCE))]
        return f"{self._name()}:{words}".ljust(chars, "~")

    def _name(self) -> str:
        self._made += 1
        return f"c{self._number}-{self._made}"

    def _door(self) -> int:
        return self._rng.randrange(self._asker.n_doors)
