"""Questions to warm up with, out of a file of the operator's. Knows no engine.

Reads what files for training hold. Nothing here raises: a worker starts whatever lies there, and the log
says in one line what was wrong. The questions themselves are never logged.
"""

from __future__ import annotations

import json
import logging
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from shared.sampling import is_unicode

log = logging.getLogger(__name__)
FILE_BYTES = 32 * 2**20  # of a file are looked at, and so many records
DOCUMENT_BYTES = 4 * 2**20  # read whole: as objects it takes thirty times as much memory
MOST_RECORDS = 100_000
LINE_BYTES = 2**20
FIELDS = ("instruction", "prompt", "question", "query", "input")
BOM = b"\xef\xbb\xbf"


class Unusable(Exception):
    """The text says what is wrong with a file, a line or a record."""


def load_user_prompts(path: str | Path | None, limit: int) -> list[str]:
    """The first `limit` questions in the file's order, trimmed; [] where there are none.

    A name that ends in .jsonl, in any case of letters, is read line by line, and a bad line costs itself
    alone; everything else is one JSON document: a list, or {"data": a list}. Of a record counts the first
    message of the role `user` with a text, else the first text among FIELDS.
    """
    if not path or limit <= 0:
        return []
    found: list[str] = []
    n_bad, first_bad, fault = 0, "", ""
    try:
        for place, record in _records(Path(path)):
            try:
                found.append(_question(record))
            except Unusable as error:
                n_bad += 1
                first_bad = first_bad or f"{place}: {error}"
            if len(found) == limit:
                break
    except FileNotFoundError:
        log.info("warm-up file %s is not there", path)
    except Unusable as error:
        fault = str(error)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        fault = f"cannot be read: {why}"
    skipped = f"{n_bad} records skipped, the first of them {first_bad}" if n_bad else ""
    if told := "; ".join(filter(None, (fault, skipped))):
        log.warning("warm-up file %s: %s; %d questions taken", path, told, len(found))
    return found


def _records(path: Path) -> Iterator[tuple[str, Any]]:
    """What is read, with its place; an Unusable in place of a record that cannot be."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):  # a pipe would be waited for
        raise Unusable("is a folder" if stat.S_ISDIR(mode) else "is no file")
    with path.open("rb") as file:
        if path.suffix.lower() == ".jsonl":
            yield from _lines(file)
        else:
            yield from _document(file)


def _lines(file: BinaryIO) -> Iterator[tuple[str, Any]]:
    for number in range(1, MOST_RECORDS + 1):
        raw = file.readline(LINE_BYTES + 1)
        if not raw:
            return
        is_long = len(raw) > LINE_BYTES
        while len(raw) > LINE_BYTES and not raw.endswith(b"\n") and file.tell() <= FILE_BYTES:
            raw = file.readline(LINE_BYTES + 1)  # the rest of it
        if file.tell() > FILE_BYTES:
            raise Unusable(f"only its first {FILE_BYTES >> 20} MiB are read")
        if is_long:
            yield f"line {number}", Unusable(f"longer than {LINE_BYTES >> 20} MiB")
        elif line := (raw.removeprefix(BOM) if number == 1 else raw).strip():
            yield f"line {number}", _parsed(line)
    raise Unusable(f"only its first {MOST_RECORDS} lines are read")


def _document(file: BinaryIO) -> Iterator[tuple[str, Any]]:
    raw = file.read(DOCUMENT_BYTES + 1)
    if len(raw) > DOCUMENT_BYTES:
        raise Unusable(f"longer than {DOCUMENT_BYTES >> 20} MiB, which only .jsonl may be")
    data = _parsed(raw.removeprefix(BOM))
    if isinstance(data, Unusable):
        raise data
    rows = data.get("data") if isinstance(data, dict) else data
    if not isinstance(rows, list):
        raise Unusable('neither a list nor {"data": a list}')
    for number, row in enumerate(rows[:MOST_RECORDS], 1):
        yield f"record {number}", row


def _parsed(raw: bytes) -> Any:
    """As Python reads JSON, which takes NaN; an Unusable where it is none."""
    try:
        return json.loads(raw.decode())
    except UnicodeDecodeError:
        return Unusable("not UTF-8")
    except json.JSONDecodeError:
        return Unusable("not JSON")
    except ValueError:
        return Unusable("holds a number of thousands of digits")
    except RecursionError:
        return Unusable("nested too deeply")


def _question(record: Any) -> str:
    if isinstance(record, Unusable):
        raise record
    if not isinstance(record, dict):
        raise Unusable("no object")
    for text in _candidates(record):
        if isinstance(text, str) and text.strip() and is_unicode(text):
            return text.strip()
    raise Unusable("no question in it")


def _candidates(record: dict[str, Any]) -> Iterator[Any]:
    messages = record.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, dict) and message.get("role") == "user":
            yield message.get("content")
    for name in FIELDS:
        yield record.get(name)
