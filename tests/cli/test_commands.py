"""The command `ratelimit`, run as a user does."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service import __version__, compiled
from ratelimit_service.cli import format_descriptor, main, parse_descriptor
from ratelimit_service.model import Descriptor, Entry
from ratelimit_service.settings import settings
from tests.servers.process import PATIENCE_SECONDS, free_port
from tests.servers.redis import RedisServer
from tests.servers.service import COMMAND, ServiceProcess

RULES = """domain: demo
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 2, name: per-user}}
  - {key: free, rate_limit: {unlimited: true}}
  - key: vip
    rate_limit: {unit: day, requests_per_unit: 9, replaces: [{name: per-user}]}
  - {key: at_once, rate_limit: {unit: minute, requests_per_unit: 1, algorithm: concurrency}}
  - key: burst
    rate_limit: {unit: hour, requests_per_unit: 3, burst: 9, algorithm: token_bucket}
"""

TOP = Path(__file__).parents[2]

ANY_PORTS = {"RATELIMIT_GRPC": "127.0.0.1:0", "RATELIMIT_HTTP": "127.0.0.1:0"}
"""Free ones, for a service that is to fail for another reason."""


SERVES_NOBODY = {"explain", "hit", "lint", "schema", "test"}
"""Commands that need no process of their own."""


class Ran:
    """What a run of the command has left."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        if arguments[0] in SERVES_NOBODY or {"--help", "--check"} & set(arguments):
            self._run_here(arguments, environment)
            return
        done = subprocess.run(
            [COMMAND, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
            env={**os.environ, **environment},
        )
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

    def _run_here(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        out, err = StringIO(), StringIO()
        with (
            pytest.MonkeyPatch.context() as patch,
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            patch.setattr(sys, "argv", ["ratelimit", *arguments])
            patch.setattr(os, "nice", lambda _: 0)  # it would hold for all tests that follow
            for name, value in environment.items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                main()
        assert isinstance(ended.value.code, int)
        self.code, self.out, self.err = ended.value.code, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rules") / "demo.yaml"
    path.write_text(RULES)
    return path


@pytest.fixture(scope="module")
def service(rules: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    process = ServiceProcess(tmp_path_factory.mktemp("service"), "--rules", str(rules))
    process.start()
    yield process
    process.kill()


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

    assert Ran("--version").out == f"ratelimit {__version__} ({here})\n"
    assert compiled() is (here == "compiled")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["servee"], "Did you mean 'serve'? (see ratelimit --help)"),
        (["serve", "--prot", "1"], "(see ratelimit serve --help)"),
        (["--grpc", "x"], "'x' is no address: write HOST:PORT, as in 0.0.0.0:8081"),
        (["serve", "--second-store", "redis://h"], "--second-store needs a --store in Redis"),
        (["serve", "--failure-policy", "opne"], "use open or closed or error or local"),
        (["serve", "--max-counters", "0"], "'0' is no number from 1 upwards"),
        (["serve", "--rules", "/nowhere"], "/nowhere: there is no such file or directory"),
        (["serve", "--store", "redis://:secret@h:x/0"], "the store URL cannot be read"),
        (["serve", "--store", "redis:/:secret@h:6379"], "the store has no scheme, as redis:// is"),
        (["serve", "--store", "u:secret@h:6379"], "the store has no scheme, as redis:// is one"),
        (["serve", "--store", "file:/nowhere"], "/nowhere cannot be read: No such file or dir"),
        (["serve", "--store", "memroy"], "store scheme 'memroy' is unknown: allowed are memory"),
        (["lint", "/nowhere"], "/nowhere: there is no such file or directory"),
        (["lint"], "Missing argument 'PATHS...'"),
        (["explain", "--rules", "/nowhere", "d", "a=b"], "there is no such file or directory"),
        (["hit", "demo"], "Missing argument 'DESCRIPTORS...' (see ratelimit hit --help)"),
        (["hit", "demo", "=b"], "'=b' has an entry without key: write key=value,key=value"),
        (["hit", "demo", "a", "--limit", "5"], "--limit '5': write N/UNIT, as in 10/minute"),
        (["hit", "demo", "a", "--timeout", "5"], "ratelimit: --timeout '5' is no duration: write"),
        (["restart", "--timeout", "5"], "ratelimit: --timeout '5' is no duration: write a number"),
        (["hit", "demo", "a", "--address", "localhost:1"], "no service answers at localhost:1"),
        (["hit", "", "a", "--address", "localhost:1"], "no service answers at localhost:1"),
    ],
)
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


def test_errors_name_flags_that_the_command_has(tmp_path: Path) -> None:
    """A missing path names --rules where the command has that flag, and nowhere else."""
    for path in (tmp_path / "nowhere", tmp_path):  # which is empty
        assert "--rules" not in Ran("lint", str(path)).err
        for command in (["serve"], ["serve", "--check"], ["explain", "d", "a=b"]):
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
    asked = Ran("serve", "--check", argument, RATELIMIT_RULES=str(rules), **ANY_PORTS)
    misspelt = Ran("--rule=rules", RATELIMIT_RULES=str(rules), **ANY_PORTS)

    assert (started.code, started.out) == (0, "it would start\n")
    assert f"no arguments of this service: {argument} -v=1" in started.err
    assert (asked.code, "No such option" in asked.err) == (2, True)
    assert (misspelt.code, "Did you mean '--rules'?" in misspelt.err) == (2, True)


def test_the_log_says_what_does_nothing(tmp_path: Path, rules: Path) -> None:
    """A start with names that do nothing has a warning for each kind, and serves."""
    environment = {"REDIS_POOL_SIZE": "5", "REDIS_TIMEOUT": "1s", "RATELIMIT_TEAM": "edge"}
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

        ran = Ran("serve", "--rules", str(rules), *flags)

        assert ran.code == 2
        assert f"127.0.0.1:{port}" in ran.err
        assert f"choose another with {flag} HOST:PORT" in ran.err


def test_lint(tmp_path: Path, rules: Path) -> None:
    """Lint prints each problem with its place, and exits with 1 if there is any."""
    bad = tmp_path / "bad.yaml"
    bad.write_text("domain: a\nunit: day\n")

    clean, found = Ran("lint", str(rules)), Ran("lint", str(rules), str(bad))

    assert (clean.code, clean.out, clean.err) == (0, "", "no problems found\n")
    assert (found.code, found.err) == (1, "1 problem found\n")
    assert found.out.startswith(f"{bad}:2:1: unit does nothing here")


def test_lint_formats(tmp_path: Path) -> None:
    """Lint shows the line with a caret, and says the same as JSON, to GitHub, and as SARIF."""
    bad = tmp_path / "bad.yaml"
    bad.write_text(
        "domain: a\ndescriptors:\n- {key: a, value: a/*, rate_limit: {unit: \u202eno}}\n"
    )

    text, github = Ran("lint", str(bad)), Ran("lint", "--format", "github", str(bad))
    plain = json.loads(Ran("lint", "--format", "json", str(bad)).out)
    sarif = json.loads(Ran("lint", "--format", "sarif", str(bad)).out)

    assert text.out.splitlines()[1:3] == [
        "    3 | - {key: a, value: a/*, rate_limit: {unit: \\u202eno}}",
        "                               ^",
    ]
    assert [(each["line"], each["column"], each["level"]) for each in plain] == [
        (3, 24, "error"),
        (3, 43, "error"),
    ]
    assert github.out.startswith(f"::error file={bad},line=3,col=24,title=")
    (run,) = sarif["runs"]
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == str(bad)
    assert place["region"] == {"startLine": 3, "startColumn": 24}
    assert {each["ruleId"] for each in run["results"]} == {each["kind"] for each in plain}


def test_lint_reads_standard_input() -> None:
    """A dash stands for standard input; a tab is called a tab."""
    done = subprocess.run(
        [COMMAND, "lint", "-"],
        input="domain: a\ndescriptors:\n- key: k\n\tvalue: x\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )

    assert done.returncode == 1
    assert done.stdout.startswith("<stdin>:4:1: this is no YAML: a tab: YAML wants spaces")
    assert Ran("lint", "-", "x").code == 2


def test_lint_hints(tmp_path: Path) -> None:
    """What is only worth knowing is printed, and is no problem."""
    path = tmp_path / "queue.yaml"
    limit = "{unit: second, requests_per_unit: 5, max_wait: 2s, algorithm: leaky_bucket}"
    path.write_text(f"domain: a\ndescriptors:\n  - key: k\n    rate_limit: {limit}\n")

    ran = Ran("lint", str(path))

    assert (ran.code, ran.err) == (0, "no problems found\n")
    assert "Envoy does not wait: to it this queue is a meter with a burst of 10" in ran.out


def test_schema() -> None:
    """`schema` prints the JSON Schema that is published."""
    assert Ran("schema").out == (TOP / "docs" / "rules.schema.json").read_text()


def test_tests_of_rules(tmp_path: Path, rules: Path) -> None:
    """The exit status of `test` tells success, a difference, too little coverage, and problems."""
    path = tmp_path / "some.test.yaml"
    step = "{domain: demo, descriptors: [{user: a}], times: 3, expect: %s}"
    text = f"rules: {rules}\ncases: [{{name: one, steps: [{step}]}}]\n"

    path.write_text(text % "[OK]")
    problem = Ran("test", str(path))
    path.write_text(text % "OK")
    differs = Ran("test", str(path))
    path.write_text((text % "OK").replace("times: 3", "times: 2"))
    few, passed = Ran("test", str(path), "--min-coverage", "50"), Ran("test", str(tmp_path))

    assert (problem.code, problem.out) == (2, "")
    assert problem.err.startswith(f"{path}:2:")
    assert (differs.code, differs.err) == (1, "")
    assert "- expect: OK\n  + expect: OVER_LIMIT\n1 case, 1 failed\n" in differs.out
    assert (few.code, few.out) == (1, "1 case passed\n")
    assert few.err.endswith("1 of 5 rules met: 20 %\n--min-coverage 50 is not reached\n")
    assert (passed.code, passed.out, passed.err) == (0, "1 case passed\n", "")


def test_explain(rules: Path) -> None:
    """Explain tells the rule, the walk and the counter."""
    ran = Ran("explain", "--rules", str(rules), "demo", "user=a", "free=b")

    assert ran.code == 0
    assert f"rule user at {rules}:3:17: 2 per day" in ran.out
    assert "counter {" in ran.out
    assert "unlimited" in ran.out


def test_explain_in_json(rules: Path) -> None:
    """--json gives the same for programs, one object a descriptor."""
    ran = Ran("explain", "--rules", str(rules), "--json", "demo", "user=a", "x=b")

    first, second = map(json.loads, ran.out.splitlines())
    assert (first["rule"], first["steps"][0]["taken"], second["rule"]) == ("user", "user", None)
    assert first["counter"].endswith("f86400:4:demo4:user=1:a")


def test_hit(service: ServiceProcess) -> None:
    """Hit makes a decision a line, sums up, and exits with 1 once something is over."""
    ran = Ran("hit", "demo", "user=hit", "--address", service.address, "--repeat", "3")

    assert ran.code == 1
    lines = ran.out.splitlines()
    assert [line.partition(", resets in ")[0] for line in lines[:3]] == [
        "OK          demo user=hit  1 of 2 left",
        "OK          demo user=hit  0 of 2 left",
        "OVER_LIMIT  demo user=hit  0 of 2 left",
    ]
    assert lines[3] == "2 allowed, 1 over limit"


def test_hit_with_several_descriptors(service: ServiceProcess) -> None:
    """Several descriptors are one request, told one a line below it."""
    ran = Ran("hit", "demo", "free=a", "none=b", "--address", service.address)

    assert (ran.code, ran.out.splitlines()) == (
        0,
        [
            "OK          demo",
            "  OK          free=a  unlimited",
            "  OK          none=b  not counted: no rule matches",
        ],
    )


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (["demo", "none=b"], "no rule matches"),
        (["demo", "none=b", "none=c"], "no rule matches"),
        (["demo", "user=why,none=b"], "no rule matches"),
        (["dmo", "user=why"], "the service has no domain 'dmo'"),
        (["dmo", "user=why", "--limit", "5/hour"], "the service has no domain 'dmo'"),
        (["demo", "user=why", "vip=a"], "another rule of the request replaces its own"),
    ],
)
def test_hit_says_why_nothing_was_counted(
    service: ServiceProcess, asked: list[str], why: str
) -> None:
    """What no count decides on is told with the reason, in JSON too, and asking counts nothing."""
    ran = Ran("hit", *asked, "--address", service.address)
    in_json = Ran("hit", *asked, "--address", service.address, "--json")

    assert f"not counted: {why}\n" in ran.out
    assert why in [each.get("not_counted") for each in json.loads(in_json.out)["statuses"]]
    user = Ran("hit", "demo", "user=why", "--hits", "0", "--address", service.address)
    assert "2 of 2 left" in user.out


def test_hit_says_which_policy_decided(tmp_path: Path, rules: Path, own_redis: RedisServer) -> None:
    """What the failure policy decides is told with the policy's name."""
    own_redis.kill()
    flags = ["--rules", str(rules), "--store", own_redis.url, "--failure-policy", "closed"]
    service = ServiceProcess(tmp_path, *flags, "--workers", "1")
    service.start()

    ran = Ran("hit", "demo", "user=a", "--address", service.address)

    service.kill()
    assert (ran.code, ran.out) == (
        1,
        "OVER_LIMIT  demo user=a  "
        "not counted: failure policy closed: the service's health says why\n",
    )


def test_password_on_the_command_line(
    tmp_path: Path, rules: Path, redis_server: RedisServer
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


def test_hit_at_another_port(service: ServiceProcess) -> None:
    """A port that speaks something else is told as what it is, with what to name instead."""
    at_http = Ran("hit", "demo", "user=a", "--address", f"127.0.0.1:{service.http_port}")
    with_tls = ["--tls-ca", str(Path(trustme.__file__).parent / "none.pem")]
    no_file = Ran("hit", "demo", "user=a", "--address", service.address, *with_tls)
    with tempfile.NamedTemporaryFile() as file:
        trustme.CA().cert_pem.write_to_path(file.name)
        no_tls = Ran("hit", "demo", "user=a", "--address", service.address, "--tls-ca", file.name)

    assert at_http.err == (
        f"ratelimit: 127.0.0.1:{service.http_port} speaks HTTP/1, not gRPC: if it is the service's "
        "HTTP port, name its gRPC port with --address HOST:PORT, 8081 if nothing else was said\n"
    )
    assert "none.pem cannot be read" in no_file.err
    assert no_tls.err == (
        f"ratelimit: {service.address} speaks no TLS: leave out --tls-ca, or name another port\n"
    )
    assert (at_http.code, no_file.code, no_tls.code) == (2, 2, 2)
    assert "Traceback" not in service.log


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (b"220 mail\r\n", "speaks no gRPC: name the service's gRPC port"),
        (b"", "closed the connection before a word of gRPC: if the service's port has TLS"),
    ],
)
def test_hit_at_another_server(said: bytes, message: str) -> None:
    """What answers in another protocol is no service that is away."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=say, args=(listener, said), daemon=True).start()

        ran = Ran("hit", "demo", "a=b", "--address", f"127.0.0.1:{listener.getsockname()[1]}")

    assert (ran.code, message in ran.err, ran.err.count("\n")) == (2, True, 1)


def say(listener: socket.socket, said: bytes) -> None:
    with suppress(OSError):  # the test is over
        while True:
            connection, _ = listener.accept()
            connection.recv(1_000)
            connection.sendall(said)
            connection.close()


def test_hit_shows_what_is_marked(service: ServiceProcess) -> None:
    """Headers for the upstream stand behind the answer; a burst is not shown as part of a rate."""
    first = Ran("hit", "demo", "at_once=a", "--address", service.address)
    burst = Ran("hit", "demo", "burst=a", "--address", service.address)

    assert re.search(r"0 of 1 left, resets in 60 s, x-ratelimit-lease: [0-9a-f]{16}\n", first.out)
    assert "8 left, resets in" in burst.out


def test_hit_in_json(service: ServiceProcess) -> None:
    """--json gives the decision for programs."""
    ran = Ran("hit", "demo", "user=json", "--address", service.address, "--json", "--hits", "2")

    decision = json.loads(ran.out)
    reset = decision["statuses"][0].pop("reset_seconds")
    assert 1 <= reset <= 86_400
    assert decision == {
        "code": "OK",
        "statuses": [
            {
                "code": "OK",
                "remaining": 0,
                "limit": {
                    "requests_per_unit": 2,
                    "unit": "day",
                    "unit_multiplier": 1,
                    "name": "per-user",
                },
            }
        ],
        "response_headers": {},
        "request_headers": {},
        "metadata": None,
    }


def test_hit_looks_gives_back_and_overrides(service: ServiceProcess) -> None:
    """--hits 0 only looks, --refund gives back, --limit brings a limit along."""
    common = ["hit", "demo", "user=more", "--address", service.address]

    told = [
        Ran(*common, *flags).out.partition("user=more  ")[2].partition(" left")[0]
        for flags in (["--hits", "2"], ["--refund"], ["--hits", "0"], ["--limit", "9/day"])
    ]

    assert told == ["0 of 2", "1 of 2", "1 of 2", "7 of 9"]


def test_hit_is_refused(service: ServiceProcess) -> None:
    """A request that the service refuses is an error with the service's sentence."""
    ran = Ran("hit", "", "a=b", "--address", service.address)

    assert ran.code == 2
    assert "INVALID_ARGUMENT: domain is empty" in ran.err


def test_reader_that_goes_away(rules: Path) -> None:
    """`ratelimit … | head` ends quietly."""
    command = f"{COMMAND} explain --rules {rules} demo {'user=a ' * 2000} | head -n 1"

    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)

    assert done.stderr == ""


TEXT = st.text('ab,=\\ é"', max_size=5)


@given(st.lists(st.builds(Entry, TEXT.filter(bool), TEXT), min_size=1, max_size=3))
def test_descriptors_are_written_as_they_are_read(entries: list[Entry]) -> None:
    """Any descriptor can be typed, with a backslash before what has a meaning."""
    descriptor = Descriptor(tuple(entries))

    assert parse_descriptor(format_descriptor(descriptor)) == descriptor


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("a=b", [("a", "b")]),
        ("a", [("a", "")]),
        ("a=", [("a", "")]),
        ("a=b=c", [("a", "b=c")]),
        ("a=b,c=d", [("a", "b"), ("c", "d")]),
        (r"a\,b=c\\", [("a,b", "c\\")]),
    ],
)
def test_descriptors(text: str, entries: list[tuple[str, str]]) -> None:
    """A descriptor is typed key=value,key=value."""
    assert parse_descriptor(text).entries == tuple(entries)


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
