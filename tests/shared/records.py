"""Records to test with: complete ones, and what hypothesis draws."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from shared.request import (
    Body,
    Delivery,
    Event,
    FinishReason,
    Message,
    Outcome,
    Priority,
    Record,
    Report,
    Req,
    Trim,
    Usage,
)
from shared.worker_info import StartStep, WorkerInfo, WorkerState
from tests.shared.strategies import params

text = st.text(max_size=12)
names = st.text("abc019-._é", max_size=8)
counts = st.integers(0, 2**53)
seconds = st.floats(0, 1e9)
plain_json: SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | text | st.floats(-1e9, 1e9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
metadata = st.dictionaries(text, plain_json, max_size=3)
events = st.lists(st.builds(Event, at_ms=counts, kind=names, detail=names), max_size=3)

deliveries = st.builds(
    Delivery,
    trim=st.none() | st.builds(Trim, cut_examples=st.booleans(), max_sentences=counts),
    metadata=metadata,
    route=st.none() | names,
    retried_from=st.none() | names,
    on_disconnect=st.sampled_from(["cancel", "continue"]),
)
messages = st.builds(Message, role=names, content=text, name=st.none() | names)
reqs = st.builds(
    Req,
    id=names,
    sampling=params,
    bucket_key=names,
    digest=names,
    tenant=names,
    prompt=st.none() | text,
    messages=st.none() | st.lists(messages, max_size=3).map(tuple),
    system_prompt=st.none() | text,
    raw=st.booleans(),
    delivery=deliveries,
    priority=st.sampled_from(Priority),
    cost_tokens=counts,
    queue_timeout_s=seconds,
    timeout_s=seconds,
    stream=st.booleans(),
    on_worker_loss=st.sampled_from(["error", "restart"]),
    depends_on=st.lists(names, max_size=2).map(tuple),
    webhook=st.none() | names,
    lora=st.none() | names,
    chat_template_kwargs=metadata,
    traceparent=st.none() | names,
)
bodies = st.builds(
    Body,
    text=text,
    token_ids=st.lists(st.integers(0, 2**31 - 1), max_size=4).map(tuple),
    reasoning=st.none() | text,
    logprobs=st.none() | st.lists(metadata, max_size=2),
)
usages = st.builds(
    Usage,
    prompt_tokens=counts,
    completion_tokens=counts,
    cached_tokens=counts,
    reasoning_tokens=counts,
)
reports = st.builds(
    Report,
    finish_reason=st.none() | st.sampled_from(FinishReason),
    stop_reason=st.none() | text | counts,
    usage=usages,
    inference_s=seconds,
    first_token_s=st.none() | seconds,
    batch_id=st.none() | names,
    batch_size=st.none() | counts,
    bucket_key=st.none() | names,
    engine=st.none() | names,
)
worker_infos = st.builds(
    WorkerInfo,
    id=names,
    state=st.sampled_from(WorkerState),
    host=names,
    pid=counts,
    slots=counts,
    capabilities=st.lists(names, max_size=3).map(tuple),
    effective_args=metadata,
    start_report=st.lists(
        st.builds(StartStep, name=names, seconds=seconds, error=st.none() | text), max_size=2
    ).map(tuple),
    reason=st.none() | text,
    started_at=seconds,
    tokens_per_s=seconds,
)


def record(**changes: Any) -> Record:
    plain = Record(
        v=1,
        state="Q",
        entry_id="1-0",
        lane=1,
        tenant="anonymous",
        cost_tokens=40,
        submitted_ms=1_000,
        deadline_ms=2_000,
        queue_until_ms=2_000,
        worker="",
        token="",
        started_ms=0,
        grants=0,
        crashes=0,
        attempts=0,
        apis=["a1"],
        delivery_json="",
        digest="d",
        parent="",
        depends_on=[],
        webhook="",
        events=[Event(1_000, "submitted")],
        traceparent="",
        claimed_ms=0,
    )
    return msgspec.structs.replace(plain, **changes)


def outcome(**changes: Any) -> Outcome:
    plain = Outcome(
        v=1,
        state="F",
        code="",
        message="",
        worker="w1",
        token="1-1",
        attempts=0,
        crashes=0,
        submitted_ms=1_000,
        started_ms=1_100,
        ended_ms=1_200,
        digest="d",
        tenant="anonymous",
        parent="",
        delivery_json="",
        report_json="",
        events=[],
    )
    return msgspec.structs.replace(plain, **changes)


records = st.builds(
    record,
    state=st.sampled_from("WLQRK"),
    entry_id=names,
    lane=st.integers(0, 2),
    submitted_ms=counts,
    apis=st.lists(names, max_size=4),
    events=events,
    tag=seconds,
)
outcomes = st.builds(
    outcome, state=st.sampled_from("FCE"), message=text, ended_ms=counts, events=events
)
