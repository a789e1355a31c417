"""An image without a container engine: the Dockerfile's steps, run in a file system of their own.

Linux' namespaces are all that a container engine has, too. The base image stands for itself by what
this machine has in its place: its libraries, its shell, and the Python that runs the tests.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.servers.process import Process
from tests.servers.service import COMMAND

TOP = Path(__file__).parents[2]
DOCKERFILE = TOP / "docker" / "Dockerfile"
_PYTHON = Path(sys.base_prefix)
_ISOLATED = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"]
_PROGRAMS = ("sh", "bash", "env", "ln", "setpriv")


class Instruction(NamedTuple):
    name: str
    rest: str


def instructions() -> list[list[Instruction]]:
    """The Dockerfile's stages, each with its instructions in order; continued lines are joined."""
    text = re.sub(r"\\\n\s*", "", DOCKERFILE.read_text())
    stages: list[list[Instruction]] = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            if name == "FROM":
                stages.append([])
            stages[-1].append(Instruction(name, rest.strip()))
    return stages


def last(name: str) -> str:
    """What the last stage says by an instruction."""
    return [each.rest for each in instructions()[-1] if each.name == name][-1]


def image_environment() -> dict[str, str]:
    """The variables that the image sets."""
    return dict(word.split("=", 1) for word in shlex.split(last("ENV")))


def entrypoint() -> list[str]:
    words: list[str] = json.loads(last("ENTRYPOINT"))
    return words


def need_namespaces() -> None:
    """Skips a test where this user may not make namespaces; fails it where CI is set."""
    why = "this needs root and Linux' namespaces (util-linux, iproute2)"
    able = os.geteuid() == 0 and all(
        map(_is, ("/usr/bin/unshare", "/usr/bin/setpriv", "/usr/bin/nsenter", "/usr/sbin/ip"))
    )
    if not able or subprocess.run([*_ISOLATED, "true"], check=False).returncode:
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)


class Container:
    """A file system that commands run in as in a container."""

    def __init__(self, root: Path, mounts: Sequence[Path] = ()) -> None:
        """`mounts` are at the same places in the container."""
        self.root = root
        self._mounts = mounts

    def command(
        self,
        words: Sequence[str],
        *,
        user: int,
        environment: Mapping[str, str],
        mounts: Mapping[str, Path],
        beside: int | None = None,
    ) -> list[str]:
        """A command that runs words as process 1 of a container.

        Its file system cannot be written, it has no capability and gets none, and no variable but
        the image's and those given. `mounts` are host paths by their places in the container. Its
        network is that of the process `beside`; without one it is new, and has loopback only.
        """
        lines = [f"mount --bind {self.root} {self.root}"]
        lines += [_mount(self.root, source, source) for source in _system(whole=False)]
        lines += [_mount(self.root, str(path), str(path)) for path in self._mounts]
        lines += [_mount(self.root, str(source), place) for place, source in mounts.items()]
        lines += [f"mount -t proc proc {self.root}/proc"]
        lines += [f"mount -o remount,bind,ro {self.root}"]
        lines += ["/usr/sbin/ip link set lo up"]
        given = {**image_environment(), **environment, "PATH": "/usr/local/bin:/usr/bin:/bin"}
        run = ["/usr/sbin/chroot", str(self.root), "/usr/bin/setpriv"]
        run += [f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs"]
        run += ["--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all"]
        run += ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in given.items())]
        script = "\n".join([*lines, f"exec {shlex.join([*run, *words])}"])
        if beside is None:
            return [*_ISOLATED, "sh", "-ec", script]
        isolated = [word for word in _ISOLATED if word != "--net"]
        return ["nsenter", f"--net=/proc/{beside}/ns/net", *isolated, "sh", "-ec", script]


class ContainerProcess(Process):
    """A process that runs a container's command.

    The container's process 1 has changed its user, and would outlive the process that made it.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        super().__init__(command, log, family=True)

    @property
    def pid(self) -> int:
        """The container's process 1, by its number on this machine."""
        outer = self.child.pid
        (inner,) = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
        return int(inner)


def installed(directory: Path) -> Container:
    """What is under test, at the places of the image, but not built by its steps."""
    root = directory / "image"
    _base(root, whole=False)
    (root / "usr/bin/ratelimit").symlink_to(COMMAND)
    shutil.copytree(TOP / "rules", root / "etc/ratelimit/rules")
    environment = Path(sys.prefix)
    return Container(root, [TOP] if environment.is_relative_to(TOP) else [environment, TOP])


def built(directory: Path, build: str) -> Container:
    """The image by the Dockerfile's steps; `build` is its argument: compiled or interpreted."""
    roots = {"build": directory / "build", "": directory / "image"}
    first, final = instructions()
    for root, steps, arguments in (
        (roots["build"], first, {"BUILD": build}),
        (roots[""], final, {}),
    ):
        workdir = "/"
        for name, rest in steps:
            whole = steps is first
            if name == "FROM":
                _base(root, whole=whole)
            elif name == "WORKDIR":
                workdir = rest
                (root / workdir.strip("/")).mkdir(parents=True)
            elif name == "COPY":
                *words, target = rest.split()
                source = roots["build"] if words[0] == "--from=build" else TOP
                place = root / str(Path(workdir, target)).strip("/")
                for word in words:
                    if not word.startswith("--"):
                        _copy(source / word.strip("/"), place, into=target.endswith("/"))
            elif name == "RUN":
                _run(root, f"cd {workdir} && {rest}", arguments, whole=whole)
    return Container(roots[""])


def _run(root: Path, command: str, arguments: Mapping[str, str], *, whole: bool) -> None:
    mounts = [_mount(root, source, source) for source in _system(whole=whole)]
    words = ["/usr/sbin/chroot", str(root), "/bin/sh", "-c", command]
    subprocess.run(
        ["unshare", "--mount", "sh", "-ec", "\n".join([*mounts, f"exec {shlex.join(words)}"])],
        env={**os.environ, **arguments, "PATH": f"{_PYTHON}/bin:/usr/bin:/bin"},
        check=True,
        stdout=subprocess.DEVNULL,
    )


def _base(root: Path, *, whole: bool) -> None:
    """What stands for the base image: places for what is mounted, and the links of Debian."""
    for name in ("usr/bin", "usr/local", "proc", "tmp", "etc"):
        (root / name).mkdir(parents=True, exist_ok=True)
    if not whole:
        (root / "etc/nsswitch.conf").write_text("hosts: files dns\n")  # as Debian has it
    for link in ("bin", "lib", "lib64", "sbin"):
        (root / link).symlink_to(f"usr/{link}")
    for source in _system(whole=whole):
        place = root / source.strip("/")
        if Path(source).is_dir():
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
    if not whole:
        for program in _PROGRAMS:
            shutil.copy(f"/usr/bin/{program}", root / "usr/bin" / program)
    for place in (*root.parents, root):  # whoever runs in it may pass through
        if place.is_relative_to(root.parent):
            place.chmod(0o755)


def _system(*, whole: bool) -> list[str]:
    """What is there of this machine, at the same places."""
    libraries = [path for path in ("/usr/lib", "/usr/lib64") if Path(path).exists()]
    devices = ["/dev/null", "/dev/urandom", str(_PYTHON)]
    if whole:  # with a compiler, and with what pip needs
        extra = [path for path in ("/usr/include", "/usr/share", "/opt/wheels") if _is(path)]
        return [*libraries, "/usr/bin", "/etc", *extra, *devices]
    return [*libraries, *devices]


def _is(path: str) -> bool:
    return Path(path).exists()


def _mount(root: Path, source: str, place: str) -> str:
    """A line of shell that mounts a path at a place, which is made if need be."""
    target = root / place.strip("/")
    if Path(source).is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    return f"mount --rbind {shlex.quote(str(source))} {shlex.quote(str(target))}"


def _copy(source: Path, place: Path, *, into: bool) -> None:
    if source.is_dir():
        shutil.copytree(
            source,
            place,
            symlinks=True,
            ignore=shutil.ignore_patterns("__pycache__"),
            dirs_exist_ok=True,
        )
        return
    (place if into else place.parent).mkdir(parents=True, exist_ok=True)
    shutil.copy(source, place, follow_symlinks=False)
