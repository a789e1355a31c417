"""`ratelimit init`: a first rule file, to begin with."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import click

from ratelimit_service.cli.paths import PathArgument
from ratelimit_service.cli.say import say
from ratelimit_service.errors import RulesError
from ratelimit_service.processes.command_line import typed

__all__ = ["init"]

_SCHEMA = ".schema.json"
"""A name that begins with a dot, so that it is not taken for a rule file."""

_DOMAIN = "api"

_FIRST = """\
# Rules for one domain. Callers name the domain and send descriptors; each rule below says what
# those descriptors may do. What every key means: docs/rules.md, or your editor's help.
#
#   ratelimit lint {file}                      finds mistakes
#   ratelimit explain --rules {file} {domain} user=alice    tells which rule is met
#   ratelimit serve --rules {file}             answers Envoy, and:
#   ratelimit hit {domain} user=alice

domain: {domain}

# Answers tell callers what is left. Who is denied reads why, and when to come back.
answer: {{headers: x-ratelimit, body: text}}

descriptors:
  # Every user may make 60 requests a minute. The descriptor (user, alice) has a counter of
  # alice's own.
  - key: user
    rate_limit:
      unit: minute
      requests_per_unit: 60

  # One user may do more: a rule with the value goes before the rule without one.
  - key: user
    value: batch
    rate_limit:
      unit: minute
      requests_per_unit: 600

  # Addresses: 10 requests a second with bursts of up to 50, and 5,000 a day.
  - key: remote_address
    rate_limits:
      - {{unit: second, requests_per_unit: 10, burst: 50, algorithm: token_bucket}}
      - {{unit: day, requests_per_unit: 5000}}

  # A limit on trial: it is counted and shows in the metrics, but denies nobody.
  - key: path
    value: /search*
    shadow_mode: true
    rate_limit:
      unit: second
      requests_per_unit: 20
"""


@click.command()
@click.argument("file", default="rules/first.yaml", type=PathArgument())
def init(file: Path) -> int:
    """Write a first rule file, with comments that explain it.

    FILE is rules/first.yaml if none is named. What is there already is never overwritten. Its
    domain is api, or api-2 and so on if a rule file beside it has that one. The JSON Schema of
    rule files is written beside it, as .schema.json, for editors.

    Example: ratelimit init rules/api.yaml
    """
    from ratelimit_service.rules.json_schema import MODELINE, json_schema  # noqa: PLC0415

    if file.is_dir():
        raise RulesError(f"{file} is a directory: name a file in it, as {file / 'first.yaml'}")
    if file.exists():
        raise RulesError(f"{file} is there already: name another file")
    taken = _domains_beside(file)
    domain = next(name for name in _names() if name not in taken)
    text = f"{MODELINE}{_SCHEMA}\n{_FIRST.format(file=file, domain=domain)}"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as new:
            new.write(text)
    except OSError as error:
        raise RulesError(f"{file} cannot be written: {error.strerror}") from error
    say(f"wrote {file}")
    if domain != _DOMAIN:
        say(f"its domain is {domain}, since {taken[_DOMAIN]} has {_DOMAIN} already")
    schema = file.with_name(_SCHEMA)
    try:
        with schema.open("x", encoding="utf-8") as new:
            new.write(json_schema())
        say(f"wrote {schema}, for editors")
    except FileExistsError:
        pass  # it is from an earlier call, or the reader's own
    say(f"next: {shlex.join([*typed(), 'serve', '--rules', str(file)])}")
    return 0


def _names() -> Iterator[str]:
    yield _DOMAIN
    yield from (f"{_DOMAIN}-{number}" for number in count(2))


def _domains_beside(file: Path) -> dict[str, Path]:
    """The domains of the rule files in the directory of a new one, each with a file that has it.

    Two first files of one domain would contradict each other. Only YAML's usual names are looked
    at, and no directories, since it may be anybody's working directory.
    """
    from ratelimit_service.rules.files import TESTS, read_rule_files  # noqa: PLC0415
    from ratelimit_service.rules.schema import parse  # noqa: PLC0415

    domains: dict[str, Path] = {}
    for path in sorted(file.parent.glob("[!.]*.y*ml")):
        if path.name.endswith(TESTS) or not path.is_file():
            continue
        for name, data in read_rule_files(path).files.items():
            domains.setdefault(parse(name, data).domain, path)
    return domains
