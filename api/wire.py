"""The HTTP server's protocol with a bound on the head of a request, which httptools itself does not have."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-type: text/plain; charset=utf-8\r\nconnection: close\r\n\r\n"
    b"the request line and headers are over 64 KiB"
)


class BoundedHttp(HttpToolsProtocol):
    _is_in_head = False
    _head_bytes = 0

    def data_received(self, data: bytes) -> None:
        if self._is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.transport.write(_TOO_LARGE)
                self.transport.close()
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        self._is_in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        super().on_headers_complete()
