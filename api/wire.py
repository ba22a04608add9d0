"""The HTTP server's protocol with a bound on heads and trailers, which httptools itself does not have."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-type: text/plain; charset=utf-8\r\nconnection: close\r\n\r\n"
    b"the request line and headers are over 64 KiB"
)


class BoundedHttp(HttpToolsProtocol):
    """Counts what comes in without a head or a piece of a body being complete: head, trailers, chunk extensions."""

    _is_in_head = False
    _open_bytes = 0

    def data_received(self, data: bytes) -> None:
        self._open_bytes += len(data)
        if self._is_in_head and self._open_bytes > MAX_HEAD_BYTES:
            self.transport.write(_TOO_LARGE)
            self.transport.close()
            return
        super().data_received(data)
        # Trailers would be kept until the last of them. The answer may have begun, so nothing is said.
        if not self._is_in_head and self._open_bytes > MAX_HEAD_BYTES:
            self.transport.close()

    def on_message_begin(self) -> None:
        self._is_in_head, self._open_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_head, self._open_bytes = False, 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._open_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._open_bytes = 0
        super().on_message_complete()
