"""Send many prompts as one list and take the answers in order: `.venv/bin/python examples/many_prompts.py [URL]`.

A list is taken as a whole or not at all; an item that fails leaves the others as they are.
"""

from __future__ import annotations

import os
import sys

import httpx

URL = "http://127.0.0.1:8000"
KEY = os.environ.get("SLUICE_API_KEY")  # one of API_KEYS, where the service asks for one
HEADERS = {"authorization": f"Bearer {KEY}"} if KEY else {}
ANIMALS = ("cat", "dog", "cow", "hen", "bee", "owl", "fox", "eel")


def main(url: str) -> None:
    prompts = [f"In one word: what does a {animal} eat?" for animal in ANIMALS]
    # The front door holds the line for up to SYNC_WAIT_S (360 s), so a client must wait longer than that.
    with httpx.Client(base_url=url, headers=HEADERS, timeout=400) as client:
        reply = client.post("/predict", json={"prompt": prompts})
        reply.raise_for_status()
    body = reply.json()
    for prompt, answer in zip(prompts, body["response"], strict=True):
        print(f"{prompt} {answer}")
    for failed in body.get("errors", ()):
        print(f"prompt {failed['index']} failed: {failed['message']}", file=sys.stderr)


if __name__ == "__main__":
    main(*(sys.argv[1:] or [URL]))
