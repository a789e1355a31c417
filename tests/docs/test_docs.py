"""What the documents say is so."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
import yaml

from ratelimit_service.grpc.h2 import limits
from ratelimit_service.http import connections
from ratelimit_service.limiter import MAX_LIMITS
from ratelimit_service.metrics import Metrics, Sources, WorkerFigures
from ratelimit_service.net.channel import READ_BYTES
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.load import Loaded
from ratelimit_service.rules.schema import parse
from ratelimit_service.rules.tree import Domain, Level, Snapshot
from ratelimit_service.settings import settings
from ratelimit_service.settings.reference import REFERENCE
from ratelimit_service.wire import request
from tests.http_client import http
from tests.servers.redis import SharedRedis
from tests.servers.service import COMMAND, ServiceProcess

TOP = Path(__file__).parents[2]
README = TOP / "README.md"
KIB, MIB = 1 << 10, 1 << 20
BLOB = (
    f"{tomllib.loads((TOP / 'pyproject.toml').read_text())['project']['urls']['Source']}/blob/main/"
)
"""Where the files of this checkout are in the repository."""
DOCUMENTS = [
    README,
    TOP / "CONTRIBUTING.md",
    TOP / "SECURITY.md",
    TOP / "CODE_OF_CONDUCT.md",
    *sorted((TOP / "deploy").rglob("*.md")),
    *sorted((TOP / "docs").rglob("*.md")),
]


def table(name: str) -> list[list[str]]:
    """The cells of every table row of a document, without the marks around code."""
    rows = [line for line in (TOP / "docs" / name).read_text().splitlines() if line[:2] == "| "]
    return [[cell.strip().replace("`", "") for cell in row.strip("|").split("|")] for row in rows]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_rule_examples(document: Path) -> None:
    """Every rule file in the documents lints clean."""
    for text in re.findall(r"```yaml\n(domain:.*?)```", document.read_text(), re.DOTALL):
        assert parse("example", text.encode()).problems == ()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_yaml(document: Path) -> None:
    """All YAML in documents can be read, and each object of Kubernetes has a kind and a name."""
    for text in re.findall(r"```yaml\n(.*?)```", document.read_text(), re.DOTALL):
        for each in yaml.safe_load_all(text):
            assert each
            if "apiVersion" in each:
                assert each["kind"]
                assert each["metadata"]["name"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links(document: Path) -> None:
    """Every link within the checkout leads to a file, and every anchor to a heading."""
    for target in re.findall(r"\]\(([^)]+)\)", document.read_text()):
        path, _, anchor = target.partition("#")
        if "://" in path and not path.startswith(BLOB):
            continue
        file = TOP / path.removeprefix(BLOB) if path.startswith(BLOB) else document.parent / path
        if not path:
            file = document
        assert file.exists(), target
        headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE) if anchor else []
        assert not anchor or anchor in [
            re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings
        ], target


def test_links_of_the_readme(tmp_path: Path) -> None:
    """Links of the README are relative in a checkout, and absolute in the package's metadata."""
    targets = re.findall(r"\]\(([^)]+)\)", README.read_text())

    build = [sys.executable, "-c", METADATA, str(tmp_path)]
    made = subprocess.run(build, cwd=TOP, capture_output=True, text=True, check=True)
    metadata = (tmp_path / made.stdout.split()[-1] / "METADATA").read_text()

    assert targets
    assert not any("://" in target for target in targets)
    assert [f"{BLOB}{target}" for target in targets] == re.findall(r"\]\(([^)]+)\)", metadata)


METADATA = """
import sys
from setuptools.build_meta import prepare_metadata_for_build_wheel
print(prepare_metadata_for_build_wheel(sys.argv[1]))
"""


def test_address_of_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands in one line of pyproject.toml; `make docs` writes it wherever else it is."""
    source = BLOB.removesuffix("/blob/main/")
    monkeypatch.syspath_prepend(str(TOP / "docs"))
    generate = importlib.import_module("generate")
    elsewhere = "https://forge.example/acme/limits"

    moved = dict(generate.with_source(elsewhere))
    back = {path: text.replace(elsewhere, source) for path, text in moved.items()}

    assert {path for path in texts() if source in path.read_text()} == set(moved)
    assert back == {path: path.read_text() for path in moved}
    assert all(source not in text and elsewhere in text for text in moved.values())


def texts() -> Iterator[Path]:
    """What people and tools read of this checkout: no code, and nothing that is made or got."""
    named = {".md", ".toml", ".yaml", ".yml", ".json", ".service", ".txt", ".html", ".in", ""}
    for top in TOP.iterdir():
        if top.is_file() and top.suffix in named and not top.is_symlink():
            yield top
        elif top.name in {".github", "client", "deploy", "docker", "docs", "examples", "rules"}:
            for path in top.rglob("*"):
                made = {"node_modules", "target", "__pycache__"} & set(path.parts)
                if path.is_file() and path.suffix in named and not made:
                    yield path


def test_numbers_of_the_readme_are_measured() -> None:
    """Every number of the README's table is in docs/benchmarks.md."""
    rows = re.findall(r"^\| .*\d,\d{3} .*$", README.read_text(), re.MULTILINE)
    measured = (TOP / "docs" / "benchmarks.md").read_text()

    numbers = [number for row in rows for number in re.findall(r"\d+,\d{3}", row)]
    assert len(numbers) > 8
    assert [number for number in numbers if number not in measured] == []


def test_settings() -> None:
    """docs/settings.md has every setting with its names and its default."""
    rows = {row[0]: row for row in table("settings.md")}

    for each in settings():
        flag = each.flag + (f" {each.metavar}" if each.metavar else "")
        default = each.default_text if each.metavar else "off"
        names = [variable.name for variable in REFERENCE if each.name in variable.settings]
        assert rows[flag][1:4] == [each.environment, ", ".join(names), default]
        assert rows[flag][4] == each.help


def test_migration() -> None:
    """docs/migration.md has every variable of the reference, its treatment and what it sets."""
    flags = {each.name: each.flag for each in settings()}
    rows = {row[0]: row for row in table("migration.md")}

    for each in REFERENCE:
        set_here = ", ".join(flags[name] for name in each.settings)
        assert rows[each.name][1:3] == [each.treatment, set_here]
        assert each.text.replace("`", "") in rows[each.name][3]


def test_metrics() -> None:
    """docs/metrics.md has exactly the metrics of a scrape, with their labels and their help."""
    file = parse("f", b"domain: d\ndescriptors: [{key: k, rate_limit: {unit: day}}]")
    domain = Domain("d", Level.of(file.nodes))
    for rule in domain.rules:
        rule.tallies.of()
    stats = Stats()
    stats.refusals["no_domain"] = 1
    worker = WorkerFigures(1, 0, 0, 0)
    snapshot, loaded = Snapshot(1, {"d": domain}), Loaded(1, "5d1f02ab")
    metrics = Metrics(
        Sources(stats, Health(), lambda: snapshot, lambda: 0, lambda: [worker], lambda: loaded)
    )

    scraped = {}
    for family in metrics.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = [label for label in family.samples[0].labels if label != "le"]
        scraped[name] = [family.type, ", ".join(labels), family.documentation]

    assert {row[0]: row[1:4] for row in table("metrics.md") if "_" in row[0]} == scraped


def shown_in_readme(command: str) -> tuple[str, str]:
    """The first such command in the README, and the output shown below it."""
    pattern = rf"^    \$ \.venv/bin/(ratelimit {command} .*)\n((?:    .*\n)+)"
    found = re.search(pattern, README.read_text(), re.MULTILINE)
    assert found
    return found[1], found[2]


def test_readme_explains_as_the_command_does() -> None:
    """The README's `explain` prints what the README shows."""
    command, shown = re.findall(
        r"^    \$ \.venv/bin/(ratelimit explain .*)\n((?:    .*\n)+)",
        README.read_text(),
        re.MULTILINE,
    )[0]

    done = subprocess.run(
        [COMMAND, *command.split()[1:]], cwd=TOP, capture_output=True, text=True, check=True
    )

    assert done.stdout == textwrap.dedent(shown)


def test_readme_hits_as_the_command_does(tmp_path: Path) -> None:
    """The README's `hit` and `curl` get what it shows, but for the seconds left.

    The site's first page shows the same `hit`.
    """
    service = ServiceProcess(tmp_path, "--rules", str(TOP / "rules"))
    service.start()
    command, shown = shown_in_readme("hit")
    body, answer = re.findall(r"curl --json '(.*?)' .*\n    (.*)\n", README.read_text())[0]

    seconds = re.compile(r"\d+( s\b|s\"|\"}])")
    for user in ("alice", "bobby", "carol"):  # a minute may end meanwhile
        words = [*command.replace("alice", user).split()[1:], "--address", service.address]
        words += ["--timeout", "60s"]
        hit = subprocess.run([COMMAND, *words], capture_output=True, text=True, check=False)
        printed = seconds.sub("N", hit.stdout.replace(user, "alice"))
        if printed == seconds.sub("N", textwrap.dedent(shown)):
            break
    curl = http(f"http://127.0.0.1:{service.http_port}/json", json.loads(body))

    service.kill()
    assert printed == seconds.sub("N", textwrap.dedent(shown))
    assert (
        f"ratelimit {command.split(' ', 1)[1]}\n{shown}" in (TOP / "docs" / "index.md").read_text()
    )
    assert seconds.sub("N", curl.text) == seconds.sub("N", answer)


def test_commands_of_operations(tmp_path: Path, redis_server: SharedRedis) -> None:
    """Every command that docs/operations.md shows does what it says to a service with workers."""
    flags = ["--rules", str(TOP / "rules"), "--store", redis_server.url, "--workers", "1"]
    service = ServiceProcess(tmp_path, *flags)
    service.start()
    commands = re.findall(
        r"^    \$ (.*)$", (TOP / "docs" / "operations.md").read_text(), re.MULTILINE
    )
    environment = {"PATH": f"{Path(COMMAND).parent}:{os.environ['PATH']}", "PID": str(service.pid)}

    answers = []
    for command in commands:
        there = command.replace("localhost:8080", f"127.0.0.1:{service.http_port}")
        if there.startswith("curl "):  # which a machine may lack
            answers.append(http(there.replace("curl ", "http://")).text)
            continue
        done = subprocess.run(
            there, shell=True, cwd=TOP, env=environment, capture_output=True, text=True, check=True
        )
        answers.append(done.stdout)

    shown, nothing, restarted, checked = answers
    assert [worker["state"] for worker in json.loads(shown)["workers"]] == ["serving"]
    assert nothing == ""
    assert "SIGHUP: reading the rules again" in service.log
    assert restarted.splitlines()[-1].startswith("restarted: version ")
    assert checked == "it would start\n"
    service.kill()


def operations() -> str:
    """docs/operations.md on one line."""
    return " ".join((TOP / "docs" / "operations.md").read_text().split())


def test_memory_for_callers() -> None:
    """docs/operations.md promises the budgets of memory that connections are held to."""
    (told,) = re.findall(
        r"messages that are not whole and answers that wait take at most (\d+) MiB for one "
        r"connection and (\d+) MiB for all\. An open stream counts as (\d+) KiB, and there are at "
        r"most ([\d,]+) on a connection\. What was read of a connection and not handled yet takes "
        r"([\d.]+) MiB",
        operations(),
    )
    one, everybody, stream, streams, inbox = (float(each.replace(",", "")) for each in told)

    assert (one * MIB, everybody * MIB) == (limits.HELD_BYTES, limits.ALL_HELD_BYTES)
    assert (stream * KIB, streams) == (limits.STREAM_BYTES, limits.MAX_STREAMS)
    assert inbox * MIB == READ_BYTES


def seconds_told(head: str) -> list[float]:
    """The seconds of a table's rows, in order."""
    (rows,) = re.findall(
        rf"^\| {head} \| bound \|\n\|---\|---\|\n((?:\|.*\n)+)",
        (TOP / "docs" / "operations.md").read_text(),
        re.MULTILINE,
    )
    return [float(each) for each in re.findall(r"\| (\d+) s \|$", rows, re.MULTILINE)]


def test_time_of_callers() -> None:
    """docs/operations.md says how long clients of either port may take, as they are held to it."""
    assert seconds_told("a client of the gRPC port has") == [
        limits.HANDSHAKE_SECONDS,
        limits.GREETING_SECONDS,
        limits.FRAME_SECONDS,
        limits.BODY_SECONDS,
        limits.IDLE_STREAM_SECONDS,
        limits.ACK_SECONDS,
        limits.BLOCKED_SECONDS,
        limits.PING_SECONDS,
    ]
    assert seconds_told("a connection to the HTTP port") == [
        connections.HEAD_SECONDS,
        connections.BODY_SECONDS,
        connections.IDLE_SECONDS,
        connections.WRITE_SECONDS,
        connections.CLOSE_SECONDS,
    ]


def test_bounds_of_requests() -> None:
    """docs/operations.md says how large a request may be, and how many connections there may be."""
    assert (
        f"more than {request.MAX_DESCRIPTORS} descriptors, {request.MAX_ENTRIES:,} entries in all "
        f"of them, {request.MAX_DOMAIN:,} characters of domain or "
        f"{limits.MAX_MESSAGE_BYTES // KIB} KiB are refused"
    ) in operations()
    assert f"meet more than {MAX_LIMITS} limits together" in operations()
    assert (
        "connections, in all and of one address | "
        f"{connections.MAX_CONNECTIONS} and {connections.MAX_CONNECTIONS_PER_PEER} |"
    ) in operations()


def test_systemd_unit(tmp_path: Path) -> None:
    """The unit is one that systemd takes, and its command one that ours does."""
    unit = (TOP / "docs" / "ratelimit.service").read_text()
    (command,) = re.findall(r"^ExecStart=/opt/ratelimit/bin/(.*)$", unit, re.MULTILINE)
    (check,) = re.findall(r"^ExecStartPre=/opt/ratelimit/bin/(.*)$", unit, re.MULTILINE)
    assert check == f"{command} --check"

    words = [COMMAND, *check.split()[1:]]
    subprocess.run(words, check=True, env={"RATELIMIT_RULES": str(TOP / "rules")})

    if shutil.which("systemd-analyze"):
        installed = tmp_path / "ratelimit.service"
        installed.write_text(unit.replace(f"/opt/ratelimit/bin/{'ratelimit'}", COMMAND))
        done = subprocess.run(
            ["systemd-analyze", "verify", str(installed)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "ratelimit.service" not in done.stderr


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is missing")
def test_systemd_unit_drops_privileges() -> None:
    """What the unit leaves to the service is at most 2.0 of 10 by systemd's own measure."""
    unit = str(TOP / "docs" / "ratelimit.service")
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", unit],
        capture_output=True,
        text=True,
        check=False,
    )
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd is older than 250")

    (exposure,) = re.findall(r"Overall exposure level for ratelimit.service: (\S+)", done.stdout)
    assert float(exposure) <= 2.0


OURS = ("ratelimit_service", "client", "proto", "docs", "tests", "benchmarks", "examples")
"""The directories with code of this project."""


def test_architecture_names_no_file_that_is_gone() -> None:
    """Every file of ours that docs/architecture.md or a page below it names is there."""
    pages = [TOP / "docs" / "architecture.md", *(TOP / "docs" / "architecture").glob("*.md")]
    named = {
        f"{folder}{name}"
        for page in pages
        for folder, name in re.findall(r"\b(\w+/)?(\w+\.(?:py|lua))\b", page.read_text())
    }
    # Not all below the top: most files there are installed ones.
    ours = [path for folder in OURS for path in (TOP / folder).rglob("*.*")]
    for name in named:
        assert any(path.match(name) for path in (*ours, *TOP.glob("*.py"))), name


APACHE_2 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
"""SHA-256 of the licence's text as it is published."""


def test_licence() -> None:
    """LICENSE is the Apache License 2.0 to the letter, with the authors' name where one belongs."""
    text = (TOP / "LICENSE").read_text()
    blank = text.replace(
        "Copyright 2026 The ratelimit-service authors", "Copyright [yyyy] [name of copyright owner]"
    )

    assert blank != text
    assert sha256(blank.encode()).hexdigest() == APACHE_2


def test_make_lists_its_verbs() -> None:
    """`make` alone lists every verb."""
    listed = subprocess.run(["make"], cwd=TOP, capture_output=True, text=True, check=True).stdout
    makefile = (TOP / "Makefile").read_text().replace("\\\n", "")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)

    for verb in set(phony.split()) - {"help"}:
        assert f"make {verb} " in listed


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_charts_are_installed_with_an_image(document: Path) -> None:
    """Every command that installs the chart names an image: its own is in no registry."""
    text = document.read_text().replace("\\\n", " ")

    for command in re.findall(r"helm upgrade .* deploy/helm/ratelimit-service .*", text):
        assert "--set image.repository=REGISTRY/ratelimit-service" in command


def test_image_of_the_manifests() -> None:
    """docs/kubernetes.md shows the image of the plain manifests, with the registry's line more."""
    (shown,) = re.findall(
        r"```yaml\n(images:.*?)```", (TOP / "docs" / "kubernetes.md").read_text(), re.DOTALL
    )
    base = yaml.safe_load((TOP / "deploy/kustomize/base/kustomization.yaml").read_text())
    (image,) = yaml.safe_load(shown)["images"]

    assert image.pop("newName") == f"REGISTRY/{image['name']}"
    assert {name: str(value) for name, value in image.items()} == {
        name: str(value) for name, value in base["images"][0].items()
    }
