"""`ratelimit status`: what somebody on call asks first, on one screen."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ratelimit_service.cli.admin import AS_JSON, asks_admin
from ratelimit_service.cli.say import say_line
from ratelimit_service.cli.top import page
from ratelimit_service.text.display import count

if TYPE_CHECKING:
    from ratelimit_service.cli.admin_client import AdminClient

__all__ = ["status"]

_MOST_PROBLEMS = 3
_CALLERS = 5
_DENIALS = 5


@click.command()
@AS_JSON
@asks_admin
def status(as_json: bool, admin: AdminClient) -> int:
    """Show how the service does, on one screen: what somebody on call asks first.

    Shown are its health, the servers of its store, its rules, decisions of one second, the share of
    hits that a failure policy decided, overrides, the callers furthest over their limit, and the
    last denials. It takes a second. Times are UTC.

    Exits 0 if all is well, 1 if it does not serve or something is degraded.

    Example: ratelimit status
    """
    answer: Any = admin.get("/status")
    faults = _faults(answer)
    if as_json:
        click.echo(json.dumps({**answer, "faults": faults}))
    else:
        for line in _lines(answer, faults):
            say_line(line)
    return 0 if answer["serving"] and not faults else 1


def _faults(answer: Any) -> dict[str, str]:
    """What is degraded: as single processes know it, and then as the whole service does."""
    faults: dict[str, str] = {}
    for process in answer["processes"]["deciding"]:
        faults |= process["faults"]
    faults |= answer["faults"]
    return faults


def _lines(answer: Any, faults: dict[str, str]) -> Iterator[str]:
    well = "nothing is degraded" if not faults else "DEGRADED"
    yield f"health     {answer['phase'] if answer['serving'] else 'NOT SERVING'}, {well}"
    for component, why in faults.items():
        yield f"           {component}: {why}"
    yield f"store      {answer['processes']['store']}"
    yield from _shards(answer["processes"]["deciding"])
    yield f"processes  {_processes(answer['processes'])}"
    yield from _rules(answer["rules"], faults)
    seconds = answer["seconds"]
    allowed, denied, refused = (round(answer[name] / seconds) for name in ("ok", "over", "refused"))
    late = answer["p99_us"]
    answered = "" if late is None else f"; 99 % answered within {late / 1_000:g} ms"
    yield f"decisions  {allowed} a second allowed, {denied} denied, {refused} refused{answered}"
    now = _share(answer["hits_by_policy"], answer["hits"])
    since = _share(answer["hits_by_policy_since_start"], answer["hits_since_start"])
    yield f"by policy  {now} of the hits of this second, {since} since the start"
    yield f"overrides  {answer['overrides']} in force"
    yield ""
    callers = answer["callers"]
    yield from page({**callers, "callers": callers["callers"][:_CALLERS]})
    yield ""
    yield from _denials(answer["denials"])


def _shards(deciding: Any) -> Iterator[str]:
    """The servers of the store, each as the process sees it that sees it worst."""
    worst: dict[tuple[str, str], Any] = {}
    for process in deciding:
        for shard in process["shards"]:
            known = worst.setdefault((shard["kind"], shard["name"]), shard)
            if _badness(shard) > _badness(known):
                worst[shard["kind"], shard["name"]] = shard
    for (kind, name), shard in worst.items():
        state = f"connected to {shard['address']}" if shard["address"] else "AWAY"
        breaker = ", breaker OPEN" if shard["breaker_open"] else ""
        trip = shard["round_trip_us"]
        last = "" if trip is None else f", last round trip {trip / 1_000:g} ms"
        yield f"           {kind} {name}: {state}{breaker}{last}"


def _badness(shard: Any) -> tuple[bool, bool, int]:
    return not shard["address"], shard["breaker_open"], shard["round_trip_us"] or 0


def _processes(processes: Any) -> str:
    supervisor = processes["supervisor"]
    workers = supervisor["workers"]
    states = Counter(worker["state"] for worker in workers)
    running = count(len(workers), "worker") if workers else "NO WORKER: see the log"
    if len(states) > 1:
        running += ": " + ", ".join(f"{number} {state}" for state, number in states.items())
    else:
        running = ", ".join((running, *states))
    error = supervisor.get("restart_error")
    return ", ".join((running, f"version {supervisor['version']}", *([error] if error else [])))


def _rules(rules: Any, faults: dict[str, str]) -> Iterator[str]:
    problems = rules["problems"]
    wrong = count(len(problems), "PROBLEM") if problems else "no problem"
    known = f"{count(rules['rules'], 'rule')} in {count(rules['domains'], 'domain')}"
    yield f"rules      {known}, {wrong}"
    for domain in rules["unserved"]:
        yield f"           {domain} is not served: its rules never loaded"
    for problem in problems[:_MOST_PROBLEMS]:
        if problem not in faults.get("rules", ""):  # the first one is told there
            yield f"           {problem}"
    if len(problems) > _MOST_PROBLEMS:
        yield f"           and {len(problems) - _MOST_PROBLEMS} more: see ratelimit lint"


def _share(some: int, all_: int) -> str:
    return f"{100 * some / all_:.1f} %" if all_ else "none"


def _denials(lines: Any) -> Iterator[str]:
    """The last denials of different callers, the newest first."""
    from ratelimit_service.eventloop.clock import now_us  # noqa: PLC0415
    from ratelimit_service.rule_lab.replay.denials import last_denials  # noqa: PLC0415

    sentences = last_denials(lines, _DENIALS, now_us())
    yield "the last denials" if sentences else "no denial was noted just now: look again"
    yield from sentences
