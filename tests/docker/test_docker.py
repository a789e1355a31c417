"""The container files, parsed and with their commands run outside a container."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from ratelimit_service import compiled
from tests.conftest import need
from tests.e2e.conftest import need_envoy
from tests.http_client import http
from tests.servers.envoy import COMMAND as ENVOY
from tests.servers.envoy import shipped_config
from tests.servers.image import (
    ContainerProcess,
    built,
    entrypoint,
    image_environment,
    instructions,
    last,
    need_namespaces,
)
from tests.servers.process import Process, free_port, listens, wait_until
from tests.servers.redis import RedisServer
from tests.servers.service import ServiceProcess

TOP = Path(__file__).parents[2]
DOCKER = TOP / "docker"


def compose(name: str = "compose.yaml") -> dict[str, dict[str, Any]]:
    """Compose's services; YAML has no types."""
    services: dict[str, dict[str, Any]] = yaml.safe_load((DOCKER / name).read_text())["services"]
    return services


PINNED = re.compile(r"[a-z0-9./-]+:v?\d+\.\d+\.\d+[a-z0-9.-]*(@sha256:[0-9a-f]{64})?")
"""An image's name with a whole version, and its digest once a registry has told it."""


def test_image_runs_as_nobody_on_the_known_ports() -> None:
    """The image has a numeric user that is not root, and opens the two ports."""
    user, _, group = last("USER").partition(":")

    assert int(user) > 0
    assert int(group) > 0
    assert last("EXPOSE") == "8080 8081"


def test_labels() -> None:
    """The image's labels say what pyproject.toml says."""
    labels = dict(word.split("=", 1) for word in shlex.split(last("LABEL")))
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]

    said = {name.rpartition(".")[2]: value for name, value in labels.items()}
    assert said == {
        "title": project["name"],
        "description": project["description"],
        "version": project["version"],
        "licenses": project["license"],
        "source": project["urls"]["Source"],
    }


def test_defaults_rank_below_every_variable() -> None:
    """What the image sets for the service outranks nothing that somebody sets for it."""
    ours = [name for name in image_environment() if name.startswith("RATELIMIT_")]

    assert ours
    assert all(name.startswith("RATELIMIT_DEFAULT_") for name in ours)


def test_everything_is_pinned() -> None:
    """Base images have whole versions, packages hashes, and nothing else is installed."""
    bases = [step.rest.split()[0] for stage in instructions() for step in stage[:1]]
    runs = " && ".join(
        step.rest for stage in instructions() for step in stage if step.name == "RUN"
    )

    assert len(bases) == 2
    every = [*compose().values(), *compose("compose.ring.yaml").values()]
    for image in [*bases, *(each["image"] for each in every if "image" in each)]:
        assert PINNED.fullmatch(image), image
    installs = re.findall(r"pip\S*(?: --python=\S+)? install (.*?)(?: &&|$)", runs)
    assert len(installs) == 3
    for words in installs:
        assert "--require-hashes" in words or words.split()[-2:] == ["--no-deps", ".builder/*.whl"]
    assert "apt" not in runs


def test_digests_are_filled_in(tmp_path: Path) -> None:
    """The release script writes the registry's digest behind every image, also a second time."""
    files = [tmp_path / "Dockerfile", tmp_path / "compose.yaml"]
    for file in files:
        shutil.copy(DOCKER / file.name, file)
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\necho "sha256:$(cat digit)"\n')
    docker.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    for digit in "ab":
        (tmp_path / "digit").write_text(digit * 64)
        subprocess.run([DOCKER / "pin.sh", *files], cwd=tmp_path, env=environment, check=True)

    images = [
        *re.findall(r"^FROM (\S+)", files[0].read_text(), re.MULTILINE),
        *re.findall(r"^    image: (\S+)$", files[1].read_text(), re.MULTILINE),
    ]
    assert len(images) == 4
    for image in images:
        assert PINNED.fullmatch(image), image
        assert image.endswith("@sha256:" + "b" * 64)


def test_files_to_pin_exist() -> None:
    """What docker/pin.sh says of how to call it names files that are there."""
    (words,) = re.findall(
        r"^#   docker/pin.sh (.*)$", (DOCKER / "pin.sh").read_text(), re.MULTILINE
    )

    for word in words.split():
        assert list(TOP.glob(word)), word


def test_dependencies_are_installed_before_sources_come() -> None:
    """A change of sources leaves the long step, what the lock files name, as it was."""
    steps = [step for step in instructions()[0] if step.name in {"COPY", "RUN"}]
    sources = next(at for at, step in enumerate(steps) if "ratelimit_service" in step.rest)

    locked = [at for at, step in enumerate(steps) if "--require-hashes" in step.rest]
    assert locked
    assert max(locked) < sources


READY = str(DOCKER / "health.sh")


def test_health_check(tmp_path: Path) -> None:
    """It asks the port that the environment names; it succeeds only if that says 200."""
    service = ServiceProcess(tmp_path)

    def healthy(**environment: str) -> bool:
        return not subprocess.run([READY], env=environment, check=False).returncode

    assert not healthy(PORT=str(service.http_port))
    service.start()
    try:
        assert healthy(PORT=str(service.http_port))
        assert healthy(RATELIMIT_HTTP=f"0.0.0.0:{service.http_port}", PORT="1")
        assert not healthy(RATELIMIT_HTTP=f"127.0.0.1:{service.admin_port}")  # it has no /readyz
    finally:
        service.kill()


def test_health_check_starts_no_python() -> None:
    """Nothing runs every ten seconds but a shell, unless the port speaks TLS."""
    (check,) = re.findall(r"CMD (\[.*\])$", last("HEALTHCHECK"))
    (copied,) = [
        step.rest.split() for step in instructions()[-1] if step.rest.endswith(json.loads(check)[0])
    ]

    assert copied[0] == "docker/health.sh"
    first, *rest = Path(READY).read_text().splitlines()
    assert first == "#!/bin/bash"
    assert [line.split()[1] for line in rest if line.lstrip().startswith("exec")] == [
        *("/bin/ratelimit", '3<>"/dev/tcp/$host/${address##*:}"')
    ]


def test_what_is_copied_exists() -> None:
    """Every path that the image is made of is in the checkout and let into the build."""
    let_in = [
        line[1:] for line in (TOP / ".dockerignore").read_text().split("\n") if line[:1] == "!"
    ]
    sources = [
        word
        for stage in instructions()
        for step in stage
        if step.name == "COPY" and not step.rest.startswith("--from")
        for word in step.rest.split()[:-1]
    ]

    assert sources
    for source in sources:
        assert (TOP / source).exists()
    assert sorted(set(sources)) == sorted(let_in)


def is_ready(port: int) -> bool:
    try:
        return http(f"http://127.0.0.1:{port}/readyz").status == 200
    except OSError:
        return False


@pytest.mark.timeout(1800)
def test_image(tmp_path: Path, own_redis: RedisServer) -> None:
    """What the steps build serves as compose starts it: as nobody, on a root that is read-only."""
    need_namespaces()
    image = built(tmp_path, "compiled" if compiled() else "interpreted")
    store = str(compose()["ratelimit"]["environment"]["RATELIMIT_STORE"])
    http_port = free_port()
    environment = {
        "RATELIMIT_STORE": store.replace("redis:6379", f"127.0.0.1:{own_redis.port}"),
        "RATELIMIT_HTTP": f"127.0.0.1:{http_port}",
        "RATELIMIT_GRPC": "127.0.0.1:0",
        "RATELIMIT_STORE_TIMEOUT": "5s",  # this machine may be busy
    }
    user = int(last("USER").partition(":")[0])

    def command(words: list[str]) -> list[str]:
        return image.command(
            words, user=user, environment=environment, mounts={}, beside=os.getpid()
        )

    process = ContainerProcess(command(entrypoint()), tmp_path / "log")
    process.spawn()
    process.wait_ready(lambda: is_ready(http_port))
    answer = http(
        f"http://127.0.0.1:{http_port}/json",
        {"domain": "demo", "descriptors": [{"entries": [{"key": "user", "value": "bob"}]}]},
    )
    (check,) = re.findall(r"CMD (\[.*\])$", last("HEALTHCHECK"))

    def healthy() -> bool:
        return subprocess.run(command(json.loads(check)), check=False).returncode == 0

    wait_until(healthy, "it to answer within the second that it has")
    version = subprocess.run(
        command([*entrypoint(), "--version"]), capture_output=True, text=True, check=True
    ).stdout
    process.kill()
    wait_until(lambda: not listens(http_port), "the container to be gone")
    assert not healthy()

    opt = image.root / "opt" / "ratelimit"
    assert not list((opt / "bin").glob("pip*"))
    (metadata,) = opt.glob("lib/*/site-packages/ratelimit_service-*.dist-info/METADATA")
    assert "License-Expression: Apache-2.0\n" in metadata.read_text()
    assert (metadata.parent / "licenses" / "LICENSE").exists()
    assert (answer.status, '"limitRemaining": 4' in answer.text) == (200, True)
    assert ("compiled" in version) is compiled()


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


def test_compose_ring() -> None:
    """The ring's shards are servers of the two files, each started alike."""
    services = {**compose(), **compose("compose.ring.yaml")}
    ring = services["ratelimit"]["environment"]["RATELIMIT_STORE"]
    shards = re.findall(r"([a-z0-9-]+):6379", ring)

    assert ring == f"redis+ring://{','.join(f'{shard}:6379' for shard in shards)}/0"
    assert len(shards) == 3
    assert {*shards} == {*services} - {"ratelimit", "envoy"}
    assert services["ratelimit"]["depends_on"] == [each for each in shards if each != "redis"]
    alike = {tuple(services[shard]["command"]) for shard in shards}
    assert alike == {tuple(compose()["redis"]["command"])}
    assert len({services[shard]["image"] for shard in shards}) == 1


def test_compose_opens_envoys_statistics() -> None:
    """Where docs/troubleshooting.md looks, localhost:9901, compose forwards to Envoy's port."""
    admin = shipped_config()["admin"]["address"]["socket_address"]

    assert admin == {"address": "0.0.0.0", "port_value": 9901}
    assert "127.0.0.1:9901:9901" in compose()["envoy"]["ports"]
    assert "localhost:9901" in (TOP / "docs/troubleshooting.md").read_text()


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
