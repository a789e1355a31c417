"""`ratelimit explain`: which rule a descriptor meets, and why."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from ratelimit_service.cli.admin import asks_admin
from ratelimit_service.cli.counted import counting_denied
from ratelimit_service.cli.override import overrides_taking
from ratelimit_service.cli.say import say, say_line
from ratelimit_service.cli.words import parse_descriptor, utf8
from ratelimit_service.model import CountDenied, Denied
from ratelimit_service.text.descriptors import override_text

if TYPE_CHECKING:
    from ratelimit_service.cli.admin_client import AdminClient
    from ratelimit_service.rules.explain import Explanation

__all__ = ["explain"]


@click.command()
@click.argument("domain", type=utf8)
@click.argument("descriptors", nargs=-1, required=True)
@click.option(
    "--rules",
    default="rules",
    show_default=True,
    metavar="PATH",
    envvar="RATELIMIT_RULES",
    help="Where the rules come from, as for serve.",
)
@click.option("--overrides", is_flag=True, help="Ask the service which overrides take it, too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a descriptor.")
@counting_denied
@asks_admin
def explain(
    admin: AdminClient,
    domain: str,
    descriptors: Sequence[str],
    rules: str,
    overrides: bool,
    as_json: bool,
    count_denied: CountDenied | None,
) -> int:
    """Tell which rule a descriptor meets, why, and what is counted.

    A descriptor is written key=value,key=value; a comma, an equals sign or a backslash in a
    key or value stands behind a backslash. Nothing is counted, and no service is asked but with
    --overrides; a management server is (--rules xds://HOST:PORT), as the environment says of it
    to serve. Exits 0, or 2 if some of the rules have problems.

    Example: ratelimit explain demo user=alice
    """
    from ratelimit_service.eventloop.clock import now_us  # noqa: PLC0415
    from ratelimit_service.observability.health import Health  # noqa: PLC0415
    from ratelimit_service.observability.stats import Stats  # noqa: PLC0415
    from ratelimit_service.rules.explain import explain as explained  # noqa: PLC0415
    from ratelimit_service.rules.load import Rules  # noqa: PLC0415
    from ratelimit_service.rules.moment import at_moment  # noqa: PLC0415
    from ratelimit_service.rules.sources import source_of  # noqa: PLC0415
    from ratelimit_service.settings.environment import from_environment  # noqa: PLC0415

    environ = os.environ  # noqa: TID251 -- handed over, not read
    settings = from_environment(environ, "xds_", rules=rules, count_denied=count_denied)
    source = source_of(settings)
    counted = settings.denied_counted
    health = Health()
    loaded = Rules(source, stats=Stats(), health=health)
    loaded.load(once=True)
    snapshot = at_moment(loaded.snapshot, now_us())
    for text in descriptors:
        explanation = explained(snapshot, domain, parse_descriptor(text))
        known = loaded.snapshot.domains.get(domain)
        keys = _counter_keys(domain, explanation, known.shard_by if known else None)
        overridden = overrides_taking(admin, domain, text) if overrides else None
        if as_json:
            fields = {**_explained(explanation, keys), "count_denied": counted}
            click.echo(
                json.dumps(fields if overridden is None else {**fields, "overrides": overridden})
            )
        else:
            say(str(explanation))
            for key in keys:
                say_line(f"counter {key}")
            if keys and counted is not CountDenied.NONE:
                say(f"if it is denied: {_COUNTED[counted]} (--count-denied {counted})")
                for line in _cannot_owe(explanation):
                    say(line)
            for override in overridden or ():
                say_line(f"override: {override_text(override)}")
            if overridden == []:
                say("no override takes it")
    return 2 if health.faults else 0


_COUNTED: Final = {
    CountDenied.REPORTED: "hits that a descriptor brings itself count all the same",
    CountDenied.ALL: "all hits count all the same",
}


def _cannot_owe(explanation: Explanation) -> list[str]:
    """A hint for each algorithm of its limits that counts no hits without room."""
    from ratelimit_service.algorithms import ALGORITHMS  # noqa: PLC0415

    rule = explanation.match.rule
    names = dict.fromkeys([limit.algorithm for limit in rule.limits] if rule else [])
    return [
        f"but {name} counts only hits for which there is room: a limit that is asked with 0 hits, "
        "and charged afterwards, should be a window"
        for name in names
        if ALGORITHMS[name].denied < Denied.COUNTED
    ]


def _counter_keys(
    domain: str, explanation: Explanation, shard_by: frozenset[str] | None
) -> list[str]:
    """The key of each limit's counter."""
    from ratelimit_service.algorithms import spec_of  # noqa: PLC0415
    from ratelimit_service.stores.keys import CounterNames  # noqa: PLC0415

    match = explanation.match
    return [
        CounterNames(domain, spec_of(limit), shard_by, limit)
        .key(match.identity, match.shared)
        .decode("utf-8", "backslashreplace")
        for limit in (match.rule.limits if match.rule else ())
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
