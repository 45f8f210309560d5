"""A server of files over HTTP on this machine, which can be told to fail."""

from __future__ import annotations

import contextlib
import http.server
import re
import threading
from collections.abc import Iterator
from typing import Any


class FileServer(http.server.ThreadingHTTPServer):
    """Serves ``files`` by path, with ranges and etags, and lists folders. ``asked`` holds each request's path and range."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, str, str | None]] = []
        #: Whether parts of files, their lengths and lists of folders are served.
        self.parts = self.lengths = self.lists = True
        #: The status of every answer, where it is not that of success.
        self.status: int | None = None
        #: The header X-Key that a request must have.
        self.key: str | None = None
        #: Bytes that are left out at the end of each part.
        self.short = 0

    def handle_error(self, *_: Any) -> None:
        """Print nothing: clients end connections when they have read enough."""

    @property
    def url(self) -> str:
        """The address, with a slash at its end."""
        return f"http://127.0.0.1:{self.server_port}/"


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise each answer takes 40 ms
    server: FileServer

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def do_HEAD(self) -> None:
        self._answer(has_body=False)

    def do_GET(self) -> None:
        self._answer(has_body=True)

    def _answer(self, *, has_body: bool) -> None:
        server, path = self.server, self.path.partition("?")[0].lstrip("/")
        wanted = self.headers.get("Range")
        server.asked.append((self.command, self.path, wanted))
        status, body, headers = 200, server.files.get(path), {"ETag": f'"{hash(server.files.get(path))}"'}
        if body is None and server.lists:
            below = [name[len(path) :].lstrip("/") for name in server.files if _is_in(name, path)]
            inside = sorted({name.partition("/")[0] + name.partition("/")[1] for name in below})
            body = "".join(f'<a href="{name}">{name}</a>\n' for name in inside).encode() or None
        refusal = 403 if server.key not in (None, self.headers.get("X-Key")) else server.status
        if refusal is not None or body is None:
            status, body = refusal or 404, b"no"
        elif wanted and server.parts:
            begin, end = re.fullmatch(r"bytes=(\d+)-(\d+)", wanted).groups()
            status = 206
            headers["Content-Range"] = f"bytes {begin}-{end}/{len(body)}"
            # Without a copy, which would outlive the answer for a moment.
            body = memoryview(body)[int(begin) : int(end) + 1 - server.short]
        self.send_response(status)
        if server.lengths:
            headers["Content-Length"] = str(len(body))
        else:
            headers["Connection"] = "close"
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if has_body:
            with contextlib.suppress(ConnectionError):  # a client that has read enough
                self.wfile.write(body)


def _is_in(name: str, folder: str) -> bool:
    return name.startswith(f"{folder.rstrip('/')}/") if folder else True


@contextlib.contextmanager
def file_server() -> Iterator[FileServer]:
    """A server that runs while the block does."""
    with FileServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
