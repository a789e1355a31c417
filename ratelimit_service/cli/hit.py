"""`ratelimit hit`: asks a service for a decision, and shows it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

import click

from ratelimit_service.cli.say import in_color, say_line
from ratelimit_service.cli.words import (
    duration,
    format_descriptor,
    grpc_address,
    parse_descriptor,
    parse_limit,
    utf8,
)
from ratelimit_service.model import MAX_ADDEND, Code, Decision, Request, Status, whole_seconds

__all__ = ["hit"]


@click.command()
@click.argument("domain", type=utf8)
@click.argument("descriptors", nargs=-1, required=True)
@click.option(
    "--address",
    default="localhost:8081",
    show_default=True,
    metavar="HOST:PORT",
    envvar="RATELIMIT_ADDRESS",
    callback=grpc_address,
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
    "--timeout",
    "timeout_us",
    default="1s",
    show_default=True,
    metavar="DURATION",
    callback=duration,
    help="For each call.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a decision.")
@in_color
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
    timeout_us: int,
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
    from ratelimit_service.cli.not_counted import overrides_of, why_not_counted  # noqa: PLC0415
    from ratelimit_service.cli.service_client import Client, ClientTLS  # noqa: PLC0415

    if (tls_cert or tls_key) and not (tls_ca and tls_cert and tls_key):
        raise click.UsageError("a client certificate takes --tls-ca, --tls-cert and --tls-key")
    if not timeout_us:
        raise click.UsageError("--timeout is 0: write a duration above 0, as in 1s or 500ms")
    tls = ClientTLS(tls_ca, tls_cert, tls_key) if tls_ca else None
    override = parse_limit(limit) if limit else None
    parsed = tuple(
        parse_descriptor(text)._replace(limit=override, hits_addend=hits, is_negative_hits=refund)
        for text in descriptors
    )
    request = Request(domain, parsed)
    denied = 0
    with Client(address, tls) as client:
        for _ in range(repeat):
            decision = client.should_rate_limit(request, timeout_us)
            denied += decision.code is Code.OVER_LIMIT
            why = why_not_counted(client, request, decision, timeout_us)
            if as_json:
                import json  # noqa: PLC0415

                click.echo(json.dumps(_as_json(decision, why)))
                continue
            for line in _lines(request, decision, why, overrides_of(decision)):
                say_line(line, colour=_COLOURS.get)
    if repeat > 1 and not as_json:
        say_line(f"{repeat - denied} allowed, {denied} over limit")
    return 1 if denied else 0


_COLOURS = {"OK": "green", "OVER_LIMIT": "red"}


def _lines(
    request: Request, decision: Decision, why: Mapping[int, str], overrides: Mapping[int, str]
) -> Iterator[str]:
    """The decision for people: on one line, or one line a descriptor below it."""
    names = [format_descriptor(descriptor) for descriptor in request.descriptors]
    texts = [
        _status_text(status, why.get(index), overrides.get(index))
        for index, status in enumerate(decision.statuses)
    ]
    head = f"{decision.code.name:<10}  {request.domain}"
    marks = "".join(f", {header.key}: {header.value}" for header in decision.request_headers)
    if len(names) == 1:
        yield f"{head} {names[0]}  {texts[0]}{marks}"
        return
    yield f"{head}{marks.replace(',', ' ', 1)}"
    for name, status, text in zip(names, decision.statuses, texts, strict=True):
        yield f"  {status.code.name:<10}  {name}  {text}"


def _status_text(status: Status, why: str | None, override: str | None) -> str:
    if why is not None:
        return f"not counted: {why}"
    return _counted(status) + (f", by {override}" if override else "")


def _counted(status: Status) -> str:
    if status.limit is None or status.reset_us is None:
        return "unlimited"
    resets = f"resets in {whole_seconds(status.reset_us)} s"
    if status.remaining > status.limit.requests_per_unit:  # a bucket with a burst has more
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
                **({"not_counted": why[index]} if index in why else {}),
            }
            for index, status in enumerate(decision.statuses)
        ],
        "response_headers": dict(decision.response_headers),
        "request_headers": dict(decision.request_headers),
        "metadata": decision.metadata,
    }
