"""What is batched together: one bucket, or what may share a call of an engine whose rows are not free."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from shared.queue.claiming import Grant
from shared.request import Req
from shared.sampling import SamplingParams
from worker.batcher import Batcher, Item

PARAMS = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 3),
    min_tokens=st.just(0),
    temperature=st.sampled_from([0.0, 0.7]),
    top_p=st.sampled_from([0.9, 1.0]),
    stop=st.sampled_from([(), ("a",), ("b", "a"), ("a", "b")]),
)


def item(index: int, params: SamplingParams) -> Item:
    rid = f"q.0-{index}"
    req = Req(id=rid, sampling=params, bucket_key=params.bucket_key, digest="d", prompt="p")
    return Item(Grant(rid, "1-1", 1000, 1, 0, 0, [], b""), req, 0.0)


@given(st.lists(PARAMS, max_size=30), st.integers(1, 8))
def test_no_batch_mixes_keys_and_nothing_is_lost(params: list[SamplingParams], size: int) -> None:
    items = [item(i, p) for i, p in enumerate(params)]
    batches = Batcher("w", size).partition(items)
    assert sorted(i.grant.id for b in batches for i in b.items) == sorted(i.grant.id for i in items)
    assert all({i.req.bucket_key for i in b.items} == {b.bucket_key} for b in batches)
    assert all(1 <= len(b) <= size for b in batches)
    assert len({b.id for b in batches}) == len(batches)


def test_buckets_keep_the_order_of_first_appearance() -> None:
    one, two = SamplingParams(max_tokens=1), SamplingParams(max_tokens=2)
    batches = Batcher("w", 64).partition([item(0, two), item(1, one), item(2, two)])
    assert [[i.grant.id for i in b.items] for b in batches] == [["q.0-0", "q.0-2"], ["q.0-1"]]
    assert batches[0].params is batches[0].items[0].req.sampling


ROWS_SHARE = frozenset(SamplingParams.__struct_fields__) - {"echo", "max_tokens"}


@given(st.lists(PARAMS, max_size=30), st.integers(1, 8))
def test_where_rows_must_share_fields_no_batch_mixes_them_and_nothing_is_lost(
    params: list[SamplingParams], size: int
) -> None:
    items = [item(i, p) for i, p in enumerate(params)]
    batches = Batcher("w", size, ROWS_SHARE).partition(items)
    assert sorted(i.grant.id for b in batches for i in b.items) == sorted(i.grant.id for i in items)
    assert all(1 <= len(b) <= size for b in batches)
    place = {i.grant.id: at for at, i in enumerate(items)}
    for batch in batches:
        places = [place[i.grant.id] for i in batch.items]
        assert places == sorted(places)
        # Equal but for the limit; buckets themselves are never torn apart by what has no effect.
        keys = {structs.replace(i.req.sampling, max_tokens=9).bucket_key for i in batch.items}
        assert len(keys) == 1
        assert batch.params is batch.items[0].req.sampling


def test_requests_that_differ_in_their_limits_alone_share_a_call_where_rows_have_their_own() -> (
    None
):
    short, long = SamplingParams(max_tokens=1), SamplingParams(max_tokens=2)
    hot = SamplingParams(max_tokens=1, temperature=2.0)
    items = [item(0, long), item(1, hot), item(2, short), item(3, long)]
    batches = Batcher("w", 64, ROWS_SHARE).partition(items)
    assert [[i.grant.id for i in b.items] for b in batches] == [
        ["q.0-0", "q.0-2", "q.0-3"],
        ["q.0-1"],
    ]
    assert [len(b) for b in Batcher("w", 64).partition(items)] == [2, 1, 1]
