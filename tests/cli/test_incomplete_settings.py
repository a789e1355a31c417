"""Settings that lack what they need: no start, and the name of the variable to mend."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.ran import RULES, Ran
from tests.servers.process import wait_until
from tests.servers.service import ServiceProcess

TCP = {"REDIS_SOCKET_TYPE": "tcp"}
SENTINEL = {"REDIS_TYPE": "sentinel"}


@pytest.fixture
def rules(tmp_path: Path) -> str:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    return str(path)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"GRPC_SERVER_USE_TLS": "true"}, "GRPC_SERVER_USE_TLS is on, but GRPC_SERVER_TLS_CERT"),
        ({**TCP, "REDIS_AUTH": "x"}, "REDIS_SOCKET_TYPE, REDIS_AUTH set, but not REDIS_URL"),
        ({"REDIS_POOL_SIZE": "10"}, "REDIS_POOL_SIZE set, but not REDIS_URL"),
        ({"BACKEND_TYPE": "redis"}, "BACKEND_TYPE set, but not REDIS_URL"),
        ({"RATELIMIT_REDIS_URL": "r:1"}, "RATELIMIT_REDIS_URL set, but not REDIS_URL"),
        ({"RATELIMIT_STORE_URL": "r:1"}, "RATELIMIT_STORE_URL set, but not REDIS_URL"),
        ({"REDIS_URL": ""}, "REDIS_URL is empty"),
        ({"REDIS_URL": " "}, "REDIS_URL is empty"),
        ({"RATELIMIT_STORE": ""}, "RATELIMIT_STORE is empty"),
        ({"REDIS_URI": "r:6379"}, "REDIS_URI is no name of a setting: did you mean REDIS_URL?"),
        (
            {**TCP, "REDIS_URL": "r:1", "REDIS_PERSECOND": "true"},
            "REDIS_PERSECOND is on, but REDIS_PERSECOND_URL is not set",
        ),
        ({**SENTINEL, "REDIS_URL": "h1:26379,h2:26379"}, "REDIS_URL lacks the name of the master"),
        ({**SENTINEL, "REDIS_URL": "main"}, "REDIS_URL lacks the name of the master"),
        (
            {"RATELIMIT_STORE": "redis+sentinel://h:1/h:2"},
            "RATELIMIT_STORE: the last part of the store URL is the name of the master",
        ),
        ({**TCP, "REDIS_URL": "r r:1"}, "REDIS_URL: it holds a blank or a line end"),
        ({"RATELIMIT_STORE": "redis://r:1/ 0"}, "it holds a blank or a line end"),
        ({**TCP, "REDIS_URL": "$(REDIS_HOST):6379"}, "REDIS_URL: '$(REDIS_HOST)' was not replaced"),
        ({**TCP, "REDIS_URL": "${HOST}:6379"}, "REDIS_URL: '${HOST}' was not replaced"),
        ({**TCP, "REDIS_URL": "{{ .host }}:6379"}, "REDIS_URL: '{{' was not replaced"),
        ({**TCP, "REDIS_URL": "$HOST:6379"}, "REDIS_URL: '$' cannot stand in the name of a host"),
        ({**TCP, "REDIS_URL": '"r:6379"'}, "REDIS_URL: it stands in quotes"),
        ({"RATELIMIT_STORE": "'redis://r:1'"}, "it stands in quotes"),
        ({**TCP, "REDIS_URL": "redis+cluster://r:1"}, "REDIS_URL has a scheme that is neither"),
        ({**TCP, "REDIS_URL": "r:x"}, "REDIS_URL: the store URL cannot be read"),
        (
            {"RATELIMIT_STORE": "redis://r:x"},
            "RATELIMIT_STORE: the store URL cannot be read: a port is no number",
        ),
        ({"REDIS_SOCKET_TYPE": "udp", "REDIS_URL": "r:1"}, "REDIS_SOCKET_TYPE=udp is unknown"),
        (
            {"REDIS_TLS": "true", "REDIS_URL": "/run/redis.sock"},
            "REDIS_TLS is on, but REDIS_URL is the path of a Unix socket",
        ),
        ({**TCP, "REDIS_URL": "r:1", "REDIS_AUTH": "se\ncret"}, "REDIS_AUTH: it holds a line end"),
        ({**TCP, "REDIS_URL": "r:1", "REDIS_AUTH": "user:"}, "REDIS_AUTH has no password behind"),
        (
            {**TCP, "REDIS_URL": "r:1", "REDIS_AUTH": "x", "REDIS_AUTH_FILE": "y"},
            "REDIS_AUTH and REDIS_AUTH_FILE are both set: leave one of them out",
        ),
        ({"REDIS_AUTH_FILE": "x"}, "REDIS_AUTH_FILE set, but not REDIS_URL"),
        (
            {**TCP, "REDIS_URL": "r:1", "REDIS_AUTH": "$(REDIS_PASSWORD)"},
            "REDIS_AUTH: it is the name of a variable, not its value",
        ),
    ],
)
def test_what_is_asked_for_and_lacks_something(
    rules: str, environment: dict[str, str], message: str
) -> None:
    """A store or a protection that lacks what it needs refuses to start, by its variable."""
    ran = Ran("serve", "--check", RATELIMIT_RULES=rules, **environment)

    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"REDIS_TLS": "false", "REDIS_PERSECOND": "false"},
        {"RATELIMIT_STORE": "memory", "REDIS_AUTH": "x"},
        {"RATELIMIT_STORE": "redis://r:1", "REDIS_TIMEOUT": "1s"},
        {"RATELIMIT_STORE": "", "REDIS_SOCKET_TYPE": "tcp", "REDIS_URL": "r:1"},
        {"REDIS_PORT": "tcp://10.0.0.1:6379", "REDIS_SERVICE_HOST": "10.0.0.1"},
        {"GRPC_TRACE": "all", "REDIS_HOST": "r"},
        {"RATELIMIT_STORE": " redis+ring://a:1, b:2/0\n"},
    ],
)
def test_what_is_whole(rules: str, environment: dict[str, str]) -> None:
    """A switch that is off, a store that is named and names of other programs ask for nothing."""
    ran = Ran("serve", "--check", RATELIMIT_RULES=rules, **environment)

    assert (ran.code, ran.out.splitlines()[0]) == (0, "it would start")


def test_a_start_without_files(tmp_path: Path) -> None:
    """FORCE_START… holds for files: by policy and degraded, until they come."""
    rules = tmp_path / "data" / "config"
    environment = {
        "FORCE_START_WITHOUT_INITIAL_CONFIG": "true",
        "RUNTIME_ROOT": str(rules.parent),
        "DEBUG_HOST": "127.0.0.1",
        "DEBUG_PORT": "0",
    }
    service = ServiceProcess(
        tmp_path, "--failure-policy", "closed", environment={**environment, "RATELIMIT_RULES": ""}
    )
    try:
        service.spawn()
        wait_until(lambda: "ratelimit serves" in service.log, "the service")
        assert service.decide("demo", user="x").status == 429
        health = service.get("/healthcheck")
        assert health.status == 200
        assert "the failure policy decides" in health.text

        rules.mkdir(parents=True)
        (rules / "rules.yaml").write_text(RULES)

        wait_until(lambda: service.decide("demo", user="x").status == 200, "the rules")
        assert "the failure policy decides" not in service.get("/healthcheck").text
    finally:
        service.kill()
