"""`python -m api`: settings, logging, the server, and the order of stopping."""

from __future__ import annotations

import logging
import signal
import socket
import sys

import uvicorn
from fastapi import FastAPI

from api.app import build_app
from api.deps import Services
from api.drain import CARRY_ON_S
from api.settings import ApiSettings
from api.wire import BoundedHttp
from shared.errors import SettingsError
from shared.log import hold_lines, set_up_logging
from shared.open_files import raise_open_files
from shared.settings import unknown_names

log = logging.getLogger("api")
# After the waiting callers have been let go, their replies still have to leave.
FLUSH_S = 1.0


class Server(uvicorn.Server):
    """Tells the services when it stops, so that waiting callers are let go within the grace."""

    def __init__(self, config: uvicorn.Config, services: Services) -> None:
        super().__init__(config)
        self._services = services

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._services.drain.begin()
        await super().shutdown(sockets)


def server_for(app: FastAPI, settings: ApiSettings) -> Server:
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http=BoundedHttp,
        ws="none",
        log_config=None,
        access_log=settings.access_log,
        # Client addresses decide who may administrate, so no header may name them.
        proxy_headers=False,
        server_header=False,
        # A caller that is let go may wait for one more call to a broker that is away.
        timeout_graceful_shutdown=int(settings.api_drain_s + CARRY_ON_S + FLUSH_S) + 1,
    )
    return Server(config, app.state.services)


def main() -> int:
    hold_lines()
    try:
        settings = ApiSettings.load()
        set_up_logging(settings)
        app = build_app(settings)
    except SettingsError as error:
        print(f"api: {error.message}", file=sys.stderr)
        return 2
    for line in unknown_names():
        log.warning("%s", line)
    raise_open_files()
    # The server stops in order and only then lets the signal through, to whoever had it before.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        server_for(app, settings).run()
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
