"""`make bench`: servers in alternation on one core, the load generator on the other.

Prints a table in multiples of the grpcio server that decides nothing, and writes
`benchmarks/results.json`. docs/benchmarks.md tells the method.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
RATELIMIT = str(Path(sys.executable).with_name("ratelimit"))
RUNS = int(os.environ.get("RUNS", "5"))
SECONDS = os.environ.get("SECONDS_EACH", "4")
SERVER_CORE, LOAD_CORE = "0", "1"
SHAPES = ("hot", "uniform", "zipf")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def wait_for(port: int) -> None:
    for _ in range(200):
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise SystemExit(f"run.py: nothing listens on port {port}")


def commands(port: int, redis_port: int, directory: str) -> dict[str, list[str]]:
    """Each server's command, by the name in the table."""
    serve = [RATELIMIT, "serve", "--rules", str(HERE / "rules.yaml"), "--log-level", "error"]
    serve += ["--grpc", f"127.0.0.1:{port}", "--http", "127.0.0.1:0", "--max-counters", "3000000"]
    redis = ["--store", f"redis://127.0.0.1:{redis_port}/0", "--store-timeout", "1s"]
    found = {
        "grpcio, no decision": [sys.executable, str(HERE / "noop.py"), f"127.0.0.1:{port}"],
        "ours, memory": serve,
        "ours, memory, --transport grpcio": [*serve, "--transport", "grpcio"],
    }
    if shutil.which("redis-server"):
        found["ours, Redis"] = serve + redis
    if shutil.which("nghttpd"):
        path = Path(directory, "envoy.service.ratelimit.v3.RateLimitService")
        path.mkdir()
        (path / "ShouldRateLimit").write_bytes(b"\0" * 50)
        found["nghttpd, a constant"] = ["nghttpd", "--no-tls", "-d", directory, str(port)]
    return found


def measure(command: list[str], port: int, shape: str) -> dict[str, float]:
    server = subprocess.Popen(["taskset", "-c", SERVER_CORE, *command], stdout=subprocess.DEVNULL)
    try:
        wait_for(port)
        load = [sys.executable, str(HERE / "load.py"), str(port), shape, SECONDS]
        done = subprocess.run(
            ["taskset", "-c", LOAD_CORE, *load], capture_output=True, text=True, check=True
        )
        result: dict[str, float] = json.loads(done.stdout)
        return result
    finally:
        server.terminate()
        server.wait(30)


def main() -> None:
    results: dict[str, dict[str, list[dict[str, float]]]] = {}
    redis_port = free_port()
    with tempfile.TemporaryDirectory() as directory:
        port = free_port()
        servers = commands(port, redis_port, directory)
        redis = None
        if "ours, Redis" in servers:
            command = ["redis-server", "--port", str(redis_port), "--save", "", "--dir", directory]
            redis = subprocess.Popen(
                ["taskset", "-c", LOAD_CORE, *command], stdout=subprocess.DEVNULL
            )
        for turn in range(RUNS):
            for shape in SHAPES:
                for name, command in servers.items():
                    print(f"run {turn + 1} of {RUNS}: {shape}, {name}", file=sys.stderr)
                    result = measure(command, port, shape)
                    results.setdefault(shape, {}).setdefault(name, []).append(result)
        if redis is not None:
            redis.terminate()
            redis.wait(30)
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    report(results)


def report(results: dict[str, dict[str, list[dict[str, float]]]]) -> None:
    def median(runs: list[dict[str, float]], key: str) -> float:
        return statistics.median(run[key] for run in runs)

    print(
        "| requests | server | calls/s | to grpcio | p50 ms | p99 ms | p99.9 ms | generator CPU |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for shape, servers in results.items():
        base = median(servers["grpcio, no decision"], "calls_per_second")
        for name, runs in servers.items():
            rate = median(runs, "calls_per_second")
            cells = [f"{median(runs, key):.2f}" for key in ("p50_ms", "p99_ms", "p999_ms")]
            cpu = median(runs, "generator_cpu")
            void = " (void)" if cpu > 0.8 else ""
            print(
                f"| {shape} | {name} | {rate:,.0f} | {rate / base:.1f}{void} | "
                f"{' | '.join(cells)} | {cpu:.2f} |"
            )


if __name__ == "__main__":
    main()
