"""The start of a service with workers: what cannot be is said before anything serves."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ratelimit_service.cli.service_client import Client
from ratelimit_service.model import Code
from tests.runtime.callers import ask
from tests.runtime.conftest import RULES, Start
from tests.runtime.seen import REDIS, pids
from tests.servers.process import (
    Process,
    descendants,
    wait_until,
)
from tests.servers.redis import RedisServer
from tests.servers.service import COMMAND
from tests.waiting import PATIENCE_SECONDS


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--store", "redis://h:x/0"], "the store URL cannot be read: a port is no number"),
        (["--store", "memroy"], "store scheme 'memroy' is unknown: allowed are memory, redis://"),
        (["--store", "file:///nowhere"], "/nowhere"),
        (["--store", REDIS, "--second-store", "redis://h:x"], "the store URL cannot be read"),
    ],
)
def test_store_that_cannot_be(tmp_path: Path, flags: list[str], message: str) -> None:
    """A store that cannot be used is all that is said, before any worker's process is started."""
    (tmp_path / "edge.yaml").write_text(RULES % 2)
    started = tmp_path / "started"
    (tmp_path / "sitecustomize.py").write_text(f"open({str(started)!r}, 'a').write('1')")
    command = [COMMAND, "serve", "--rules", str(tmp_path / "edge.yaml"), "--workers", "2", *flags]
    command += ["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]

    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        timeout=PATIENCE_SECONDS,
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("ratelimit: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert started.read_text() == "1"


@pytest.mark.parametrize("flag", ["--grpc", "--http"])
@pytest.mark.parametrize("transport", ["h2", "grpcio"])
def test_port_that_is_taken(
    own_redis: RedisServer, tmp_path: Path, flag: str, transport: str
) -> None:
    """A port that is taken is all that is said, before any worker serves; nothing is left."""
    (tmp_path / "edge.yaml").write_text(RULES % 2)
    taken = f"127.0.0.1:{own_redis.port}"
    command = [COMMAND, "serve", "--rules", str(tmp_path), "--store", own_redis.url]
    command += ["--transport", transport]
    for each in ("--grpc", "--http"):
        command += [each, taken if each == flag else "127.0.0.1:0"]

    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )

    kind = {"--grpc": "gRPC", "--http": "HTTP"}[flag]
    assert done.returncode == 2
    assert done.stderr == (
        f"ratelimit: cannot open the {kind} port {taken}: Address already in use; "
        f"choose another with {flag} HOST:PORT\n"
    )


def test_unix_socket_that_is_taken(start: Start, own_redis: RedisServer, tmp_path: Path) -> None:
    """A second service on a Unix socket ends, and the first one keeps it."""
    address = f"unix:{tmp_path / 'grpc.sock'}"
    flags = ["--store", own_redis.url, "--workers", "1", "--grpc", address]
    start(*flags)
    command = [COMMAND, "serve", "--rules", str(tmp_path / "rules"), "--http", "127.0.0.1:0"]

    done = subprocess.run(
        [*command, *flags], capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )

    assert done.returncode == 2
    assert done.stderr.startswith(f"ratelimit: cannot open the gRPC port {address}: ")
    assert done.stderr.count("\n") == 1
    with Client(address) as client:
        assert ask(client) is Code.OK


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2])
def test_signals_to_all_while_workers_start(
    own_redis: RedisServer, tmp_path: Path, number: signal.Signals
) -> None:
    """What a terminal, a script or a service manager sends to all is told from a fault."""
    (tmp_path / "edge.yaml").write_text(RULES % 2)
    command = [COMMAND, "serve", "--rules", str(tmp_path / "edge.yaml"), "--store", own_redis.url]
    command += ["--workers", "2", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    service = Process(["setsid", *command], tmp_path / "log", family=True)
    service.spawn()
    wait_until(lambda: len(descendants(service.child.pid)) == 2, "the workers' processes")

    os.killpg(service.child.pid, number)

    if number not in {signal.SIGTERM, signal.SIGINT}:
        service.signal(signal.SIGTERM)
    assert service.wait() == 0
    assert "Traceback" not in service.log
    assert "ended before" not in service.log


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--store", "redis://nowhere:1/0"], ""),
        (["--rules", "xds://127.0.0.1:1"], ""),
        (["--store", "redis://localhost:port/0"], "the store URL"),
        (["--rules", "/nowhere"], "there is no such file or directory"),
        (["--tls-cert", "/nowhere"], "TLS needs both"),
        (["--workers", "2"], "needs a --store in Redis"),
        (["--grpc", "unix:/nowhere/its.sock"], "there is no directory /nowhere"),
    ],
)
def test_check(tmp_path: Path, flags: list[str], message: str) -> None:
    """--check tells whether a service would start, without starting it."""
    (tmp_path / "edge.yaml").write_text(RULES % 2)
    command = [COMMAND, "serve", "--rules", str(tmp_path), "--check", *flags]

    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )

    assert message in done.stderr
    assert (done.returncode, done.stdout) == ((2, "") if message else (0, "it would start\n"))


def test_check_of_rules_with_problems(tmp_path: Path) -> None:
    """A service would start with them, and --check says what it would not serve."""
    (tmp_path / "bad.yaml").write_text("domain: edge\ndescriptors: 3\n")
    command = [COMMAND, "serve", "--rules", str(tmp_path), "--check"]

    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )

    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [
            "it would start",
            "NOT served, see the errors above: domain edge",
            "no domain has rules, so the failure policy decides all: open",
        ],
    )


@pytest.mark.parametrize("more", [0, 10])
def test_niceness_of_a_check(tmp_path: Path, more: int) -> None:
    """A check gives way to who decides, and no more so if who starts it does already.

    On a busy machine what is as nice as can be would not end for many seconds.
    """
    (tmp_path / "edge.yaml").write_text(RULES % 2)
    checked = f"""
import os
from pathlib import Path
from ratelimit_service.runtime.app import check
from ratelimit_service.settings import Settings
os.nice({more})
check(Settings(rules=str(Path({str(tmp_path)!r}))))
print(os.getpriority(os.PRIO_PROCESS, 0))
"""
    before = min(19, os.getpriority(os.PRIO_PROCESS, 0) + more)

    done = subprocess.run([sys.executable, "-c", checked], capture_output=True, check=True)

    assert int(done.stdout) == max(10, before)


def test_open_files(own_redis: RedisServer, start: Start) -> None:
    """The service takes as many files as it may have, so its workers hold as many connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1_000, hard), hard))
    try:
        service = start("--store", own_redis.url, "--workers", "1")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    for pid in (service.pid, *pids(service)):
        assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (hard, hard)


def test_python_of_the_working_directory(
    own_redis: RedisServer, tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies in the directory where the service is started is never imported."""
    (tmp_path / "ratelimit_service").mkdir()
    (tmp_path / "json.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)

    service = start("--store", own_redis.url, "--workers", "1")

    assert service.decide("edge", user="bob").status == 200
    assert "not this one" not in service.log
