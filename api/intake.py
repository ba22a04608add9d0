"""The waist: every accepted request becomes a complete `Req` here and is submitted. Every route calls `accept`.

Owns limits, defaults, routing, budgets and deadlines; knows no HTTP and no rendering.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

import msgspec

from api.chains import Chain
from api.drain import Drain
from api.metrics import Metrics
from api.routing import Decision, Route, Router, clamp_budget
from api.schemas import check_integers
from api.settings import ApiSettings
from api.system_prompt import SystemPrompts
from shared import placeholders
from shared.errors import InvalidRequest, NoWorkers, RefusedPredecessor, UnsupportedParameter
from shared.postprocess import STRIP_ONLY
from shared.queue.producer import Producer
from shared.queue.snapshot import Caps
from shared.request import Delivery, Message, Priority, Req, Trim
from shared.sampling import SamplingParams

METADATA_BYTES = 4096
BYTES_PER_TOKEN = 3
MOST_PLACEHOLDERS = 64  # each may become an answer of any length
# Sampling fields that not every engine has, and the value that does not ask for them.
OPTIONAL: Mapping[str, bool | None] = {"echo": False, "logprobs": None}
# Seen where the first seed's operators look for it.
routing_log = logging.getLogger("uvicorn.error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request as a route parsed it, before defaults. `None` is: not given.

    `is_routed` asks for the first seed's treatment: routed budgets, its sampling defaults, the built-in
    system prompt, trimmed answers. `override_tokens` is the `max_new_tokens` of /predict, clamped not refused.
    `depends_on` are ids as the client wrote them; a list depends on nothing.
    """

    path: str
    tenant: str
    digest: str
    is_routed: bool
    prompt: str | Sequence[str] | None = field(default=None, repr=False)
    messages: tuple[Message, ...] | None = field(default=None, repr=False)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    override_tokens: int | None = None
    system_prompt: str | None = field(default=None, repr=False)
    raw: bool = False
    trim: bool | None = None
    priority: Priority = Priority.standard
    queue_timeout_s: float | None = None
    timeout_s: float | None = None
    on_disconnect: Literal["cancel", "continue"] = "cancel"
    on_worker_loss: Literal["error", "restart"] = "error"
    require_worker: bool = False
    depends_on: tuple[str, ...] = ()
    metadata: Mapping[str, Any] | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    traceparent: str | None = None

    @property
    def is_list(self) -> bool:
        return self.prompt is not None and not isinstance(self.prompt, str)


@dataclass(frozen=True, slots=True)
class Accepted:
    """`n` is None for a single request, `position` for what waits for others. `expires_s` is how long it may stay
    queued.
    """

    id: str
    n: int | None
    position: int | None
    submitted_ms: int
    joined: bool
    expires_s: float

    def child(self, index: int) -> str:
        return f"{self.id}.{index}"


@lru_cache(maxsize=4096)
def _bucket_key(params: SamplingParams) -> str:
    return params.bucket_key


class Intake:
    def __init__(
        self,
        settings: ApiSettings,
        producer: Producer,
        prompts: SystemPrompts,
        metrics: Metrics,
        drain: Drain,
    ) -> None:
        self._settings = settings
        self._producer = producer
        self._prompts = prompts
        self._metrics = metrics
        self._drain = drain
        self._router = Router(settings)
        self.caps = Caps(
            settings.queue_cap,
            settings.queue_tokens_cap,
            settings.tenant_queue_cap,
            settings.tenant_queue_tokens_cap,
        )

    async def accept(
        self, ask: Ask, *, rid: str | None = None, watch: bool = False, held: bool = False
    ) -> Accepted:
        """Queue it. `rid` is the id of an idempotent request; `watch` registers the waiter first; what is `held`
        goes with its caller, though this process be killed.

        Raises InvalidRequest naming the field, QueueFull, NoWorkers, Draining, IdempotencyMismatch,
        BrokerUnavailable. Nothing is queued then.
        """
        began = time.monotonic()
        self._drain.check()
        self._check(ask)
        owns_id = rid is None
        chain: Chain | None = None
        if ask.depends_on:
            chain = await Chain.find(ask.depends_on, ask.tenant, self._producer)
            ask, rid = _linked(ask, chain), await chain.place(rid, self._producer)
        rid = rid or self._producer.new_id()
        if ask.is_list:
            prompts: Sequence[str] = ask.prompt or ()
            children = [self._complete(ask, f"{rid}.{i}", text) for i, text in enumerate(prompts)]
            head = msgspec.structs.replace(
                children[0], id=rid, prompt=None, delivery=self._delivery(ask)
            )
            children = [_without_metadata(child) for child in children]
            self._check_room(ask, children)
            self._log_routing(ask, children)
            submitted = await self._producer.submit_list(
                head, children, self.caps, watch=watch, owns_id=owns_id, held=held
            )
            n, req = len(children), head
        else:
            prompt = ask.prompt if isinstance(ask.prompt, str) else None
            req = self._complete(ask, rid, prompt)
            self._check_room(ask, [req])
            self._log_routing(ask, [req])
            try:
                submitted = await self._producer.submit(
                    req, self.caps, watch=watch, owns_id=owns_id, held=held
                )
            except RefusedPredecessor as error:
                raise (chain.refused(error) if chain else error) from None
            n = None
        self._metrics.admitted(time.monotonic() - began)
        expires_s = min(req.queue_timeout_s, req.timeout_s)
        return Accepted(
            rid, n, submitted.position, submitted.submitted_ms, submitted.joined, expires_s
        )

    def _check(self, ask: Ask) -> None:
        settings = self._settings
        if ask.is_list:
            prompts = ask.prompt or ()
            _require(len(prompts) > 0, "prompt", "must not be an empty list")
            check_list(prompts, settings.list_limit)
        for name, value, cap, setting in (
            ("queue_timeout_s", ask.queue_timeout_s, settings.max_queue_s, "MAX_QUEUE_S"),
            ("timeout_s", ask.timeout_s, settings.max_timeout_s, "MAX_TIMEOUT_S"),
        ):
            good = value is None or 0 < value <= cap
            _require(good, name, f"must be above 0 and at most {cap:g} seconds ({setting})")
        check_integers(ask.sampling)
        _check_size("metadata", ask.metadata)
        _check_size("chat_template_kwargs", ask.chat_template_kwargs)
        self._check_workers(ask)

    def _check_workers(self, ask: Ask) -> None:
        """Optional powers are refused where the live workers lack them; with no worker yet, it decides."""
        able = [
            w.info for w in self._producer.known_workers if w.is_live and w.info.state.can_serve
        ]
        if ask.require_worker and not able:
            raise NoWorkers("no worker is ready, and the request asked for one", retry_after_s=10)
        wanted = {name for name, off in OPTIONAL.items() if ask.sampling.get(name, off) is not off}
        if ask.chat_template_kwargs:
            wanted.add("chat_template_kwargs")
        for name in sorted(wanted):
            if able and not all(name in info.capabilities for info in able):
                raise UnsupportedParameter(
                    f"{name}: the workers here do not support it", param=name
                )

    def _check_room(self, ask: Ask, reqs: Sequence[Req]) -> None:
        """What not even an empty queue has room for: to try again would be of no use."""
        field = "prompt" if ask.messages is None else "messages"
        n, tokens = len(reqs), sum(req.cost_tokens for req in reqs)
        # Of a list too all children lie in one shard.
        most = self.caps.share(self._settings.shards)
        for need, what, cap, setting in (
            (n, "requests", most[0], "QUEUE_CAP"),
            (tokens, "tokens", most[1], "QUEUE_TOKENS_CAP"),
            (n, "requests", most[2], "TENANT_QUEUE_CAP"),
            (tokens, "tokens", most[3], "TENANT_QUEUE_TOKENS_CAP"),
        ):
            fits = cap == 0 or need <= cap
            _require(fits, field, f"must need at most {cap} {what} ({setting}), needs {need}")

    def _complete(self, ask: Ask, rid: str, prompt: str | None) -> Req:
        """A request with nothing left open."""
        text = prompt if prompt is not None else _last_user_text(ask.messages)
        decision = self._router.route(text, ask.override_tokens) if ask.is_routed else None
        sampling = self._seed_sampling(ask, decision) if decision else self._neutral_sampling(ask)
        system_prompt = self._system_prompt(ask)
        settings = self._settings
        n_bytes = len((system_prompt or "").encode()) + (
            len(prompt.encode())
            if prompt is not None
            else sum(len(message.content.encode()) for message in ask.messages or ())
        )
        return Req(
            id=rid,
            sampling=sampling,
            bucket_key=_bucket_key(sampling),
            digest=ask.digest,
            tenant=ask.tenant,
            prompt=prompt,
            messages=ask.messages,
            system_prompt=system_prompt,
            raw=ask.raw,
            delivery=self._delivery(ask, decision, text),
            priority=ask.priority,
            cost_tokens=n_bytes // BYTES_PER_TOKEN + 1 + sampling.max_tokens + self._repeated(ask),
            queue_timeout_s=ask.queue_timeout_s or settings.max_queue_s,
            timeout_s=ask.timeout_s or settings.max_timeout_s,
            on_worker_loss=ask.on_worker_loss,
            depends_on=ask.depends_on,
            chat_template_kwargs=dict(ask.chat_template_kwargs or {}),
            traceparent=ask.traceparent,
        )

    def _repeated(self, ask: Ask) -> int:
        """Tokens of the answers that its placeholders stand for, by estimate: their lengths are not known yet."""
        if not ask.depends_on:
            return 0
        texts = (ask.prompt, ask.system_prompt, *(m.content for m in ask.messages or ()))
        n = placeholders.count(text for text in texts if isinstance(text, str))
        param = "prompt" if ask.messages is None else "messages"
        within = n <= MOST_PLACEHOLDERS
        _require(within, param, f"must have at most {MOST_PLACEHOLDERS} placeholders, has {n}")
        return n * self._settings.default_max_tokens

    def _system_prompt(self, ask: Ask) -> str | None:
        """The built-in default belongs to the first seed's face alone."""
        if ask.raw or ask.messages is not None:
            return None
        if ask.system_prompt is not None:
            return ask.system_prompt
        return self._prompts.current if ask.is_routed else self._prompts.stored

    def _seed_sampling(self, ask: Ask, decision: Decision) -> SamplingParams:
        settings, given = self._settings, ask.sampling
        temperature = given.get("temperature", settings.temperature)
        top_k = given.get("top_k")
        if top_k is None:
            # The default of 1 would make a request that only raises the temperature greedy all the same.
            is_raised = "temperature" in given and temperature > 0
            top_k = -1 if is_raised else settings.top_k
        return SamplingParams(
            max_tokens=min(decision.budget_tokens, settings.max_tokens_cap),
            min_tokens=0,
            temperature=temperature,
            top_p=given.get("top_p", settings.top_p),
            top_k=top_k,
            repetition_penalty=given.get("repetition_penalty", settings.repetition_penalty),
            frequency_penalty=given.get("frequency_penalty", settings.frequency_penalty),
            stop=settings.stops,
        )

    def _neutral_sampling(self, ask: Ask) -> SamplingParams:
        settings = self._settings
        # vLLM and the first seed start at 0 here; the record's own default of 1 is the second seed's.
        fields = {"max_tokens": settings.default_max_tokens, "min_tokens": 0, **ask.sampling}
        cap = settings.max_tokens_cap
        if ask.override_tokens is not None:
            fields["max_tokens"] = min(clamp_budget(ask.override_tokens), cap)
        params = SamplingParams.from_dict(fields)
        within = params.max_tokens <= cap
        _require(
            within, "max_tokens", f"must be at most {cap} (MAX_TOKENS_CAP), got {params.max_tokens}"
        )
        return params

    def _delivery(self, ask: Ask, decision: Decision | None = None, text: str = "") -> Delivery:
        return Delivery(
            trim=trim_for(self._settings, self._router, text, decision, ask.trim),
            metadata=dict(ask.metadata or {}),
            route=decision.route.value if decision else None,
            on_disconnect=ask.on_disconnect,
        )

    def _log_routing(self, ask: Ask, reqs: Sequence[Req]) -> None:
        if self._settings.log_token_routing and ask.is_routed:
            counts = Counter(req.sampling.max_tokens for req in reqs)
            routing_log.info("token_routing: %s", dict(sorted(counts.items())))


def trim_for(
    settings: ApiSettings,
    router: Router,
    prompt: str,
    decision: Decision | None,
    asked: bool | None,
) -> Trim | None:
    """The short-answer rules hold for what was routed short; asked for by name they always hold."""
    if asked is False or not (asked or decision):
        return None
    if asked or (decision and decision.route is Route.short):
        cut = settings.output_trim_examples and not router.is_code(prompt)
        return Trim(cut_examples=cut, max_sentences=settings.output_max_sentences)
    return STRIP_ONLY


def check_list(prompts: Sequence[Any], limit: int) -> None:
    n = len(prompts)
    _require(n <= limit, "prompt", f"must have at most {limit} items (LIST_LIMIT), got {n}")


def digest_of(body: Any, tenant: str, path: str) -> str:
    """Equal for bodies that say the same: order and spacing of their JSON do not count."""
    data = msgspec.json.encode([path, tenant, body], order="sorted")
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _require(holds: bool, param: str, rule: str) -> None:
    if not holds:
        raise InvalidRequest(f"{param}: {rule}", param=param)


def _check_size(param: str, value: Mapping[str, Any] | None) -> None:
    if not value:
        return
    try:
        msgspec.msgpack.encode(value)  # as the queue keeps it
    except OverflowError:
        raise InvalidRequest(f"{param}: holds an integer of over 64 bits", param=param) from None
    size = len(msgspec.json.encode(value))
    _require(
        size <= METADATA_BYTES, param, f"must be at most {METADATA_BYTES} bytes of JSON, got {size}"
    )


def _linked(ask: Ask, chain: Chain) -> Ask:
    """With the queue's ids for the client's names."""
    return replace(
        ask,
        prompt=chain.text("prompt", ask.prompt) if isinstance(ask.prompt, str) else None,
        messages=chain.messages(ask.messages) if ask.messages is not None else None,
        system_prompt=chain.text("system_prompt", ask.system_prompt) if ask.system_prompt else None,
        depends_on=chain.predecessors,
    )


def _last_user_text(messages: Sequence[Message] | None) -> str:
    return next((m.content for m in reversed(messages or ()) if m.role == "user"), "")


def _without_metadata(child: Req) -> Req:
    """A list's metadata is told once, with the list."""
    if not child.delivery.metadata:
        return child
    return msgspec.structs.replace(
        child, delivery=msgspec.structs.replace(child.delivery, metadata={})
    )
