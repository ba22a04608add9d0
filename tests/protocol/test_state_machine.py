"""The state machine's part of CI: the same examples each time."""

from __future__ import annotations

import redis

from tests.protocol import machine

EXAMPLES = 200


def test_no_rule_breaks_what_must_hold(broker_url: str) -> None:
    client = redis.Redis.from_url(broker_url)
    machine.run(client, EXAMPLES, is_repeatable=True)
    client.close()
