"""What all commands have in common: help, the environment, mistakes, and what they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ratelimit_service import __version__, compiled
from ratelimit_service.settings import settings
from tests.cli.ran import Ran, RanApart
from tests.servers.process import free_port
from tests.servers.redis import SharedRedis
from tests.servers.service import COMMAND, ServiceProcess

ANY_PORTS = {"RATELIMIT_GRPC": "127.0.0.1:0", "RATELIMIT_HTTP": "127.0.0.1:0"}
"""Free ones, for a service that is to fail for another reason."""


@pytest.mark.parametrize(
    "command",
    [[], ["serve"], ["restart"], ["init"], ["lint"], ["schema"], ["diff"], ["explain"], ["hit"]],
)
def test_help(command: list[str]) -> None:
    """Every command says what it does, and shows an example."""
    ran = Ran(*command, "--help")

    assert ran.code == 0
    assert "Usage: ratelimit" in ran.out
    assert not command or "Example: ratelimit" in ran.out


def test_help_of_serve_has_every_setting_once_in_groups() -> None:
    """`serve --help` shows each setting under its group, and an empty default not at all."""
    out = Ran("serve", "--help").out
    shown = re.findall(r"^  (--[a-z-]+)|^(\S.*):$", out, re.MULTILINE)
    groups, flags = [group for _, group in shown if group], [flag for flag, _ in shown if flag]

    assert flags == [*(each.flag for each in settings()), "--check"]
    assert groups == [*dict.fromkeys(each.group for each in settings()), "Other"]
    assert "default: ()" not in out
    assert "default: ]" not in out


def test_ranks() -> None:
    """A flag ranks above our name, that above the reference's, and that above the image's."""
    flags = ["--rules", "/flag"]
    environment = {
        "RATELIMIT_RULES": "/ours",
        "RUNTIME_ROOT": "/reference",
        "RATELIMIT_DEFAULT_RULES": "/image",
    }

    refused = [Ran("serve", "--check", *flags, **environment).err]
    for name in list(environment):
        refused.append(Ran("serve", "--check", **environment).err)
        del environment[name]

    for path, error in zip(("/flag", "/ours", "/reference/config", "/image"), refused, strict=True):
        assert f"ratelimit: {path}: there is no such file" in error


def test_version() -> None:
    """The version is told, and whether the hot path is compiled: in its environment it is."""
    here = "compiled" if Path(sys.prefix).name == ".venv-compiled" else "interpreted"

    assert RanApart("--version").out == f"ratelimit {__version__} ({here})\n"
    assert compiled() is (here == "compiled")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["servee"], "Did you mean 'serve'? (see ratelimit --help)"),
        (["serve", "--prot", "1"], "(see ratelimit serve --help)"),
        (["--grpc", "x"], "'x' is no address: write HOST:PORT, as in 127.0.0.1:8081"),
        (["--check", "--second-store", "redis://h"], "--second-store needs a --store in Redis"),
        (["serve", "rules"], "serve takes flags only, and not 'rules': name rules with --rules"),
        (["man", "serve"], "Got unexpected extra argument (serve) (see ratelimit man --help)"),
        (["completion"], "Choose from: bash, fish, zsh (see ratelimit completion --help)"),
        (["serve", "--failure-policy", "opne"], "use open or closed or error or local"),
        (["serve", "--max-counters", "0"], "'0' is no number from 1 upwards"),
        (["serve", "--rules", "/nowhere"], "/nowhere: there is no such file or directory"),
        (["--check", "--store", "redis://:secret@h:x/0"], "the store URL cannot be read"),
        (
            ["--check", "--store", "redis:/:secret@h:6379"],
            "the store has no scheme, as redis:// is",
        ),
        (["--check", "--store", "u:secret@h:6379"], "the store has no scheme, as redis:// is one"),
        (["--check", "--store", "file:/nowhere"], "/nowhere cannot be read: No such file or dir"),
        (["serve", "--store", "memroy"], "store scheme 'memroy' is unknown: allowed are memory"),
        (["hit", "demo", "a", "--repeat", "x"], "'--repeat': 'x' is not a valid integer."),
        (["health", "--http", "http://h:1"], "'http://h:1' has a scheme: write HOST:PORT alone"),
        (["top", "--admin", "http://h:1"], "'http://h:1' has a scheme: write HOST:PORT alone"),
        (["init", f"{'x' * 300}.yaml"], f"ratelimit: {'x' * 300}.yaml: File name too long"),
        (["lint", "/nowhere"], "/nowhere: there is no such file or directory"),
        (["lint"], "Missing argument 'PATHS...'"),
        (["explain", "--rules", "/nowhere", "d", "a=b"], "there is no such file or directory"),
        (["hit", "demo"], "Missing argument 'DESCRIPTORS...' (see ratelimit hit --help)"),
        (["hit", "demo", "=b"], "'=b' has an entry without key: write key=value,key=value"),
        (["hit", "demo", "a", "--limit", "5"], "--limit '5': write N/UNIT, as in 10/minute"),
        (["hit", "demo", "a", "--timeout", "5"], "ratelimit: --timeout '5' is no duration: write"),
        (
            ["hit", "demo", "a", "--address", "http://localhost:8080"],
            "--address 'http://localhost:8080' is no address of a gRPC port: write HOST:PORT, as",
        ),
        (["hit", "demo", "a", "--address", "8081"], "--address '8081' is no address of a gRPC"),
        (["hit", "demo", "a", "--address", "unix:"], "--address 'unix:' is no address of a gRPC"),
        (["restart", "--timeout", "5"], "ratelimit: --timeout '5' is no duration: write a number"),
        (
            ["hit", "demo", "a", "--address", "localhost:1", "--timeout", "60s"],
            "no service answers at localhost:1",
        ),
        (
            ["hit", "", "a", "--address", "localhost:1", "--timeout", "60s"],
            "no service answers at localhost:1",
        ),
    ],
)
@pytest.mark.usefixtures("programs")  # some open a port before they end
def test_errors_are_one_line(rules: Path, arguments: list[str], message: str) -> None:
    """A mistake is one line on standard error, exit code 2, and never a traceback."""
    ran = Ran(*arguments, RATELIMIT_RULES=str(rules), **ANY_PORTS)

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("ratelimit: ")
    assert message in ran.err
    assert ran.err.count("\n") == 1
    assert "secret" not in ran.err


def test_switches_of_the_environment_are_true_or_false() -> None:
    """A switch whose variable is neither true nor false is refused in these words."""
    ran = Ran("serve", "--check", RATELIMIT_SHADOW_MODE="maybe")

    assert ran.code == 2
    assert "'RATELIMIT_SHADOW_MODE'): 'maybe' is neither true nor false\n" in ran.err


@pytest.mark.usefixtures("programs")  # as above
def test_errors_name_flags_that_the_command_has(tmp_path: Path) -> None:
    """A missing path names --rules where the command has that flag, and nowhere else."""
    for path in (tmp_path / "nowhere", tmp_path):  # which is empty
        assert "--rules" not in Ran("lint", str(path)).err
        commands = [["serve", "--check"], ["explain", "d", "a=b"]]
        for command in commands if path == tmp_path else [["serve"], *commands]:
            ran = Ran(*command, "--rules", str(path), **ANY_PORTS)
            assert (ran.code, "name another with --rules PATH" in ran.err) == (2, True)
            assert ("ratelimit init" in ran.err) == (command[0] == "serve")


def test_mistakes_in_the_environment(rules: Path) -> None:
    """A mistake in a variable names the variable."""
    ours = Ran("serve", RATELIMIT_GRPC="x", RATELIMIT_RULES=str(rules))
    theirs = Ran("serve", GRPC_PORT="x", RATELIMIT_RULES=str(rules))

    assert "RATELIMIT_GRPC" in ours.err
    assert "GRPC_HOST and GRPC_PORT" in theirs.err
    assert (ours.code, theirs.code) == (2, 2)


def test_arguments_of_the_reference(rules: Path) -> None:
    """Without a command, arguments that are not ours are said and ignored."""
    argument = "--quotaRateLimitServiceAddr=http://quota:8080"

    started = Ran("--check", argument, "-v=1", RATELIMIT_RULES=str(rules), **ANY_PORTS)
    request = Ran("serve", "--check", argument, RATELIMIT_RULES=str(rules), **ANY_PORTS)
    misspelt = Ran("--rule=rules", RATELIMIT_RULES=str(rules), **ANY_PORTS)

    assert (started.code, started.out) == (0, "it would start\n")
    assert f"no arguments of this service: {argument} -v=1" in started.err
    assert (request.code, "No such option" in request.err) == (2, True)
    assert (misspelt.code, "Did you mean '--rules'?" in misspelt.err) == (2, True)


def test_the_log_says_what_does_nothing(tmp_path: Path, rules: Path) -> None:
    """A start with names that do nothing has a warning for each kind, and serves."""
    environment = {"REDIS_POOL_SIZE": "5", "REDIS_TIMEOUT": "1s", "RATELIMIT_TEAM": "edge"}
    environment["RATELIMIT_STORE"] = "memory"
    service = ServiceProcess(tmp_path, "--rules", str(rules), environment=environment)
    service.start()

    log = service.log
    service.kill()
    assert re.search("WARNING no setting has these names.*: RATELIMIT_TEAM\n", log)
    assert re.search("WARNING ignored, since .*: REDIS_POOL_SIZE, REDIS_TIMEOUT; docs", log)


def test_a_misspelt_name_is_one_line(rules: Path) -> None:
    """A name in the environment that is nearly ours ends the start with the right one."""
    ran = Ran("serve", RATELIMIT_STROE="redis://h", RATELIMIT_RULES=str(rules), **ANY_PORTS)

    assert (ran.code, ran.err) == (
        2,
        "ratelimit: RATELIMIT_STROE is no name of a setting: did you mean RATELIMIT_STORE?\n",
    )


def test_port_in_use(rules: Path, service: ServiceProcess) -> None:
    """A port that is taken is told with the flag that names another."""
    ports = {
        "--grpc": service.grpc_port,
        "--http": service.http_port,
        "--admin": service.admin_port,
    }
    for flag, port in ports.items():
        addresses = dict.fromkeys(ports, "127.0.0.1:0") | {flag: f"127.0.0.1:{port}"}
        flags = [word for pair in addresses.items() for word in pair]

        ran = RanApart("serve", "--rules", str(rules), *flags)

        assert ran.code == 2
        assert f"127.0.0.1:{port}" in ran.err
        assert f"choose another with {flag} HOST:PORT" in ran.err


def test_password_on_the_command_line(
    tmp_path: Path, rules: Path, redis_server: SharedRedis
) -> None:
    """A password that others can list is hinted at once, and shown nowhere; elsewhere it may be."""
    url = redis_server.url.replace("//", "//:hunter2@")
    flags = ("--rules", str(rules), "--workers", "1")
    listed = ServiceProcess(tmp_path, *flags, "--store", url)
    hidden = ServiceProcess(tmp_path, *flags, environment={"RATELIMIT_STORE": url})
    for service in (listed, hidden):
        service.start()

    shown = listed.log + listed.get("/healthcheck").text
    hints = [service.log.count("the password in --store is seen") for service in (listed, hidden)]
    for service in (listed, hidden):
        service.kill()

    assert hints == [1, 0]
    assert "hunter2" not in shown


def test_reader_that_goes_away(rules: Path) -> None:
    """`ratelimit … | head` ends quietly."""
    command = f"{COMMAND} explain --rules {rules} demo {'user=a ' * 2000} | head -n 1"

    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)

    assert done.stderr == ""


def test_nothing_of_others_acts_on_the_terminal(tmp_path: Path) -> None:
    """Names in files and arguments are shown with all escaped that does not print."""
    path = tmp_path / "odd.yaml"
    path.write_text(
        'domain: "a\\e[2J\\n\\u202e"\n'
        'descriptors: [{key: "k\\e[31m\\u202e", rate_limit: {unit: day}}]\n'
    )
    shown = [
        Ran("lint", str(path)),
        Ran("explain", "a\x1b[2J\n\u202e", "k\x1b[31m\u202e=v", "--rules", str(path)),
        Ran("explain", "none\x1b[2J", "k=v", "--rules", str(path)),
        Ran("lint", "none\x1b[2J"),
    ]

    for each in shown:
        text = each.out + each.err
        assert text
        assert all(line.isprintable() for line in text.split("\n"))


def test_health_of_nobody() -> None:
    """`health` asks where `serve` would listen, and exits 1 if nobody answers there."""
    environment = {**os.environ, "HOST": "::", "PORT": str(free_port())}

    done = subprocess.run(
        [COMMAND, "health"], env=environment, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"no service answers at [::]:{environment['PORT']}: Connection refused; "
        "name its HTTP port with --http HOST:PORT\n"
    )


def test_health_at_the_grpc_port(service: ServiceProcess) -> None:
    """The port that speaks gRPC is told as that, and nothing of its bytes is shown."""
    done = subprocess.run(
        [COMMAND, "health", "--http", service.address], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"what answers at {service.address} speaks no HTTP/1: if it is the service's gRPC port, "
        "name its HTTP port with --http HOST:PORT, 8080 if nothing else was said\n"
    )


def test_words_are_read_without_what_only_some_commands_need() -> None:
    """To read the words of a command takes nothing that speaks HTTP, TLS or gRPC, or reads YAML."""
    program = "import ratelimit_service.cli.main, sys; print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    heavy = {
        "asyncio",
        "ssl",
        "http.client",
        "aiohttp",
        "grpc",
        "google.protobuf",
        "yaml",
        "uvloop",
    }
    assert heavy.isdisjoint(ran.stdout.split())


def test_a_question_takes_nothing_of_what_serves() -> None:
    """`hit` reads no setting of a service, so it does not import what declares them."""
    program = "import ratelimit_service.cli.hit, sys; print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert "ratelimit_service.settings" not in ran.stdout.split()
