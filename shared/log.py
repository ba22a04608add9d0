"""Logging for every process: text or JSON lines with the request id in context; prompts are never logged."""

from __future__ import annotations

import contextvars
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from logging.handlers import MemoryHandler

from shared.settings import LogSettings

HELD_MAX = 1_000
_request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="-")


@contextmanager
def request_context(request_id: str) -> Iterator[None]:
    """Every line logged inside carries this request id."""
    token = _request_id.set(request_id)
    try:
        yield
    finally:
        _request_id.reset(token)


class _WithRequestId(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.request_id = _request_id.get()
        return True


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "thread": record.threadName,
            "request_id": getattr(record, "request_id", "-"),
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def hold_lines() -> None:
    """Called first by each process's `__main__`: what is said while settings are read waits for `set_up_logging`,
    since they say how lines look.
    """
    logging.getLogger().addHandler(MemoryHandler(HELD_MAX, flushOnClose=False))


def set_up_logging(settings: LogSettings) -> None:
    """Called once by each process's `__main__`; everything goes to standard error, what was held back first."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_WithRequestId())
    if settings.log_format == "json":
        handler.setFormatter(_JsonLines())
    else:
        handler.setFormatter(
            logging.Formatter(
                "%(asctime)s %(levelname)-7s %(name)s [%(request_id)s] %(message)s",
            )
        )
    root = logging.getLogger()
    held = [line for old in root.handlers if isinstance(old, MemoryHandler) for line in old.buffer]
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level.upper())
    for record in held:
        if root.isEnabledFor(record.levelno):
            handler.handle(record)
    for noisy in ("httpx", "httpcore", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
