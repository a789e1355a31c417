"""`ratelimit demo`: a service and an Envoy to try limits with, as docs/tutorial.md does."""

from __future__ import annotations

import importlib
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ratelimit_service.errors import SettingsError
from tests.cli.inside import Inside, inside
from tests.e2e.conftest import need_envoy
from tests.servers.process import Process, free_port, listens, wait_until
from tests.servers.service import http

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"
ANY_PATH = "                        - match: {prefix: /}\n"


demo_command = importlib.import_module("ratelimit_service.cli.demo")
"""The module: its package has a command of the same name."""

Spawn = Callable[[list[str], Path], Process]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Starts the demo; whatever becomes of the test, nothing of it goes on."""
    spawned: list[Process] = []

    def start(words: list[str], log: Path) -> Process:
        spawned.append(Process(words, log, family=True))
        spawned[-1].spawn()
        return spawned[-1]

    yield start
    for each in spawned:
        each.kill()


def test_demo(tmp_path: Path, spawn: Spawn) -> None:
    """It limits a user through Envoy, takes a changed rule at once, and ends both on SIGTERM.

    Started again it keeps what was changed: the route and the rule of docs/tutorial.md hold.
    """
    need_envoy()
    port, grpc, http_port = free_port(), free_port(), free_port()
    words = [sys.executable, "-m", "ratelimit_service", "demo", str(tmp_path / "d")]
    words += ["--port", str(port), "--grpc", str(grpc), "--http", str(http_port)]
    admin = free_port()
    demo = spawn([*words, "--admin", str(admin)], tmp_path / "log")
    demo.wait_ready(lambda: "Ctrl-C ends both" in demo.log)
    assert http(f"http://127.0.0.1:{http_port}/readyz").status == 200
    assert f"in a browser at http://127.0.0.1:{admin}/" in demo.log
    assert http(f"http://127.0.0.1:{admin}/").status == 200
    asked = inside("hit", "demo", "user=a", "--address", f"127.0.0.1:{port}")
    assert (asked.code, asked.out) == (2, "")
    assert asked.err == (
        f"ratelimit: the Envoy at 127.0.0.1:{port} answers UNKNOWN: allowed; "
        "name the service's own gRPC port with --address HOST:PORT\n"
    )

    def status() -> int:
        return http(f"http://127.0.0.1:{port}/", headers={"x-user": "alice"}).status

    wait_until(lambda: status() == 429, "the sixth request to be denied")
    rules = tmp_path / "d" / "rules" / "demo.yaml"
    rules.write_text(rules.read_text().replace("requests_per_unit: 5", "requests_per_unit: 500"))
    wait_until(lambda: status() == 200, "the new rule")

    demo.signal(signal.SIGTERM)
    assert demo.wait() == 0
    assert not any(map(listens, (port, grpc, http_port, admin)))

    rule, route = re.findall(r"```yaml\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)
    rules.write_text(rules.read_text() + rule)
    config = tmp_path / "d" / "envoy.yaml"
    config.write_text(config.read_text().replace(ANY_PATH, route + ANY_PATH, 1))
    again = spawn(words, tmp_path / "again.log")
    again.wait_ready(lambda: "Ctrl-C ends both" in again.log)
    (shown,) = re.findall(r"in a browser at (\S+),", again.log)
    assert http(shown).status == 200
    login = f"http://127.0.0.1:{port}/login"
    assert [http(login).status for _ in range(4)].count(429) in {0, 1}  # a minute may end
    wait_until(lambda: http(login).status == 429, "the fourth request of a minute to be denied")
    assert http(f"http://127.0.0.1:{port}/", headers={"x-user": "bob"}).status == 200

    again.signal(signal.SIGTERM)
    assert again.wait() == 0


def test_mistakes_of_before(tmp_path: Path, spawn: Spawn) -> None:
    """Rules that are not served are told at the start; a bad configuration by its name."""
    need_envoy()
    directory = tmp_path / "d"
    (directory / "rules").mkdir(parents=True)
    rule = "{key: user, rate_limit: {unit: minute, requests_per_minit: 5}}"
    (directory / "rules" / "demo.yaml").write_text(f"domain: demo\ndescriptors: [{rule}]\n")
    words = [sys.executable, "-m", "ratelimit_service", "demo", str(directory)]
    words += [f"--{name}={free_port()}" for name in ("port", "grpc", "http", "admin")]

    demo = spawn(words, tmp_path / "log")
    demo.wait_ready(lambda: "did you mean 'requests_per_unit'?" in demo.log)
    demo.signal(signal.SIGTERM)
    demo.wait()
    config = directory / "envoy.yaml"
    config.write_text(config.read_text().replace(ANY_PATH, ANY_PATH[1:], 1))
    again = spawn(words, tmp_path / "again.log")

    assert "The rules have a mistake, so not all limits hold:\n\n  rules: " in demo.log
    assert again.wait() == 2
    assert f"ratelimit: envoy with {config} has ended: " in again.log


def test_configuration_with_other_ports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A configuration that is kept, and has other ports than those asked for, is not started."""
    need_envoy()
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "envoy.yaml").write_text("port_value: 100001}")
    ports = [f"--{name}={free_port()}" for name in ("port", "grpc", "http")]

    said = Inside(monkeypatch, capsys)("demo", tmp_path / "d", *ports)

    assert said.code == 2
    assert "envoy.yaml does not have port" in said.err
    assert "name the one that it has with --port, or delete the file" in said.err


def test_usual_admin_port_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second demo shows its callers at a free port; one that is asked for must be free."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(demo_command, "_ADMIN_PORT", port)

        found = demo_command._admin_port(None)

        assert found not in {0, port}
        with pytest.raises(SettingsError, match=f"port {port}: .*name another with --admin"):
            demo_command._admin_port(port)


def test_port_that_is_taken(tmp_path: Path, spawn: Spawn) -> None:
    """A port in use is named, with the flag for another, and nothing is started."""
    need_envoy()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = [sys.executable, "-m", "ratelimit_service", "demo", str(tmp_path / "d")]
        demo = spawn([*words, "--grpc", str(port), "--port", "0"], tmp_path / "log")
        assert demo.wait() == 2

    assert demo.log == (
        f"ratelimit: port {port}: Address already in use; name another with --grpc\n"
    )
    assert not (tmp_path / "d").exists()
