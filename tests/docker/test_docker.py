"""The container files, parsed and with their commands run outside a container."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import need
from tests.e2e.conftest import need_envoy
from tests.servers.envoy import COMMAND as ENVOY
from tests.servers.process import Process, free_port, listens
from tests.servers.redis import RedisServer
from tests.servers.service import http

TOP = Path(__file__).parents[2]
DOCKER = TOP / "docker"


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions in order, with continued lines joined."""
    text = re.sub(r"\\\n\s*", "", (DOCKER / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    pairs = [line.partition(" ") for line in lines]
    return [(name, rest.strip()) for name, _, rest in pairs]


def last(name: str) -> str:
    return [rest for each, rest in instructions() if each == name][-1]


def compose() -> dict[str, dict[str, Any]]:
    """Compose's services; YAML has no types."""
    services: dict[str, dict[str, Any]] = yaml.safe_load((DOCKER / "compose.yaml").read_text())[
        "services"
    ]
    return services


def test_image_runs_as_nobody_on_the_known_ports() -> None:
    """The image has a numeric user that is not root, and opens the two ports."""
    user, _, group = last("USER").partition(":")

    assert int(user) > 0
    assert int(group) > 0
    assert last("EXPOSE") == "8080 8081"


def test_what_is_copied_exists() -> None:
    """Every path that the image is made of is in the checkout and not ignored by the build."""
    ignored = (TOP / ".dockerignore").read_text().split()
    sources = [
        word
        for name, rest in instructions()
        if name == "COPY" and not rest.startswith("--from")
        for word in rest.split()[:-1]
    ]

    assert sources
    for source in sources:
        assert (TOP / source).exists()
        assert source not in ignored


@pytest.mark.timeout(600)
def test_image_commands(tmp_path: Path, own_redis: RedisServer) -> None:
    """What the image builds, installs and starts as compose says serves decisions from Redis."""
    build, opt = tmp_path / "build", tmp_path / "opt"
    build.mkdir()
    (source,) = [rest for name, rest in instructions() if name == "COPY" and "pyproject" in rest]
    for name in [*source.split()[:-1], "ratelimit_service"]:
        copy = shutil.copytree if (TOP / name).is_dir() else shutil.copy
        copy(TOP / name, build / name)
    run = last("RUN").replace("/opt/ratelimit", str(opt)).replace("python ", f"{sys.executable} ")
    subprocess.run(run, shell=True, cwd=build, check=True, stdout=subprocess.DEVNULL)
    settings = dict(pair.split("=", 1) for pair in last("ENV").split())
    rules = settings["RATELIMIT_RULES"].replace("/etc/ratelimit/rules", str(TOP / "rules"))
    store = str(compose()["ratelimit"]["environment"]["RATELIMIT_STORE"])
    http_port = free_port()
    environment = {
        **os.environ,
        "RATELIMIT_RULES": rules,
        "RATELIMIT_STORE": store.replace("redis:6379", f"127.0.0.1:{own_redis.port}"),
        "RATELIMIT_HTTP": f"127.0.0.1:{http_port}",
        "RATELIMIT_GRPC": "127.0.0.1:0",
    }
    entrypoint = [*json.loads(last("ENTRYPOINT")), *json.loads(last("CMD"))]
    command = [str(opt / "bin" / entrypoint[0]), *entrypoint[1:]]
    process = Process(command, tmp_path / "log", environment)
    process.spawn()
    process.wait_ready(lambda: listens(http_port))

    answer = http(
        f"http://127.0.0.1:{http_port}/json",
        {"domain": "demo", "descriptors": [{"entries": [{"key": "user", "value": "bob"}]}]},
    )

    health = http(f"http://127.0.0.1:{http_port}/healthcheck")
    process.kill()
    assert not list((opt / "bin").glob("pip*"))
    (metadata,) = opt.glob("lib/*/site-packages/ratelimit_service-*.dist-info/METADATA")
    assert "License-Expression: Apache-2.0\n" in metadata.read_text()
    assert (metadata.parent / "licenses" / "LICENSE").exists()
    assert (answer.status, health.text) == (200, "OK")
    assert '"limitRemaining": 4' in answer.text


def test_compose_redis(tmp_path: Path) -> None:
    """Compose's command for Redis starts one."""
    command = compose()["redis"]["command"]
    need(command[0], "sudo apt install redis-server")
    port = free_port()
    process = Process([*command, "--port", str(port), "--dir", str(tmp_path)], tmp_path / "log")
    process.spawn()

    # The port is open a moment before the log says so.
    process.wait_ready(lambda: "ready to accept connections" in process.log.lower())

    assert listens(port)
    process.kill()


def test_compose_envoy() -> None:
    """Compose's command for Envoy accepts the configuration that is mounted for it."""
    need_envoy()
    envoy = compose()["envoy"]
    command, (mount,) = envoy["command"], envoy["volumes"]
    source, target, _ = mount.split(":")
    words = [str(DOCKER / source) if word == target else word for word in command[1:]]

    done = subprocess.run(
        [ENVOY, *words, "--mode", "validate"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr


def test_compose_drops_privileges() -> None:
    """The service has a file system that it cannot write, no capability, and gets none."""
    ratelimit = compose()["ratelimit"]

    assert ratelimit["read_only"] is True
    assert ratelimit["cap_drop"] == ["ALL"]
    assert ratelimit["security_opt"] == ["no-new-privileges:true"]


def test_compose_mounts_what_is_there() -> None:
    """Every host path that compose mounts exists, and the build's Dockerfile too."""
    mounts = [
        mount.split(":")[0]
        for service in compose().values()
        for mount in service.get("volumes", ())
    ]

    assert len(mounts) == 2
    for mount in mounts:
        assert (DOCKER / mount).exists()
    build = compose()["ratelimit"]["build"]
    assert (DOCKER / build["context"] / build["dockerfile"]).exists()
