"""A client in Node.js, which has an HTTP/2 of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.conftest import need
from tests.servers.service import ServiceProcess
from tests.waiting import PATIENCE_SECONDS

DIRECTORY = Path(__file__).parents[2] / ".tools" / "node"
SCRIPT = Path(__file__).with_name("client.js")
RULES = "domain: edge\ndescriptors: [{key: a, rate_limit: {unit: year, requests_per_unit: 20}}]"


def test_node_client(tmp_path: Path) -> None:
    """Node's client gets decisions, refusals and health over one connection, 500 calls at once."""
    need(str(DIRECTORY / "node_modules" / "@grpc" / "grpc-js"), "install Node.js and npm")
    (tmp_path / "rules.yaml").write_text(RULES)
    service = ServiceProcess(tmp_path, "--rules", str(tmp_path / "rules.yaml"))
    service.start()

    command = ["node", str(SCRIPT), str(DIRECTORY), str(service.grpc_port)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )

    service.kill()
    assert done.stderr == ""
    assert json.loads(done.stdout) == {
        "allowed": 200,
        "denied": 300,
        "bad": {"code": 3, "details": "the request is no RateLimitRequest"},
        "unknown": {"code": 12, "details": "unknown method /no.such/Method"},
        "health": "0801",
    }
