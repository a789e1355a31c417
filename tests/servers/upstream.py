"""What Envoy forwards to: shows the request's headers, and adds those it is asked for.

It counts what is under way at a time, and holds it on request.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    """The body does not wait until Envoy has acknowledged the headers."""

    def do_GET(self) -> None:
        assert isinstance(self.server, _Server)
        with self.server.under_way():
            self._answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.do_GET()

    def _answer(self) -> None:
        headers = {key.lower(): value for key, value in self.headers.items()}
        body = headers.pop("answer-body", json.dumps(headers)).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        for name, value in headers.items():
            if name.startswith("answer-"):
                self.send_header(name.removeprefix("answer-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Says nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.may_go = threading.Event()
        self.may_go.set()
        self.now = self.most = 0
        self._lock = threading.Lock()

    @contextmanager
    def under_way(self) -> Iterator[None]:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        self.may_go.wait(30)
        with self._lock:  # before the answer: who has it may ask again at once
            self.now -= 1
        yield


class Upstream:
    """An HTTP server in a thread; a request's `answer-x: 1` comes back as `x: 1`.

    That of `answer-body` is the answer's body.
    """

    def __init__(self) -> None:
        self._server = _Server()
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def under_way(self) -> int:
        """The requests that have come and are not answered."""
        return self._server.now

    @property
    def most_at_once(self) -> int:
        """The most requests that ever were."""
        return self._server.most

    def hold(self) -> None:
        """Lets requests wait until they are let go."""
        self._server.may_go.clear()

    def let_go(self) -> None:
        """Answers all requests."""
        self._server.may_go.set()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
