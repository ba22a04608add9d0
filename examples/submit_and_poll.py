"""Submit one request, look after it by its id, print the answer: `.venv/bin/python examples/submit_and_poll.py [URL]`.

The id works on every replica of the front door and after a restart of any part.
"""

from __future__ import annotations

import os
import sys

import httpx

URL = "http://127.0.0.1:8000"
KEY = os.environ.get("SLUICE_API_KEY")  # one of API_KEYS, where the service asks for one
HEADERS = {"authorization": f"Bearer {KEY}"} if KEY else {}
WAIT_S = 20


def main(url: str) -> None:
    with httpx.Client(base_url=url, headers=HEADERS, timeout=WAIT_S + 10) as client:
        body = {"prompt": "Why is the sky blue?", "max_tokens": 48, "temperature": 0.0}
        submitted = client.post("/requests", json=body).raise_for_status().json()
        print(f"submitted as {submitted['id']}, {submitted['queue_position']} ahead of it")

        # 202 means that it is not final yet; each call waits for up to WAIT_S seconds.
        while True:
            polled = client.get(f"/requests/{submitted['id']}", params={"wait": WAIT_S})
            polled.raise_for_status()
            if polled.status_code == httpx.codes.OK:
                break
            print(polled.json()["status"])

        final = polled.json()
        if final["status"] != "finished":
            raise SystemExit(f"{final['status']}: {final['error']['message']}")
        print(final["text"])
        print(f"{final['usage']['completion_tokens']} tokens, ended by {final['finish_reason']}")


if __name__ == "__main__":
    main(*(sys.argv[1:] or [URL]))
