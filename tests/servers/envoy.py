"""A real Envoy over the configuration that ships, with addresses of this machine."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.http_client import HTTPAnswer, http
from tests.servers.process import Process, free_port

COMMAND = str(Path(sys.executable).with_name("envoy"))
SHIPPED = Path(__file__).parents[2] / "docker" / "envoy.yaml"

Config = dict[str, Any]
"""Envoy's configuration as YAML has it: only Envoy knows its types."""


def shipped_config() -> Config:
    """`docker/envoy.yaml`."""
    config: Config = yaml.safe_load(SHIPPED.read_text())
    return config


def http_manager(config: Config) -> Config:
    """The connection manager of the limited listener: its routes and filters."""
    listener, _ = config["static_resources"]["listeners"]
    manager: Config = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return manager


def ratelimit_filter(config: Config) -> Config:
    """The rate limit filter."""
    found: Config = http_manager(config)["http_filters"][0]["typed_config"]
    return found


def traced(config: Config) -> Config:
    """The same with every request traced; what collects the spans is not there, and not missed."""
    config = copy.deepcopy(config)
    http_manager(config)["tracing"] = {
        "random_sampling": {"value": 100},
        "provider": {
            "name": "envoy.tracers.opentelemetry",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig",
                "grpc_service": {"envoy_grpc": {"cluster_name": "backend"}, "timeout": "0.25s"},
                "service_name": "edge",
            },
        },
    }
    return config


def _at(address: Config, port: int) -> None:
    address["socket_address"] = {"address": "127.0.0.1", "port_value": port}


class Envoy:
    """One Envoy; its ports and those of its clusters are filled in here."""

    def __init__(self, config: Config, directory: Path, clusters: dict[str, int]) -> None:
        """`clusters` has the port on this machine of every cluster, by name.

        `backend` is Envoy's own second listener if nothing else is said.
        """
        config = copy.deepcopy(config)
        self.port, self._admin_port, backend_port = free_port(), free_port(), free_port()
        ports = {"backend": backend_port, **clusters}
        listener, backend = config["static_resources"]["listeners"]
        _at(listener["address"], self.port)
        _at(backend["address"], backend_port)
        _at(config["admin"]["address"], self._admin_port)
        for cluster in config["static_resources"]["clusters"]:
            (endpoint,) = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
            _at(endpoint["endpoint"]["address"], ports[cluster["name"]])
        path = directory / f"envoy-{self.port}.yaml"
        path.write_text(yaml.safe_dump(config))
        command = [COMMAND, "--config-path", str(path), "--log-level", "warning"]
        command += ["--concurrency", "1", "--use-dynamic-base-id"]
        self._process = Process(command, directory / f"envoy-{self.port}.log")

    def start(self) -> None:
        self._process.spawn()
        self._process.wait_ready(self._ready)

    def _ready(self) -> bool:
        try:
            return http(f"http://127.0.0.1:{self._admin_port}/ready").status == 200
        except OSError:
            return False

    def get(self, path: str, **headers: str) -> HTTPAnswer:
        """A request through Envoy; `x_user="a"` is the header `x-user: a`."""
        names = {key.replace("_", "-"): value for key, value in headers.items()}
        return http(f"http://127.0.0.1:{self.port}{path}", headers=names)

    def stats(self) -> str:
        return http(f"http://127.0.0.1:{self._admin_port}/stats?filter=ratelimit").text

    def kill(self) -> None:
        self._process.kill()
