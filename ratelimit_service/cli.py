"""The command `ratelimit`: serve, restart, lint, explain, hit. It parses words and prints answers.

Every error is one line on standard error and exit code 2. What only one command needs is
imported by that command, so that `hit` starts fast.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ratelimit_service import __version__, compiled
from ratelimit_service.errors import RateLimitError, SettingsError
from ratelimit_service.model import (
    MAX_ADDEND,
    Code,
    Decision,
    Descriptor,
    Entry,
    Limit,
    Request,
    Status,
    Unit,
    whole_seconds,
)
from ratelimit_service.settings import (
    Setting,
    Settings,
    from_reference,
    parse_duration,
    settings,
    split_address,
)
from ratelimit_service.text import printable

if TYPE_CHECKING:
    from ratelimit_service.rules.explain import Explanation

__all__ = ["format_descriptor", "main", "parse_descriptor", "ratelimit"]

_ERROR = 2
_LIMIT = re.compile(r"(\d+)/(\d*)([a-z]+?)s?")


def main() -> None:
    """The entry point of the command; never shows a traceback for a user's mistake."""
    arguments = sys.argv[1:]
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in _GROUP_OPTIONS):
        arguments = ["serve", *arguments]
    try:
        code = ratelimit.main(arguments, "ratelimit", standalone_mode=False)
    except click.Abort:
        code = 130
    except click.ClickException as error:
        code = _fail(_mistake(error))
    except (RateLimitError, OSError) as error:
        code = _fail(str(error))
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone, as `head` does; nothing is left to say to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


_GROUP_OPTIONS = {"--help", "-h", "--version"}


def _say(text: str, *, err: bool = False) -> None:
    """Prints lines; of what others have written nothing reaches the terminal that acts there."""
    for line in text.split("\n"):
        click.echo(printable(line), err=err)


def _mistake(error: click.ClickException) -> str:
    """What is wrong; of words that the command does not know, or misses, also where they are."""
    said = error.format_message()
    context = error.ctx if isinstance(error, click.UsageError) else None
    unknown = isinstance(error, (click.MissingParameter, click.NoSuchOption))
    if context is None or not (unknown or isinstance(context.command, click.Group)):
        return said
    return f"{said.removesuffix('.')} (see {context.command_path} --help)"


def _fail(message: str) -> int:
    _say(f"ratelimit: {message}", err=True)
    return _ERROR


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(
    __version__, message=f"ratelimit %(version)s ({'compiled' if compiled() else 'interpreted'})"
)
def ratelimit() -> None:
    """Decides whether requests may pass, for Envoy and everything that speaks its protocol.

    Without a command it serves, so that it can stand in for envoyproxy/ratelimit, whose
    environment names for rules, ports and Redis it reads.
    """


# serve


class _Parsed(click.ParamType[object]):
    """A value read by a setting's own parser."""

    def __init__(self, setting: Setting) -> None:
        self.name = setting.metavar
        self._setting = setting

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        if not isinstance(value, str):
            return value
        try:
            return self._setting.parse(value)
        except SettingsError as error:
            self.fail(str(error), param, ctx)


def _option(setting: Setting) -> click.Option:
    switch = not setting.metavar
    return click.Option(
        [setting.flag, setting.name],
        help=setting.help,
        default=setting.default,
        show_default=False if switch else setting.default_text,
        envvar=setting.environment,
        show_envvar=True,
        is_flag=switch,
        type=None if switch else _Parsed(setting),
        metavar=setting.metavar or None,
    )


def _serve(*, only_check: bool, **values: object) -> int:
    from ratelimit_service.runtime.app import check, serve  # noqa: PLC0415 -- see the module's head

    settings = Settings(**values)  # type: ignore[arg-type]  # each was read by its parser
    if only_check:
        check(settings)
        _say("it would start")
        return 0
    return serve(settings)


class _Serve(click.Command):
    """`serve`, whose defaults are what the reference's environment says."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: object,
    ) -> click.Context:
        return super().make_context(
            info_name,
            args,
            parent,
            default_map=from_reference(os.environ),  # noqa: TID251 -- handed over, not read
            **extra,
        )


ratelimit.add_command(
    _Serve(
        "serve",
        params=[
            *(_option(setting) for setting in settings()),
            click.Option(
                ["--check", "only_check"],
                is_flag=True,
                help="Only tell whether it would start: settings, rules, TLS files.",
            ),
        ],
        callback=_serve,
        short_help="Serve decisions over gRPC and HTTP.",
        help=(
            "Serve decisions over gRPC and HTTP.\n\n"
            "The ports open once the rules are loaded. Rules are reloaded when their files "
            "change, and on SIGHUP; SIGTERM drains, SIGUSR2 replaces the workers.\n\n"
            "Example: ratelimit serve --rules rules/ --store redis://localhost:6379/0"
        ),
    )
)


# restart


@ratelimit.command()
@click.option(
    "--http",
    default="localhost:8080",
    show_default=True,
    metavar="HOST:PORT",
    envvar="RATELIMIT_HTTP",
    help="The HTTP port of the service.",
)
@click.option(
    "--timeout",
    default="5m",
    show_default=True,
    metavar="DURATION",
    help="How long to wait for the end.",
)
def restart(http: str, timeout: str) -> int:
    """Replace the workers of the service on this machine, one after the other.

    It goes on as the version that is installed now, with what the rules and files say now; no
    call fails. Settings stay as they were given at its start. Exits 0 once all workers are new,
    2 if nothing was changed, and why.

    Example: ratelimit restart --http localhost:8080
    """
    from ratelimit_service.runtime.restart import restart as restarted  # noqa: PLC0415

    split_address(http)
    for line in restarted(http, parse_duration(timeout)):
        _say(line)
    return 0


# lint


@ratelimit.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
def lint(paths: Sequence[Path]) -> int:
    """Check rule files and directories.

    Prints every problem as file:line:column, place in the tree, what is wrong and what is
    allowed; and hints, which are none. Exits 0 if there is no problem, 1 if there are some, 2
    if a path cannot be read.

    Example: ratelimit lint rules/
    """
    from ratelimit_service.rules.lint import lint as problems_in  # noqa: PLC0415

    found = problems_in(paths)
    for problem in found:
        _say(str(problem))
    problems = [problem for problem in found if not problem.hint]
    if problems:
        _say(f"{_count(len(problems), 'problem')} found", err=True)
        return 1
    _say("no problems found", err=True)
    return 0


# explain


@ratelimit.command()
@click.argument("domain")
@click.argument("descriptors", nargs=-1, required=True)
@click.option(
    "--rules",
    default="rules",
    show_default=True,
    metavar="PATH",
    envvar="RATELIMIT_RULES",
    type=click.Path(path_type=Path),
    help="A rule file or a directory of them.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a descriptor.")
def explain(domain: str, descriptors: Sequence[str], rules: Path, as_json: bool) -> int:
    """Tell which rule a descriptor meets, why, and what is counted.

    A descriptor is written key=value,key=value; a comma, an equals sign or a backslash in a
    key or value stands behind a backslash. Nothing is counted and no service is asked.

    Example: ratelimit explain demo user=alice
    """
    from ratelimit_service.health import Health  # noqa: PLC0415
    from ratelimit_service.observer import Counters  # noqa: PLC0415
    from ratelimit_service.rules.explain import explain as explained  # noqa: PLC0415
    from ratelimit_service.rules.load import Rules  # noqa: PLC0415

    loaded = Rules(rules, counters=Counters(), health=Health())
    loaded.load()
    for text in descriptors:
        explanation = explained(loaded.snapshot, domain, parse_descriptor(text))
        known = loaded.snapshot.domains.get(domain)
        keys = _counter_keys(domain, explanation, known.shard_by if known else None)
        if as_json:
            click.echo(json.dumps(_explained(explanation, keys)))
        else:
            _say(str(explanation))
            for key in keys:
                _say(f"counter {key}")
    return 0


def _counter_keys(
    domain: str, explanation: Explanation, shard_by: frozenset[str] | None
) -> list[str]:
    """The key of each limit's counter."""
    from ratelimit_service.stores.keys import CounterNames  # noqa: PLC0415

    found = explanation.match
    return [
        CounterNames(domain, limit.measure, shard_by)
        .key(found.identity, found.shared)
        .decode("utf-8", "backslashreplace")
        for limit in (found.rule.limits if found.rule else ())
    ]


def _explained(explanation: Explanation, keys: Sequence[str]) -> dict[str, object]:
    return {
        "rule": explanation.rule.path if explanation.rule else None,
        "source": str(explanation.rule.source) if explanation.rule else None,
        "why": explanation.why,
        "counter": keys[0] if keys else None,
        "counters": keys,
        "steps": [
            {
                "entry": dict([step.entry]),
                "how": step.how,
                "taken": step.taken or None,
                "passed_over": [
                    {"node": other.node, "source": other.source, "why": other.why}
                    for other in step.passed_over
                ],
            }
            for step in explanation.steps
        ],
    }


# hit


@ratelimit.command()
@click.argument("domain")
@click.argument("descriptors", nargs=-1, required=True)
@click.option(
    "--address",
    default="localhost:8081",
    show_default=True,
    metavar="HOST:PORT",
    envvar="RATELIMIT_ADDRESS",
    help="Where the service is; unix:PATH for a Unix socket.",
)
@click.option(
    "--tls-ca", metavar="FILE", help="Speak TLS, with a server that these authorities vouch for."
)
@click.option("--tls-cert", metavar="FILE", help="The certificate that the service asks of us.")
@click.option("--tls-key", metavar="FILE", help="Its key.")
@click.option(
    "--hits",
    type=click.IntRange(0, MAX_ADDEND),
    metavar="N",
    help="Hits per descriptor instead of 1; 0 only looks.",
)
@click.option("--refund", is_flag=True, help="Give the hits back instead.")
@click.option(
    "--limit", metavar="N/UNIT", help="A limit instead of the rules': 10/minute, 5/2hours."
)
@click.option(
    "--repeat",
    type=click.IntRange(1),
    default=1,
    metavar="N",
    show_default=True,
    help="Ask so many times.",
)
@click.option(
    "--timeout", default="1s", show_default=True, metavar="DURATION", help="For each call."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a decision.")
def hit(
    domain: str,
    descriptors: Sequence[str],
    address: str,
    tls_ca: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    hits: int | None,
    refund: bool,
    limit: str | None,
    repeat: int,
    timeout: str,
    as_json: bool,
) -> int:
    """Ask a service for a decision, and count it.

    A descriptor is written key=value,key=value; several are one request. A comma, an equals
    sign or a backslash in a key or value stands behind a backslash. Exits 0 if all was
    allowed, 1 if something was over its limit, 2 on an error.

    Example: ratelimit hit demo user=alice --repeat 7
    """
    # grpcio's own log would stand beside the one line that says the same.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # noqa: TID251 -- handed over, not read
    from ratelimit_service.client import Client, ClientTLS, why_not_counted  # noqa: PLC0415

    if (tls_cert or tls_key) and not (tls_ca and tls_cert and tls_key):
        raise click.UsageError("a client certificate takes --tls-ca, --tls-cert and --tls-key")
    tls = ClientTLS(tls_ca, tls_cert, tls_key) if tls_ca else None
    override = _parse_limit(limit) if limit else None
    asked = tuple(
        parse_descriptor(text)._replace(limit=override, hits_addend=hits, is_negative_hits=refund)
        for text in descriptors
    )
    request = Request(domain, asked)
    timeout_us = parse_duration(timeout)
    over = 0
    with Client(address, tls) as client:
        for _ in range(repeat):
            decision = client.should_rate_limit(request, timeout_us)
            over += decision.code is Code.OVER_LIMIT
            why = why_not_counted(client, request, decision, timeout_us)
            if as_json:
                click.echo(json.dumps(_as_json(decision, why)))
                continue
            for line in _lines(request, decision, why):
                _say(line)
    if repeat > 1 and not as_json:
        _say(f"{repeat - over} allowed, {over} over limit")
    return 1 if over else 0


def _lines(request: Request, decision: Decision, why: Mapping[int, str]) -> Iterator[str]:
    """The decision for people: on one line, or one line a descriptor below it."""
    names = [format_descriptor(descriptor) for descriptor in request.descriptors]
    told = [_told(status, why.get(place)) for place, status in enumerate(decision.statuses)]
    head = f"{decision.code.name:<10}  {request.domain}"
    marks = "".join(f", {header.key}: {header.value}" for header in decision.request_headers)
    if len(names) == 1:
        yield f"{head} {names[0]}  {told[0]}{marks}"
        return
    yield f"{head}{marks.replace(',', ' ', 1)}"
    for name, status, text in zip(names, decision.statuses, told, strict=True):
        yield f"  {status.code.name:<10}  {name}  {text}"


def _told(status: Status, why: str | None) -> str:
    if why is not None:
        return f"not counted: {why}"
    if status.limit is None or status.reset_us is None:
        return "unlimited"
    resets = f"resets in {whole_seconds(status.reset_us)} s"
    if status.remaining > status.limit.requests_per_unit:  # as of a bucket with a burst
        return f"{status.remaining} left, {resets}"
    return f"{status.remaining} of {status.limit.requests_per_unit} left, {resets}"


def _as_json(decision: Decision, why: Mapping[int, str]) -> dict[str, object]:
    return {
        "code": decision.code.name,
        "statuses": [
            {
                "code": status.code.name,
                "remaining": status.remaining,
                "reset_seconds": None
                if status.reset_us is None
                else whole_seconds(status.reset_us),
                "limit": None
                if status.limit is None
                else {
                    "requests_per_unit": status.limit.requests_per_unit,
                    "unit": status.limit.unit.name.lower(),
                    "unit_multiplier": status.limit.multiplier,
                    "name": status.limit.name,
                },
                **({"not_counted": why[place]} if place in why else {}),
            }
            for place, status in enumerate(decision.statuses)
        ],
        "response_headers": dict(decision.response_headers),
        "request_headers": dict(decision.request_headers),
        "metadata": decision.metadata,
    }


# Words


def parse_descriptor(text: str) -> Descriptor:
    r"""Reads `key=value,key=value`, with `\` before a comma, equals sign or backslash in them."""
    entries = []
    for part in _split(text, ","):
        key, *values = _split(part, "=")
        if not key:
            raise click.UsageError(f"{text!r} has an entry without key: write key=value,key=value")
        entries.append(Entry(_plain(key), _plain("=".join(values))))
    return Descriptor(tuple(entries))


def format_descriptor(descriptor: Descriptor) -> str:
    """Writes a descriptor's entries as `parse_descriptor` reads them."""
    return ",".join(
        "=".join(re.sub(r"([\\,=])", r"\\\1", part) for part in entry if part or part is entry.key)
        for entry in descriptor.entries
    )


def _split(text: str, separator: str) -> list[str]:
    """Splits at separators that stand behind no backslash."""
    return re.findall(rf"(?:^|{separator})((?:\\.|[^\\{separator}]|\\$)*)", text, re.DOTALL)


def _plain(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)


def _parse_limit(text: str) -> Limit:
    found = _LIMIT.fullmatch(text)
    unit = Unit.__members__.get(found[3].upper()) if found else None
    if found is None or unit is None or int(found[1]) > MAX_ADDEND or found[2] == "0":
        units = ", ".join(unit.name.lower() for unit in Unit)
        raise click.UsageError(
            f"--limit {text!r}: write N/UNIT, as in 10/minute; units are {units}"
        )
    return Limit(int(found[1]), unit, int(found[2] or 1))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


if __name__ == "__main__":
    main()
