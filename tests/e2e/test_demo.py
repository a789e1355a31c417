"""`ratelimit demo`: a service and an Envoy to try limits with, as docs/tutorial.md does."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.inside import Inside, inside
from tests.e2e.conftest import need_envoy
from tests.http_client import http
from tests.servers.process import Process, free_port, listens, wait_until

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"
ANY_PATH = "                        - match: {prefix: /}\n"


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


def test_ports_that_are_taken(tmp_path: Path, spawn: Spawn) -> None:
    """A port that no flag has named is another one where it is taken, and each is told.

    So it is with a configuration that is kept. Its other lines stay.
    """
    need_envoy()
    with ExitStack() as taken:
        usual = [port for port in range(8_080, 8_083) if take(taken, port)]
        words = [sys.executable, "-m", "ratelimit_service", "demo", str(tmp_path / "d")]
        demo = spawn([*words, "--port", str(free_port())], tmp_path / "log")
        demo.wait_ready(lambda: "Ctrl-C ends both" in demo.log)
        demo.signal(signal.SIGTERM)
        assert demo.wait() == 0
        told = re.findall(r"^Port (\d+) is taken, so --(\w+) is (\d+)\.$", demo.log, re.MULTILINE)
        assert {int(each[0]) for each in told} >= set(usual)
        config = tmp_path / "d" / "envoy.yaml"
        before = config.read_text()
        port = int(re.findall(r"port_value: (\d+)", before)[0])
        assert take(taken, port)

        again = spawn(words, tmp_path / "again.log")
        again.wait_ready(lambda: "Ctrl-C ends both" in again.log)
        (found,) = re.findall(
            rf"^Port {port} is taken, so --port is (\d+)\.$", again.log, re.MULTILINE
        )
        assert http(f"http://127.0.0.1:{found}/").text == "allowed\n"
        again.signal(signal.SIGTERM)
        assert again.wait() == 0
        assert config.read_text() == before.replace(
            f"port_value: {port}}}", f"port_value: {found}}}"
        )


def take(taken: ExitStack, port: int) -> bool:
    """Whether a port is in use from now on, by this test or by whoever has it."""
    with contextlib.suppress(OSError):
        taken.enter_context(socket.create_server(("0.0.0.0", port)))
    return True


def test_start_counts_nothing(tmp_path: Path, spawn: Spawn) -> None:
    """What the demo asks at its start is no hit of any rule, also of one for all requests."""
    need_envoy()
    words = [sys.executable, "-m", "ratelimit_service", "demo", str(tmp_path / "d")]
    port = free_port()
    words += [
        "--port",
        str(port),
        *(f"--{name}={free_port()}" for name in ("grpc", "http", "admin")),
    ]
    demo = spawn(words, tmp_path / "log")
    demo.wait_ready(lambda: "Ctrl-C ends both" in demo.log)
    demo.signal(signal.SIGTERM)
    demo.wait()
    rules, config = tmp_path / "d" / "rules" / "demo.yaml", tmp_path / "d" / "envoy.yaml"
    rules.write_text(
        "domain: demo\ndescriptors:\n"
        "- {key: generic_key, rate_limit: {unit: year, requests_per_unit: 2}}\n"
    )
    by_user = "request_headers: {header_name: x-user, descriptor_key: user}"
    assert by_user in config.read_text()
    config.write_text(
        config.read_text().replace(by_user, "generic_key: {descriptor_value: all}", 1)
    )

    again = spawn(words, tmp_path / "again.log")
    again.wait_ready(lambda: "Ctrl-C ends both" in again.log)

    assert [http(f"http://127.0.0.1:{port}/").status for _ in range(3)] == [200, 200, 429]


def test_configuration_without_the_ports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A configuration in which a port is not found is neither started nor changed."""
    need_envoy()
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "envoy.yaml").write_text("port_value: 10000}")

    said = Inside(monkeypatch, capsys)("demo", tmp_path / "d")

    assert said.code == 2
    assert "envoy.yaml does not have the port of --port where it was: delete the file" in said.err
    assert (tmp_path / "d" / "envoy.yaml").read_text() == "port_value: 10000}"


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
