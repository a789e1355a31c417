"""`ratelimit restart`: whom it signals, and whom it does not."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ratelimit_service.errors import RateLimitError
from ratelimit_service.runtime.restart import restart
from tests.runtime.conftest import Start
from tests.servers.process import free_port
from tests.servers.redis import RedisServer
from tests.servers.service import COMMAND
from tests.waiting import PATIENCE_SECONDS


class Impostor:
    """An HTTP server that answers everything with the same JSON."""

    def __init__(self, answer: object, listens: str = "127.0.0.1") -> None:
        body = json.dumps(answer).encode()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        class Server(ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in listens else socket.AF_INET
            daemon_threads = True

        self._server = Server((listens, 0), Handler)
        self.port = self._server.server_port
        self.place = f"127.0.0.1:{self.port}"

    def __enter__(self) -> Impostor:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def service(pid: object) -> dict[str, object]:
    """What a service with one worker shows, with a pid that may not be its own."""
    answer: dict[str, object] = {"pid": pid, "version": "1", "restarts": 0, "restarting": False}
    return {**answer, "restart_error": "", "workers": [{"worker": 1, "pid": 7}]}


@pytest.fixture
def signalled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The pids that were to get a signal; none does, for what a test finds may be any process."""
    pids: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, _: pids.append(pid))
    return pids


OTHERS: dict[str, Callable[[], int]] = {
    "everybody": lambda: -1,
    "the group": lambda: 0,
    "another group": lambda: -os.getppid(),
    "init": lambda: 1,
    "the parent": os.getppid,
    "nobody": lambda: 1 << 22,
}


@pytest.mark.parametrize("pid", OTHERS.values(), ids=OTHERS.keys())
def test_nobody_else_is_signalled(signalled: list[int], pid: Callable[[], int]) -> None:
    """Whatever pid an HTTP port names, only a process that holds its end of the call is signalled.

    Its own pid is one: then it may as well be the service.
    """
    with (
        Impostor(service(pid())) as impostor,
        pytest.raises(RateLimitError, match=r"run this where the service runs|another user's"),
    ):
        list(restart(impostor.place, 0))
    assert signalled == []

    with (
        Impostor(service(os.getpid())) as impostor,
        pytest.raises(RateLimitError, match="is still restarting"),
    ):
        list(restart(impostor.place, 0))
    assert signalled == [os.getpid()]


@pytest.mark.parametrize(
    "answer",
    [
        7,
        [],
        {},
        {"pid": 7},
        {"pid": "7", "workers": []},
        {"pid": True, "workers": []},
        {"pid": 7, "workers": [{"worker": 1, "pid": 7}]},
        {**service(7), "workers": [7]},
    ],
)
def test_something_else_answers(signalled: list[int], answer: object) -> None:
    """What answers otherwise than a service is told to be none."""
    with (
        Impostor(answer) as impostor,
        pytest.raises(RateLimitError, match=f"at http://{impostor.place} is no rate limit service"),
    ):
        list(restart(impostor.place, 0))
    assert signalled == []


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


IPV6 = pytest.mark.skipif(not has_ipv6(), reason="IPv6")


@pytest.mark.parametrize(
    ("listens", "address"),
    [
        ("0.0.0.0", "127.0.0.1"),
        ("0.0.0.0", "localhost"),
        pytest.param("::", "127.0.0.1", marks=IPV6),
        pytest.param("::", "[::1]", marks=IPV6),
    ],
)
def test_over_any_address(signalled: list[int], listens: str, address: str) -> None:
    """The service is known for the one that answers over IPv4, IPv6, and sockets for both."""
    with (
        Impostor(service(os.getpid()), listens) as impostor,
        pytest.raises(RateLimitError, match="is still restarting"),
    ):
        list(restart(f"{address}:{impostor.port}", 0))
    assert signalled == [os.getpid()]


@IPV6
def test_service_at_a_socket_for_both(start: Start, own_redis: RedisServer) -> None:
    """A service that listens over IPv6 and IPv4 is restarted over IPv4."""
    port = free_port()
    start("--store", own_redis.url, "--workers", "1", "--http", f"[::]:{port}")
    command = [COMMAND, "restart", "--http", f"127.0.0.1:{port}"]

    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].startswith("restarted: version ")
