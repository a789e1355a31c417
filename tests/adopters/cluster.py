"""A network of its own with a Redis in it, in which pods run beside each other."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from tests.adopters.pods import SERVICE_LINKS, Pod
from tests.http_client import HTTPAnswer, http
from tests.servers.image import Container, ContainerProcess
from tests.servers.process import Process, wait_until
from tests.servers.service import COMMAND

T = TypeVar("T")

_NEW_NETWORK = 0x40000000
"""CLONE_NEWNET."""

HOSTS = ("redis", "envoy-gateway")
_PATIENT = {"RATELIMIT_DEFAULT_STORE_TIMEOUT": "5s"}
"""A machine that runs tests may be busy. This ranks below all that an adopter says."""

_REDIS = "redis-server --port 6379 --bind 127.0.0.1 --save '' --appendonly no"


class Cluster:
    """Where `redis:6379` and `envoy-gateway` resolve, and every pod has the ports it wants."""

    def __init__(self, directory: Path, container: Container) -> None:
        self._directory = directory
        self._container = container
        self._pods: list[RunningPod] = []
        (directory / "hosts").write_text(
            "".join(f"127.0.0.1 {name}\n" for name in ("localhost", *HOSTS))
        )
        script = f"/usr/sbin/ip link set lo up && exec {_REDIS} --dir {directory}"
        self._redis = Process(["unshare", "--net", "sh", "-c", script], directory / "redis.log")
        self._sentinel = Process([], directory / "none")
        self._inside = ThreadPoolExecutor(1, initializer=self._enter)

    def start(self) -> None:
        self._redis.spawn()
        self._redis.wait_ready(lambda: "ready to accept connections" in self._redis.log.lower())

    def start_sentinel(self, name: str) -> None:
        """A Sentinel that knows the Redis as the master of that name."""
        file = self._directory / "sentinel.conf"
        file.write_text(f"port 26379\nsentinel monitor {name} 127.0.0.1 6379 1\n")
        inside = [
            "nsenter",
            f"--net=/proc/{self.pid}/ns/net",
            "redis-server",
            str(file),
            "--sentinel",
        ]
        self._sentinel = Process(inside, self._directory / "sentinel.log")
        self._sentinel.spawn()
        self._sentinel.wait_ready(lambda: "+monitor" in self._sentinel.log)

    def stop(self) -> None:
        self._sentinel.kill()
        for pod in self._pods:
            pod.kill()
        self._inside.shutdown()
        self._redis.kill()

    @property
    def pid(self) -> int:
        """A process whose network is the cluster's."""
        return self._redis.child.pid

    def within(self, do: Callable[[], T]) -> T:
        """Does something in a thread that is in the cluster's network."""
        return self._inside.submit(do).result()

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs a command in the cluster's network."""
        inside = ["nsenter", f"--net=/proc/{self.pid}/ns/net", *words]
        return subprocess.run(inside, capture_output=True, text=True, check=False)

    def pod(self, pod: Pod, mounts: Mapping[str, Path]) -> RunningPod:
        """A pod that runs, once its port is open."""
        command = self._container.command(
            pod.command,
            user=pod.user,
            environment={**_PATIENT, **SERVICE_LINKS, **pod.environment},
            mounts={"/etc/hosts": self._directory / "hosts", **mounts},
            beside=self.pid,
        )
        running = RunningPod(self, pod, ContainerProcess(command, self._directory / "pod.log"))
        self._pods.append(running)
        return running

    def _enter(self) -> None:
        """Moves the thread that calls into the cluster's network."""
        libc = ctypes.CDLL(None, use_errno=True)
        with Path(f"/proc/{self.pid}/ns/net").open() as namespace:
            if libc.setns(namespace.fileno(), _NEW_NETWORK):
                raise OSError(ctypes.get_errno(), "setns")


class RunningPod:
    """What its probes, its Envoys and its dashboards see of it."""

    def __init__(self, cluster: Cluster, pod: Pod, process: ContainerProcess) -> None:
        self._cluster = cluster
        self._pod = pod
        self._process = process

    def start(self) -> None:
        self._process.spawn()
        self._process.wait_ready(self.is_ready)

    def is_ready(self) -> bool:
        try:
            return self.get("/healthcheck").status == 200
        except OSError:
            return False

    @property
    def log(self) -> str:
        return self._process.log

    @property
    def pid(self) -> int:
        """The pod's first process, by its number on this machine."""
        return self._process.pid

    def get(self, path: str, port: int = 8080) -> HTTPAnswer:
        return self._cluster.within(lambda: http(f"http://127.0.0.1:{port}{path}"))

    def hit(self, domain: str, descriptor: str, *flags: str) -> list[str]:
        """The first words of the answers to calls over gRPC."""
        address = f"localhost:{self._pod.grpc_port}"
        done = self._cluster.run(
            COMMAND, "hit", domain, descriptor, "--address", address, "--timeout", "60s", *flags
        )
        lines = [line.split() for line in done.stdout.splitlines()]
        return [words[0] for words in lines if words[1:2] == [domain]] or [done.stderr]

    def metrics(self) -> str:
        return self.get("/metrics", self._pod.metrics_port).text

    def privileges(self) -> tuple[int, int]:
        """The user of the pod's first process, and its capabilities."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        words = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
        return int(words["Uid"][1]), int(words["CapEff"][0], 16)

    def stop(self) -> int:
        """Ends it as Kubernetes does, and returns its exit code."""
        os.kill(self.pid, signal.SIGTERM)
        return self._process.wait()

    def kill(self) -> None:
        self._process.kill()


class ConfigMap:
    """A mounted ConfigMap: links through `..data`, which is turned when it changes."""

    def __init__(self, directory: Path, **files: str) -> None:
        """`files` are by their names without `.yaml`."""
        self.directory = directory
        self._number = 0
        directory.mkdir()
        self.write(**files)
        for name in files:
            (directory / f"{name}.yaml").symlink_to(f"..data/{name}.yaml")

    def write(self, **files: str) -> None:
        self._number += 1
        content = self.directory / f"..2026_11_22_{self._number}"
        content.mkdir()
        for name, text in files.items():
            (content / f"{name}.yaml").write_text(text)
        following = self.directory / "..data_tmp"
        following.symlink_to(content.name)
        following.replace(self.directory / "..data")


__all__ = ["Cluster", "ConfigMap", "RunningPod", "wait_until"]
