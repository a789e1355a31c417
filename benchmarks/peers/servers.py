"""The peers: how each is got, with what versions, and how it is started.

None of their code is here. Go's and Rust's own means fetch it, in the versions that stand here and
in `limitador/Cargo.lock`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.run import told

__all__ = ["LIMITADOR", "PEERS", "RATELIMIT_GO", "Peer", "commands", "get", "missing"]

HERE = Path(__file__).parent
TOOLS = HERE.parents[1] / ".tools" / "peers"
GET = "python -m benchmarks.peers get"

_MANIFEST = HERE / "limitador" / "Cargo.toml"
_GO_VERSION = "v1.4.1-0.20260122083618-3fb702589d36"


class Peer(NamedTuple):
    """Another server of Envoy's protocol."""

    name: str
    program: Path
    toolchain: str
    """The command that it needs to be built."""
    build: Sequence[str]
    environment: dict[str, str]


RATELIMIT_GO = Peer(
    "envoyproxy/ratelimit",
    TOOLS / "service_cmd",
    "go",
    ["go", "install", f"github.com/envoyproxy/ratelimit/src/service_cmd@{_GO_VERSION}"],
    {"GOBIN": str(TOOLS), "GOFLAGS": ""},
)
LIMITADOR = Peer(
    "Limitador's crate",
    TOOLS / "limitador" / "release" / "limitador-peer",
    "cargo",
    [*["cargo", "build", "--quiet", "--release", "--locked", "--manifest-path"], str(_MANIFEST)],
    {"CARGO_TARGET_DIR": str(TOOLS / "limitador")},
)
PEERS = (RATELIMIT_GO, LIMITADOR)


def missing(peer: Peer) -> str:
    """Why a peer cannot be measured, and what to do, in one sentence; empty if it can be."""
    if peer.program.exists():
        return ""
    if shutil.which(peer.toolchain):
        return f"{peer.name} is not built, so it is left out: {GET}"
    return f"{peer.name} is not built, so it is left out: install {peer.toolchain}, then {GET}"


def get() -> None:
    """Builds what is missing and can be built; says what cannot."""
    TOOLS.mkdir(parents=True, exist_ok=True)
    for peer in PEERS:
        if peer.program.exists():
            told(f"{peer.name} is in {peer.program}")
            continue
        if not shutil.which(peer.toolchain):
            told(missing(peer))
            continue
        told(f"building {peer.name}, which can take some minutes")
        log = TOOLS / f"{peer.toolchain}.log"
        with log.open("wb") as out:
            done = subprocess.run(
                peer.build,
                env={**os.environ, **peer.environment},
                stdout=out,
                stderr=out,
                check=False,
            )
        if done.returncode:
            told(f"{peer.name} could not be built, see {log}")


def commands(port: int, redis_port: int, directory: Path, limits: Path) -> dict[str, list[str]]:
    """How to start each peer that is there, on a port, by what the table calls it.

    `directory` has the rule files of envoyproxy/ratelimit in `ratelimit/config`.
    """
    found: dict[str, list[str]] = {}
    redis = f"127.0.0.1:{redis_port}"
    if not missing(RATELIMIT_GO):
        environment = {
            "GOMAXPROCS": "1",
            "LOG_LEVEL": "error",
            "USE_STATSD": "false",
            "BACKEND_TYPE": "redis",
            "REDIS_SOCKET_TYPE": "tcp",
            "REDIS_URL": redis,
            "RUNTIME_ROOT": str(directory),
            "RUNTIME_SUBDIRECTORY": "ratelimit",
            "RUNTIME_WATCH_ROOT": "false",
            "GRPC_HOST": "127.0.0.1",
            "GRPC_PORT": str(port),
            "PORT": "0",
            "DEBUG_PORT": "0",
        }
        words = [f"{name}={value}" for name, value in environment.items()]
        found["envoyproxy/ratelimit (Go), Redis"] = ["env", *words, str(RATELIMIT_GO.program)]
    if not missing(LIMITADOR):
        serve = [str(LIMITADOR.program), f"127.0.0.1:{port}", str(limits)]
        found["Limitador's crate (Rust), memory"] = serve
    return found
