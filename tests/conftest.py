"""Fixtures that every test may use."""

from __future__ import annotations

from tests.broker import broker, broker_url, queue_name

__all__ = ["broker", "broker_url", "queue_name"]
