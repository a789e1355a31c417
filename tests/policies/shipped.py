"""The policies that ship: what is in each directory, and one Envoy with all of their routes."""

from __future__ import annotations

import http.client
import shutil
from pathlib import Path
from typing import NamedTuple

import yaml

from tests.servers.envoy import Config, Envoy, http_manager, ratelimit_filter, shipped_config
from tests.servers.service import ServiceProcess

__all__ = ["POLICIES", "Client", "Policy", "configured", "copied"]

TOP = Path(__file__).parents[2]


class Policy(NamedTuple):
    """The files of one policy."""

    name: str
    rules: Path
    cases: Path
    envoy: Path


def _policy(directory: Path) -> Policy:
    name = directory.name
    return Policy(
        name,
        directory / f"{name}.yaml",
        directory / f"{name}.test.yaml",
        directory / "envoy.yaml",
    )


POLICIES = [_policy(each) for each in sorted((TOP / "examples" / "policies").iterdir())]


def copied(directory: Path) -> Path:
    """The rule files of all policies in one directory, as one service has them."""
    directory.mkdir()
    for policy in POLICIES:
        shutil.copy(policy.rules, directory)
    return directory


def configured() -> Config:
    """The shipped configuration with a virtual host for each policy, and with patience."""
    config = shipped_config()
    ratelimit_filter(config)["timeout"] = "5s"
    mcp = {"@type": "type.googleapis.com/envoy.extensions.filters.http.mcp.v3.Mcp"}
    lua = {"@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua"}
    limiting, *rest = http_manager(config)["http_filters"]
    http_manager(config)["http_filters"] = [
        {"name": "envoy.filters.http.mcp", "typed_config": mcp},
        limiting,
        {"name": "envoy.filters.http.lua", "typed_config": lua},
        *rest,
    ]
    http_manager(config)["route_config"]["virtual_hosts"] = [
        {
            "name": policy.name,
            "domains": [policy.name],
            "routes": yaml.safe_load(policy.envoy.read_text()),
        }
        for policy in POLICIES
    ]
    return config


class Client:
    """Requests to the virtual host of one policy, over one connection."""

    def __init__(self, envoy: Envoy, service: ServiceProcess, policy: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", envoy.port)
        self._service = service
        self._policy = policy

    def spend(self, hits: int, **entries: str) -> None:
        """Charges hits directly if there is room, so that fewer have to be asked for."""
        assert self._service.decide(self._policy, hits, **entries).status in {200, 429}

    def ask(self, path: str, method: str = "GET", body: str | None = None, **headers: str) -> int:
        """The status of a request; `x_user="a"` is the header `x-user: a`."""
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        self._connection.request(method, path, body, headers={"host": self._policy, **named})
        with self._connection.getresponse() as response:
            response.read()
            return response.status

    def passed(self, path: str, most: int, method: str = "GET", **headers: str) -> int:
        """How many requests pass before one is denied; fails if `most` pass."""
        for number in range(most):
            status = self.ask(path, method, **headers)
            if status == 429:
                return number
            assert status == 200
        raise AssertionError(f"{self._policy}: {most} requests passed, and none was denied")

    def close(self) -> None:
        self._connection.close()
