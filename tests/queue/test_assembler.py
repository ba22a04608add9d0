"""A reader's text from chunks that come twice, overlap, are missing or belong to another attempt."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.queue.assembler import Assembler, Reset, Text, merged
from shared.request import Chunk

TEXTS = st.text(st.sampled_from("ab é漢𝄞👩‍🚀\n"), max_size=30)


class Client:
    """What a reader shows: it appends, and starts anew at a reset."""

    def __init__(self, text: str = "") -> None:
        self.text = text

    def take(self, events: list[Text | Reset]) -> None:
        for event in events:
            if isinstance(event, Reset):
                self.text = ""
            else:
                assert event.offset == len(self.text), "a gap or a repetition"
                self.text += event.text


class Run:
    """One attempt at a text, and pieces of it as they may reach a reader."""

    def __init__(self, attempt: int, token: str, text: str) -> None:
        self.attempt, self.token, self.text = attempt, token, text

    def piece(self, start: int, end: int) -> Chunk:
        return Chunk(self.attempt, start, self.text[start:end], self.token)


@st.composite
def histories(draw: Any) -> tuple[list[Run], list[tuple[Run, Chunk]]]:
    """Runs in their order, and what is heard of them: any pieces, in any order within a run, late ones too."""
    texts = draw(st.lists(TEXTS, min_size=1, max_size=4))
    numbers = sorted(draw(st.integers(1, 3)) for _ in texts)
    runs = [Run(n, f"t{i}", text) for i, (n, text) in enumerate(zip(numbers, texts, strict=True))]
    heard: list[tuple[Run, Chunk]] = []
    for i, run in enumerate(runs):
        for _ in range(draw(st.integers(0, 8))):
            # Now and then one of a run before, on its way for long; a run that was not heard of yet it cannot be.
            known = [r for r in runs[:i] if any(r is h for h, _ in heard)]
            of = draw(st.sampled_from([run, run, run, *known]))
            start = draw(st.integers(0, len(of.text)))
            heard.append((of, of.piece(start, draw(st.integers(start, len(of.text))))))
    return runs, heard


@settings(max_examples=300, deadline=None)
@given(histories())
def test_whatever_comes_a_reader_sees_a_beginning_of_one_attempt_and_ends_with_the_final_text(
    history: tuple[list[Run], list[tuple[Run, Chunk]]],
) -> None:
    runs, heard = history
    assembler, client = Assembler(), Client()
    newest = 0
    for run, chunk in heard:
        newest = max(newest, runs.index(run))
        client.take(assembler.add(chunk))
        assert runs[newest].text.startswith(client.text)
        assert len(client.text) == assembler.offset
    last = runs[-1]
    client.take(assembler.complete(last.attempt, last.token, last.text))
    assert client.text == last.text
    assert not assembler.has_gap


@settings(max_examples=200, deadline=None)
@given(TEXTS, st.data())
def test_a_reader_that_comes_back_gets_the_rest_and_nothing_twice(text: str, data: Any) -> None:
    run = Run(2, "t", text)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))) | {0, len(text)})
    pieces = [run.piece(a, b) for a, b in pairwise(cuts)]
    had = data.draw(st.integers(0, len(text)))
    n_seen = data.draw(st.integers(0, len(pieces)))
    assembler, client = Assembler((2, had)), Client(text[:had])
    for piece in pieces[:n_seen]:
        client.take(assembler.add(piece))
    client.take(assembler.complete(2, "t", text))
    assert client.text == text


@settings(max_examples=100, deadline=None)
@given(histories())
def test_texts_that_follow_each_other_are_one(
    history: tuple[list[Run], list[tuple[Run, Chunk]]],
) -> None:
    assembler = Assembler()
    events = [event for _, chunk in history[1] for event in assembler.add(chunk)]
    one_by_one, at_once = Client(), Client()
    one_by_one.take(events)
    at_once.take(merged(events))
    assert at_once.text == one_by_one.text
    assert not any(isinstance(a, Text) and isinstance(b, Text) for a, b in pairwise(merged(events)))


def test_a_gap_is_known_until_it_is_filled() -> None:
    assembler = Assembler()
    assert assembler.add(Chunk(1, 0, "ab")) == [Text(1, 0, "ab")]
    assert assembler.add(Chunk(1, 4, "ef")) == []
    assert assembler.has_gap
    assert assembler.add(Chunk(1, 2, "cd")) == [Text(1, 2, "cd")]
    assert assembler.has_gap
    assert assembler.add(Chunk(1, 4, "ef")) == [Text(1, 4, "ef")]
    assert not assembler.has_gap


def test_an_empty_chunk_tells_that_something_is_missing() -> None:
    assembler = Assembler()
    assert assembler.add(Chunk(1, 3, "")) == []
    assert assembler.has_gap


def test_a_reader_that_has_seen_nothing_needs_no_reset() -> None:
    assembler = Assembler()
    assert assembler.add(Chunk(2, 0, "new")) == [Text(2, 0, "new")]


def test_a_new_attempt_resets_at_once_though_its_beginning_is_missing() -> None:
    assembler = Assembler()
    assembler.add(Chunk(1, 0, "old"))
    assert assembler.add(Chunk(2, 5, "end")) == [Reset(2)]
    assert assembler.has_gap
    assert assembler.complete(2, "", "the whole") == [Text(2, 0, "the whole")]


def test_the_same_number_with_another_token_is_another_attempt_and_there_is_no_way_back() -> None:
    assembler = Assembler()
    assembler.add(Chunk(1, 0, "before", "a"))
    assert assembler.add(Chunk(1, 0, "after ", "b")) == [Reset(1), Text(1, 0, "after ")]
    assert assembler.add(Chunk(1, 6, "x", "a")) == []
    assert assembler.complete(1, "b", "after all") == [Text(1, 6, "all")]


def test_an_attempt_that_won_and_was_never_heard_of_takes_the_place_of_the_other() -> None:
    assembler = Assembler()
    assembler.add(Chunk(1, 0, "lost", "a"))
    assert assembler.complete(2, "b", "won") == [Reset(2), Text(2, 0, "won")]


def test_an_outcome_that_names_no_attempt_is_told_by_its_token() -> None:
    followed, left = Assembler(), Assembler()
    for assembler in (followed, left):
        assembler.add(Chunk(1, 0, "so", "a"))
    assert followed.complete(0, "a", "so far") == [Text(1, 2, " far")]
    assert left.complete(0, "b", "so far") == [Reset(2), Text(2, 0, "so far")]


def test_a_place_that_never_was_ends_with_the_final_text_all_the_same() -> None:
    assembler = Assembler((9, 3))
    assert assembler.add(Chunk(1, 0, "abc", "a")) == []
    assert assembler.complete(1, "a", "abc") == [Reset(1), Text(1, 0, "abc")]
