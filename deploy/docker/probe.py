"""Health check of an image: `probe.py PORT PATH` exits with 0 where the path answers 200.

Standard library only, and no proxy that the environment names is asked.
"""

from __future__ import annotations

import http.client
import sys

TIMEOUT_S = 4.0


def is_healthy(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(0 if is_healthy(int(sys.argv[1]), sys.argv[2]) else 1)
