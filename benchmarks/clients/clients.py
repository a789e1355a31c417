"""The clients: how each is built, called and read."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ratelimit_service.model import Descriptor, Entry, Request
from ratelimit_service.wire import METHOD, SERVICE, encode_request

HERE = Path(__file__).parent
OUT = HERE.parents[1] / ".tools" / "clients"
NUMBERS = {
    "calls", "concurrency", "pause", "cancel", "deadline", "headers", "header_bytes", "oversized",
}  # fmt: skip
"""What every client of ours understands; some know `table` as well."""


class MissingError(Exception):
    """A client cannot be built here; the text says what is missing."""


@dataclass(frozen=True)
class Client:
    """A client of ours: a program that takes ADDRESS NAME=NUMBER... and prints a tally."""

    name: str
    arguments: list[str]
    tools: Mapping[str, str] = field(default_factory=dict)
    """Programs that are needed, each with how to get it."""

    source: str = ""
    builds: list[str] = field(default_factory=list)
    """The command that builds it, in the directory `source`."""

    version_in: tuple[str, str] = ("", "")
    """A file, and a regular expression for the version of the gRPC library in it."""

    table: bool = False
    """Whether its library can announce a header table of another size."""

    own_faults: tuple[str, ...] = ()
    """What failures say that a library brings about itself when any server sends it away."""

    environment: Mapping[str, str] = field(default_factory=dict)

    calls: int = 0
    """How many calls it makes, if it is not told."""

    def build(self) -> None:
        """Raises MissingError if a tool is not there, or the build fails."""
        for tool, how in self.tools.items():
            if shutil.which(tool) is None:
                raise MissingError(f"{tool} is missing: {how}")
        if self.builds:
            OUT.mkdir(parents=True, exist_ok=True)
            log = OUT / f"{self.source}.log"
            with log.open("wb") as out:
                done = subprocess.run(
                    self.builds, cwd=HERE / self.source, stdout=out, stderr=out, check=False
                )
            if done.returncode != 0:
                raise MissingError(f"it could not be built, see {log}")

    def knows(self, numbers: Mapping[str, int]) -> bool:
        return numbers.keys() <= NUMBERS | ({"table"} if self.table else set())

    def command(self, address: str, numbers: Mapping[str, int]) -> list[str]:
        given = [f"{name}={number}" for name, number in numbers.items()]
        return [each.replace("ADDRESS", address) for each in self.arguments] + given

    def read(self, written: str) -> dict[str, int]:
        tally: dict[str, int] = json.loads(written)
        return tally

    def version(self) -> str:
        file, pattern = self.version_in
        if not file:
            return importlib.metadata.version(self.name)
        found = re.search(pattern, (HERE / file).read_text())
        return found[1] if found else ""


MESSAGE_HEADERS = ["content-type: application/grpc", "te: trailers"]
PATH = f"/{SERVICE}/{METHOD}"


def framed(key: int) -> bytes:
    """A call's body, as gRPC frames it."""
    message = encode_request(Request("clients", (Descriptor((Entry("key", str(key)),)),)))
    return b"\0" + len(message).to_bytes(4, "big") + message


class H2load(Client):
    """h2load sees the status of HTTP only, and asks for one key."""

    def knows(self, numbers: Mapping[str, int]) -> bool:
        return numbers.keys() <= {"calls", "concurrency"} or "table" in numbers

    def command(self, address: str, numbers: Mapping[str, int]) -> list[str]:
        body = OUT / "body"
        body.write_bytes(framed(7))
        command = ["h2load", "-n", str(numbers["calls"]), "-c", "5", "-m", "10", "-d", str(body)]
        if (table := numbers.get("table")) is not None:
            command += [f"--header-table-size={table}", f"--encoder-header-table-size={table}"]
        for header in MESSAGE_HEADERS:
            command += ["-H", header]
        return [*command, f"http://{address}{PATH}"]

    def read(self, written: str) -> dict[str, int]:
        found = re.search(r"status codes: (\d+) 2xx", written)
        total = re.search(r"requests: (\d+) total", written)
        if not found or not total:
            return {f"failed: {written}": 1}
        right = int(found[1])
        return {"right": right, "failed: no status 200": int(total[1]) - right}

    def version(self) -> str:
        return _said("h2load", "--version").partition("/")[2]


class Curl(Client):
    """curl asks for some keys, over a connection each.

    Before version 8 it cannot use a connection twice that began with HTTP/2, with any server.
    """

    def knows(self, numbers: Mapping[str, int]) -> bool:
        return numbers.keys() <= {"calls", "concurrency"}

    def command(self, address: str, numbers: Mapping[str, int]) -> list[str]:  # noqa: ARG002
        shutil.rmtree(OUT / "curl", ignore_errors=True)
        (OUT / "curl").mkdir(parents=True)
        lines: list[str] = []
        for key in range(self.calls):
            body = OUT / "curl" / f"{key}.body"
            body.write_bytes(framed(key))
            lines += ["next"] * bool(lines)
            lines += [f'header = "{header}"' for header in MESSAGE_HEADERS]
            lines += [f'url = "http://{address}{PATH}"', "http2-prior-knowledge", "silent"]
            lines += [f'data-binary = "@{body}"', f'output = "{OUT}/curl/{key}.answer"']
        (OUT / "curl" / "config").write_text("\n".join(lines))
        parallel = ["--parallel", "--parallel-immediate", "--parallel-max", str(self.calls)]
        return ["curl", *parallel, "--config", str(OUT / "curl" / "config")]

    def read(self, written: str) -> dict[str, int]:
        tally = Counter({f"failed: {written}": 1} if written else {})
        for key in range(self.calls):
            file = OUT / "curl" / f"{key}.answer"
            answer = file.read_bytes() if file.exists() else b""
            right = f"<{key}>".encode() in answer
            wrong = not right and b"<" in answer
            tally["right" if right else "wrong" if wrong else "failed: no answer"] += 1
        return tally

    def version(self) -> str:
        return _said("curl", "--version").removeprefix("curl ").partition(" ")[0]


def _said(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.partition("\n")[0]


JARS = f"{OUT}/java/classes:{OUT}/java/libraries/*"


def java(transport: str) -> Client:
    return Client(
        f"grpc-{transport}",
        ["java", "-cp", JARS, "Client", transport, "ADDRESS"],
        {"java": "apt install openjdk-17-jdk-headless", "mvn": "apt install maven"},
        "java",
        ["mvn", "-B", "-q", f"-Doutput={OUT}/java", "process-classes"],
        ("java/pom.xml", r"<grpc.version>(.*?)<"),
    )


PIP = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade"]
NPM = f"mkdir -p {OUT}/node && cp package*.json {OUT}/node && npm ci --prefix {OUT}/node"

CLIENTS = [
    Client(
        "grpc-go",
        [f"{OUT}/go", "ADDRESS"],
        {"go": "https://go.dev/dl"},
        "go",
        ["go", "build", "-o", f"{OUT}/go", "."],
        ("go/go.mod", r"google.golang.org/grpc v(\S+)"),
    ),
    Client(
        "tonic",
        [f"{OUT}/rust/release/client", "ADDRESS"],
        {"cargo": "https://rustup.rs"},
        "rust",
        ["cargo", "build", "--release", "--locked", "--target-dir", f"{OUT}/rust"],
        ("rust/Cargo.toml", r'tonic = \{ version = "=(.*?)"'),
        # Calls that wait in its own queue when a GOAWAY comes: it does not try them again.
        own_faults=("operation was canceled: connection closed",),
    ),
    java("netty"),
    java("okhttp"),
    Client(
        "grpc-js",
        ["node", str(HERE / "node" / "client.js"), f"{OUT}/node", "ADDRESS"],
        {"node": "apt install nodejs", "npm": "apt install npm"},
        "node",
        ["sh", "-c", NPM],
        ("node/package.json", r'"@grpc/grpc-js": "(.*?)"'),
        table=True,
    ),
    Client(
        "grpcio",
        [sys.executable, "-m", "benchmarks.clients.grpcio", "ADDRESS"],
        table=True,
        environment={"GRPC_VERBOSITY": "NONE"},
    ),
    Client(
        "grpclib",
        [sys.executable, "-m", "benchmarks.clients.grpclib", "ADDRESS"],
        {},
        ".",
        [*PIP, "--target", f"{OUT}/python", "-r", "requirements.txt"],
        ("requirements.txt", r"grpclib==(\S+)"),
        table=True,
        own_faults=("StreamTerminatedError",),  # it hangs up at a GOAWAY
        environment={"PYTHONPATH": f"{OUT}/python"},
    ),
    H2load("h2load", [], {"h2load": "apt install nghttp2-client"}),
    Curl("curl", [], {"curl": "apt install curl"}, calls=50),
]
