"""`ratelimit demo`: a service and an Envoy to try limits with."""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path

from tests.e2e.conftest import need_envoy
from tests.servers.process import Process, free_port, listens, wait_until
from tests.servers.service import http


def test_demo(tmp_path: Path) -> None:
    """It limits a user through Envoy, takes a changed rule at once, and ends both on SIGTERM."""
    need_envoy()
    port, grpc, http_port = free_port(), free_port(), free_port()
    words = [sys.executable, "-m", "ratelimit_service", "demo", str(tmp_path / "d")]
    words += ["--port", str(port), "--grpc", str(grpc), "--http", str(http_port)]
    demo = Process(words, tmp_path / "log")
    demo.spawn()
    demo.wait_ready(lambda: "Ctrl-C ends both" in demo.log)
    assert http(f"http://127.0.0.1:{http_port}/readyz").status == 200

    def status() -> int:
        return http(f"http://127.0.0.1:{port}/", headers={"x-user": "alice"}).status

    wait_until(lambda: status() == 429, "the sixth request to be denied")
    rules = tmp_path / "d" / "rules" / "demo.yaml"
    rules.write_text(rules.read_text().replace("requests_per_unit: 5", "requests_per_unit: 500"))
    wait_until(lambda: status() == 200, "the new rule")

    demo.signal(signal.SIGTERM)
    assert demo.wait() == 0
    assert not any(map(listens, (port, grpc, http_port)))


def test_port_that_is_taken(tmp_path: Path) -> None:
    """A port in use is named, with the flag for another, and nothing is started."""
    need_envoy()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = [sys.executable, "-m", "ratelimit_service", "demo", str(tmp_path / "d")]
        demo = Process([*words, "--grpc", str(port), "--port", "0"], tmp_path / "log")
        demo.spawn()
        assert demo.wait() == 2

    assert demo.log == (
        f"ratelimit: port {port}: Address already in use; name another with --grpc\n"
    )
    assert not (tmp_path / "d").exists()
