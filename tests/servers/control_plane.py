"""The management server of tests/management, on the library with which Envoy Gateway serves."""

from __future__ import annotations

import subprocess
from itertools import count
from pathlib import Path

import trustme

from tests.conftest import need
from tests.servers.process import free_port, wait_until

__all__ = ["MANAGEMENT", "Management"]

MANAGEMENT = str(Path(__file__).parents[2] / ".tools" / "management")


class Management:
    """The Go program of tests/management, with TLS 1.3 and client certificates."""

    def __init__(self, directory: Path) -> None:
        need(MANAGEMENT, "install Go")
        self.port = free_port()
        self._directory = directory
        self._files = count()
        authority = trustme.CA()
        authority.cert_pem.write_to_path(directory / "ca.crt")
        for name in ("server", "client"):
            made = authority.issue_cert("envoy-gateway" if name == "server" else "ratelimit")
            made.private_key_pem.write_to_path(directory / f"{name}.key")
            made.cert_chain_pems[0].write_to_path(directory / f"{name}.crt")
        self._log = directory / "management.log"
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def heard(self) -> list[str]:
        """What it says of its clients, in order."""
        return self._log.read_text().splitlines() if self._log.exists() else []

    @property
    def environment(self) -> dict[str, str]:
        """Envoy Gateway's, with our files."""
        xds = "CONFIG_GRPC_XDS_"
        return {
            "CONFIG_TYPE": "GRPC_XDS_SOTW",
            f"{xds}SERVER_URL": f"localhost:{self.port}",
            f"{xds}NODE_ID": "envoy-ratelimit",
            f"{xds}SERVER_USE_TLS": "true",
            f"{xds}CLIENT_TLS_CERT": str(self._directory / "client.crt"),
            f"{xds}CLIENT_TLS_KEY": str(self._directory / "client.key"),
            f"{xds}SERVER_TLS_CACERT": str(self._directory / "ca.crt"),
            f"{xds}SERVER_TLS_SAN": "envoy-gateway",
        }

    def start(self) -> None:
        self._log.write_text("")
        words = [MANAGEMENT, "-port", str(self.port), "-node", "envoy-ratelimit"]
        for flag, file in (("cert", "server.crt"), ("key", "server.key"), ("ca", "ca.crt")):
            words += [f"-{flag}", str(self._directory / file)]
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=log, stderr=log)
        wait_until(lambda: "ready" in self.heard, "the management server")

    def serve(self, version: str, *resources: bytes) -> None:
        names = []
        for data in resources:
            file = self._directory / f"resource{next(self._files)}"
            file.write_bytes(data)
            names.append(str(file))
        assert self._child is not None
        assert self._child.stdin is not None
        self._child.stdin.write(" ".join([version, *names]).encode() + b"\n")
        self._child.stdin.flush()

    def await_ack(self, version: str) -> None:
        wait_until(lambda: f"ack {version}" in self.heard, f"an ACK of {version}: {self.heard}")

    def stop(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            if self._child.stdin:
                self._child.stdin.close()
            self._child = None
