"""`make bench`: servers in alternation on one core, the load generator on the other.

Prints tables in multiples of the grpcio server that decides nothing, and writes
`benchmarks/results.json`. docs/benchmarks.md has the figures.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.by_policy import hold
from benchmarks.cpu import processes
from ratelimit_service.algorithms import DEFAULT
from ratelimit_service.model import CounterSpec, Hit
from ratelimit_service.stores.redis.batch import Background
from ratelimit_service.stores.redis.script import SCRIPT, ScriptCall

HERE = Path(__file__).parent
RATELIMIT = str(Path(sys.executable).with_name("ratelimit"))
COMPILED = HERE.parent / ".venv-compiled" / "bin" / "ratelimit"
RUNS = int(os.environ.get("RUNS", "5"))
SECONDS = os.environ.get("SECONDS_EACH", "4")
OPEN_SECONDS = os.environ.get("OPEN_SECONDS", "60")
ALONE = ("--seconds", SECONDS, "--connections", "1", "--in-flight", "1")
SERVER_CORE, LOAD_CORE = "0", "1"
VOID_ABOVE = 0.8

NOOP, NGHTTPD = "grpcio, no decision", "nghttpd, a constant"
MEMORY, REDIS = "ours, memory", "ours, Redis"
COMPILED_MEMORY, COMPILED_REDIS = "ours, compiled, memory", "ours, compiled, Redis"
GRPCIO = "ours, memory, --transport grpcio"
ECHO = "bare uvloop, the same bytes"
PINGED = "bare uvloop, after a PING to Redis"
RAW_REDIS = "redis-benchmark, the same script"
CLOSED = [
    (
        "hot",
        [NOOP, GRPCIO, MEMORY, REDIS, COMPILED_MEMORY, COMPILED_REDIS, NGHTTPD, RAW_REDIS],
    ),
    ("uniform", [MEMORY, REDIS, COMPILED_MEMORY, COMPILED_REDIS, RAW_REDIS]),
    ("zipf", [MEMORY, REDIS, COMPILED_MEMORY, COMPILED_REDIS]),
    ("traced", [MEMORY, COMPILED_MEMORY]),
]
BATCH = 128
"""Requests in one script call of redis-benchmark, as many as ours has at most."""

Figures = dict[str, float]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def wait_for(port: int) -> None:
    for _ in range(400):
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise SystemExit(f"run.py: nothing listens on port {port}")


@contextmanager
def running(core: str, command: list[str], port: int) -> Iterator[subprocess.Popen[bytes]]:
    """The command on a core, listening."""
    quiet = subprocess.DEVNULL  # grpcio has much to say of clients that go in the middle of a call
    process = subprocess.Popen(["taskset", "-c", core, *command], stdout=quiet, stderr=quiet)
    try:
        wait_for(port)
        yield process
    finally:
        process.terminate()
        process.wait(30)


class Bench:
    """The servers, and how each is asked."""

    def __init__(self, directory: str, rules: Path = HERE / "rules.yaml") -> None:
        self.port, self.http_port, self.redis_port = free_port(), free_port(), free_port()
        port = str(self.port)
        serve = [RATELIMIT, "serve", "--rules", str(rules), "--log-level", "error"]
        serve += ["--grpc", f"127.0.0.1:{port}", "--http", f"127.0.0.1:{self.http_port}"]
        serve += ["--max-counters", "3000000"]
        store = ["--store", f"redis://127.0.0.1:{self.redis_port}/0", "--store-timeout", "1s"]
        self.commands = {
            NOOP: [sys.executable, str(HERE / "noop.py"), f"127.0.0.1:{port}"],
            ECHO: [sys.executable, str(HERE / "echo.py"), port],
            PINGED: [sys.executable, str(HERE / "echo.py"), port, str(self.redis_port)],
            MEMORY: serve,
            GRPCIO: [*serve, "--transport", "grpcio"],
        }
        self.redis = ["redis-server", "--port", str(self.redis_port), "--save", ""]
        self.redis += ["--dir", directory]
        if shutil.which("redis-server"):
            self.commands[REDIS] = serve + store
        if COMPILED.exists():
            self.commands[COMPILED_MEMORY] = [str(COMPILED), *serve[1:]]
            self.commands[COMPILED_REDIS] = [str(COMPILED), *serve[1:], *store]
        if shutil.which("nghttpd"):
            path = Path(directory, "envoy.service.ratelimit.v3.RateLimitService")
            path.mkdir()
            (path / "ShouldRateLimit").write_bytes(b"\0" * 50)
            self.commands[NGHTTPD] = ["nghttpd", "--no-tls", "-d", directory, port]

    def load(self, name: str, shape: str, *flags: str) -> Figures:
        """Starts a server, and puts it under load."""
        with running(SERVER_CORE, self.commands[name], self.port):
            return self.generate(shape, *flags)

    def generate(self, shape: str, *flags: str, by_policy: bool = False) -> Figures:
        """Puts the server that runs under load; with `by_policy` answers may be without a count."""
        command = [sys.executable, str(HERE / "load.py"), str(self.port), shape, *flags]
        done = subprocess.run(
            ["taskset", "-c", LOAD_CORE, *command], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"run.py: {command} failed: {done.stderr.strip()}")
        figures: Figures = json.loads(done.stdout)
        if figures["failed"]:
            raise SystemExit(f"run.py: {figures['failed']:.0f} calls got no answer: {command}")
        if not by_policy:
            hold(f"run.py: {' '.join(command[1:])}", figures["calls"], figures["by_policy"])
        return figures

    def raw_redis(self, shape: str) -> Figures:
        """Requests a second that Redis settles when nobody but redis-benchmark asks."""
        keys = [b"{%08x}f3600:bench", b"{%08x}f3600:tenant"]
        if shape == "uniform":
            keys = [b"{x}user:__rand_int__", b"{x}tenant:__rand_int__"]
        spec = CounterSpec(DEFAULT, 200_000_000, 3_600_000_000)
        requests = [[Hit(key, spec) for key in keys]] * BATCH
        call = ScriptCall(0, 0)
        count = call.add(Background(requests), range(BATCH))
        *words, packed = call.arguments()
        assert isinstance(packed, bytes)
        # redis-benchmark cannot send zero bytes, so here the packed argument stands in the script.
        constant = "".join(f"\\{byte:03d}" for byte in packed)
        script = f'local ARGV = {{"", "{constant}"}}\n{SCRIPT}'
        base = ["-p", str(self.redis_port)]
        loaded = subprocess.run(
            ["redis-cli", *base, "-x", "SCRIPT", "LOAD"],
            input=script.encode(),
            capture_output=True,
            check=True,
        )
        command = ["taskset", "-c", SERVER_CORE, "redis-benchmark", *base, "-q", "-n", "4000"]
        command += ["-c", "2", "-r", "1000000", "EVALSHA", loaded.stdout.decode().strip()]
        command += [word.decode() if isinstance(word, bytes) else str(word) for word in words[:-1]]
        done = subprocess.run(command, capture_output=True, check=True)
        rate = float(re.findall(r"([\d.]+) requests per second", done.stdout.decode())[-1])
        return {"calls_per_second": rate * count}

    def bytes_per_counter(self) -> Figures:
        """What the service grows by with a million new descriptors of two entries."""
        with running(SERVER_CORE, self.commands[MEMORY], self.port) as process:
            pids = processes(process.pid)
            before = sum(map(resident_bytes, pids))
            self.generate("new", "--count", "1000000")
            page = urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/metrics").read()
            counters = float(re.findall(rb"ratelimit_memory_counters ([\d.e+]+)", page)[0])
            grown = sum(map(resident_bytes, pids)) - before
        return {"counters": counters, "grown_bytes": grown, "per_counter": grown / counters}


def resident_bytes(pid: int | str) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) * 1_024


def told(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    results: dict[str, dict[str, dict[str, list[Figures]]]] = {"closed": {}, "open": {}, "one": {}}

    def note(kind: str, shape: str, name: str, figures: Figures) -> None:
        told(f"{kind}: {shape}, {name}: {figures}")
        results[kind].setdefault(shape, {}).setdefault(name, []).append(figures)

    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(directory)
        if REDIS not in bench.commands:
            raise SystemExit("run.py: redis-server is missing: sudo apt install redis-server")
        with running(LOAD_CORE, bench.redis, bench.redis_port):
            for turn in range(RUNS):
                told(f"run {turn + 1} of {RUNS}")
                for shape, names in CLOSED:
                    for name in names:
                        if name == RAW_REDIS:
                            note("closed", shape, name, bench.raw_redis(shape))
                        elif name in bench.commands:
                            figures = bench.load(name, shape, "--seconds", SECONDS)
                            note("closed", shape, name, figures)
                for name in (ECHO, PINGED):
                    note("one", "hot", name, bench.load(name, "hot", "--echo", *ALONE))
                for name in (MEMORY, REDIS, COMPILED_MEMORY, COMPILED_REDIS):
                    if name in bench.commands:
                        note("one", "hot", name, bench.load(name, "hot", *ALONE))
            for name in (MEMORY, REDIS):
                rate = median(results["closed"]["uniform"][name], "calls_per_second") // 2
                for server in (name, NGHTTPD):
                    if server in bench.commands:
                        flags = ("--seconds", OPEN_SECONDS, "--rate", str(rate))
                        figures = bench.load(server, "uniform", *flags)
                        note("open", f"uniform, {rate:.0f} a second", server, figures)
            told("memory per counter")
            counters = bench.bytes_per_counter()
    written = {**results, "memory": counters}
    (HERE / "results.json").write_text(json.dumps(written, indent=1) + "\n")
    report(results, counters)


def median(runs: list[Figures], key: str) -> float:
    return statistics.median(run[key] for run in runs)


def report(results: dict[str, dict[str, dict[str, list[Figures]]]], counters: Figures) -> None:
    base = median(results["closed"]["hot"][NOOP], "calls_per_second")
    print(
        "\n| requests, closed loop | server | calls/s | to grpcio | p50 ms | p99 ms | generator |"
    )
    print("|---|---|---|---|---|---|---|")
    for shape, servers in results["closed"].items():
        for name, runs in servers.items():
            rate = median(runs, "calls_per_second")
            cells = ["", "", ""]
            if "p50_ms" in runs[0]:
                cpu = median(runs, "generator_cpu")
                void = " (void)" if cpu > VOID_ABOVE else ""
                cells = [f"{median(runs, key):.2f}" for key in ("p50_ms", "p99_ms")]
                cells.append(f"{cpu:.0%}{void}")
            print(f"| {shape} | {name} | {rate:,.0f} | {rate / base:.1f} | {' | '.join(cells)} |")
    print("\n| requests, open loop | server | calls | p99 ms | p99.9 ms | late | generator |")
    print("|---|---|---|---|---|---|---|")
    for shape, servers in results["open"].items():
        for name, runs in servers.items():
            calls, late = (sum(run[key] for run in runs) for key in ("calls", "late"))
            cells = [f"{median(runs, key):.2f}" for key in ("p99_ms", "p999_ms")]
            used = f"{median(runs, 'generator_cpu'):.0%}"
            told = [f"{calls:,.0f}", *cells, f"{late:.0f}", used]
            print(f"| {shape} | {name} | {' | '.join(told)} |")
    print("\n| one request at a time | p50 µs | p99 µs | p99 above the bare one |")
    print("|---|---|---|---|")
    bare = median(results["one"]["hot"][ECHO], "p99_ms")
    for name, runs in results["one"]["hot"].items():
        half, most = (median(runs, key) for key in ("p50_ms", "p99_ms"))
        print(f"| {name} | {half * 1000:.0f} | {most * 1000:.0f} | {(most - bare) * 1000:.0f} |")
    print(
        f"\nA counter in memory takes {counters['per_counter']:.0f} bytes "
        f"({counters['counters']:,.0f} counters, {counters['grown_bytes'] / 1e6:.0f} MB)."
    )


if __name__ == "__main__":
    main()
