"""Makes what in the documents follows from the code: tables, pictures, the playground's answers.

    python docs/generate.py           write them
    python docs/generate.py --check   exit 1 if they are not what would be written

Where the project is on the network stands in pyproject.toml, as Source. All other files that say it
are in HAVE_SOURCE, and are written from there.

It also writes the JSON Schema of rule files, here and into the package, and there a copy of Envoy's
configuration. docs/draw.py draws.

A table stands between the lines `<!-- NAME: made by make docs -->` and `<!-- end -->`. So does a
file of examples/ or deploy/ in a recipe of docs/how-to; NAME is its path then.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path

from draw import drawings

from ratelimit_service.cli.main import ratelimit
from ratelimit_service.cli.manual import Described, describe
from ratelimit_service.metrics import CATALOGUE, MetricKind
from ratelimit_service.rules.json_schema import json_schema
from ratelimit_service.rules.language import AT_TOP, IN_ANSWER, IN_LIMIT, RuleKey, on_descriptor
from ratelimit_service.settings import settings
from ratelimit_service.settings.reference import REFERENCE, Variable

DOCS = Path(__file__).resolve().parent


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """The lines of a table."""
    cells = list(head)
    for row in (cells, ["---"] * len(cells), *rows):
        yield f"| {' | '.join(row)} |"


def code(text: str) -> str:
    """Text as code; nothing if there is none."""
    return f"`{text}`" if text else ""


def cell(text: str) -> str:
    """Text for a cell of a table."""
    return text.replace("|", "\\|").replace("  ", " ")


def of_settings() -> Iterator[str]:
    """Every setting, a table for each group."""
    for group, members in groupby(settings(), lambda setting: setting.group):
        yield f"### {group}\n"
        yield from table(
            ("flag", "environment", "as in the reference", "default", "meaning"),
            (
                (
                    code(f"{each.flag} {each.metavar}".strip()),
                    code(each.environment),
                    ", ".join(
                        code(variable.name) for variable in REFERENCE if is_of(each.name, variable)
                    ),
                    code(each.default_text) if each.metavar else "off",
                    each.help,
                )
                for each in members
            ),
        )
        yield ""


def is_of(setting: str, variable: Variable) -> bool:
    """Whether a variable of the reference sets a setting."""
    return setting in variable.settings


def of_reference() -> Iterator[str]:
    """Every variable of the reference, a table for each section."""
    flags = {each.name: each.flag for each in settings()}
    for section, members in groupby(REFERENCE, lambda variable: variable.section):
        yield f"### {section}\n"
        yield from table(
            ("variable", "", "here", "meaning"),
            (
                (
                    code(each.name),
                    str(each.treatment),
                    ", ".join(code(flags[name]) for name in each.settings),
                    meaning(each),
                )
                for each in members
            ),
        )
        yield ""


def of_metrics() -> Iterator[str]:
    """Every metric, as Prometheus calls it."""
    yield from table(
        ("metric", "type", "labels", "meaning"),
        (
            (
                code(each.name + ("_total" if each.kind is MetricKind.COUNTER else "")),
                str(each.kind),
                ", ".join(map(code, each.labels)),
                each.help,
            )
            for each in CATALOGUE
        ),
    )


def meaning(variable: Variable) -> str:
    """What is said of a variable."""
    if not variable.allowed:
        return variable.text
    allowed = " or ".join(code(each) for each in sorted(variable.allowed))
    return f"Anything but {allowed}: {variable.text}."


def of_keys(keys: Iterable[RuleKey]) -> Iterator[str]:
    """The keys of rules at one place."""
    yield from table(
        ("key", "default", "meaning"), ((code(each.name), each.default, each.help) for each in keys)
    )


def of_commands() -> Iterator[str]:
    """Every command: how it is called, what it does, its flags."""
    for command in describe(ratelimit, "ratelimit"):
        yield f"## {command.name}\n"
        yield f"    {command.usage}\n"
        for paragraph in command.paragraphs:
            yield f"{paragraph}\n"
        if command.example:
            yield f"    $ {command.example}\n"
        yield from of_flags(command)


def of_flags(command: Described) -> Iterator[str]:
    """The flags of one command; those that are settings have a page of their own."""
    *settings_of_it, last = command.sections
    if settings_of_it:
        yield "Every [setting](settings.md) is a flag. These are none:\n"
    yield from table(
        ("flag", "meaning"),
        ((code(cell(flag)), cell(meaning)) for flag, meaning in last.flags),
    )
    yield ""


def recipes() -> Iterator[tuple[Path, str]]:
    """Every recipe, with the files in it that it names."""
    for path in sorted((DOCS / "how-to").glob("*.md")):
        text = path.read_text()
        for name in re.findall(r"<!-- ((?:examples|deploy)/.*): made by make docs -->", text):
            text = written(text, name, of_file(DOCS.parent / name))
        yield path, text


def of_file(path: Path) -> Iterator[str]:
    """A YAML file as a block, without what only an editor reads."""
    lines = path.read_text().splitlines()
    yield "```yaml"
    yield from (each for each in lines if not each.startswith("# yaml-language-server:"))
    yield "```"


SCHEMAS = (
    DOCS / "rules.schema.json",
    DOCS.parent / "ratelimit_service" / "rules" / "rules.schema.json",
)
"""Where the JSON Schema of rule files is: for readers, and in the wheel."""

ENVOY = DOCS.parent / "docker" / "envoy-localhost.yaml"
DEMO = DOCS.parent / "ratelimit_service" / "cli" / "envoy.yaml"
"""Envoy's configuration for this machine, and its copy in the wheel, for `ratelimit demo`."""

TABLES: dict[str, tuple[str, Callable[[], Iterator[str]]]] = {
    "settings": ("settings.md", of_settings),
    "metrics": ("metrics.md", of_metrics),
    "reference": ("migration.md", of_reference),
    "keys at the top": ("rules.md", lambda: of_keys(AT_TOP)),
    "keys on a descriptor": ("rules.md", lambda: of_keys(on_descriptor())),
    "keys in rate_limit": ("rules.md", lambda: of_keys(IN_LIMIT)),
    "keys in answer": ("rules.md", lambda: of_keys(IN_ANSWER)),
    "commands": ("cli.md", of_commands),
}
"""By the name of a table: its document, and its lines."""


HAVE_SOURCE = (
    "pyproject.toml",
    "client/README.md",
    "client/pyproject.toml",
    ".github/ISSUE_TEMPLATE/config.yml",
    "deploy/helm/ratelimit-service/Chart.yaml",
    "docker/Dockerfile",
)
"""The files that say where the project is on the network."""


CLIENT_README = DOCS.parent / "client" / "README.md"


def with_source(source: str) -> Iterator[tuple[Path, str]]:
    """These files, with another address of the project.

    The client's README tells the present one.
    """
    (now,) = re.findall(r"\]\((\S+)/blob/main/docs/clients.md\)", CLIENT_README.read_text())
    for name in HAVE_SOURCE:
        path = DOCS.parent / name
        yield path, re.sub(rf"{re.escape(now)}(?![\w-])", lambda _: source, path.read_text())


def written(text: str, name: str, lines: Iterable[str]) -> str:
    """A document's text with a table anew."""
    begin = f"<!-- {name}: made by make docs -->\n"
    pattern = re.compile(re.escape(begin) + ".*?(?=<!-- end -->)", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"docs/generate.py: there is no place for the table {name!r}")
    table_text = "\n".join(lines).rstrip()
    return pattern.sub(lambda _: f"{begin}\n{table_text}\n\n", text)


def everything() -> Iterator[tuple[Path, str]]:
    """Every file that follows from the code, and what it should be, one after the other."""
    for name, (file, lines) in TABLES.items():
        path = DOCS / file
        yield path, written(path.read_text(), name, lines())
    yield from recipes()
    for path in SCHEMAS:
        yield path, json_schema()
    yield DEMO, ENVOY.read_text()
    for file, drawn in drawings():
        yield DOCS / file, drawn()
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]
    yield from list(with_source(project["urls"]["Source"]))


def main() -> int:
    """Writes or, with --check, compares; returns the exit code."""
    for path, new in everything():
        if path.exists() and path.read_text() == new:
            continue
        if sys.argv[1:] == ["--check"]:
            print(f"{path.relative_to(DOCS.parent)} is out of date: run `make docs`")
            return 1
        path.parent.mkdir(exist_ok=True)
        path.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
