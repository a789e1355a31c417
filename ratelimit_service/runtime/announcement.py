"""The text at the start: what is served where, and a command that asks for a decision."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Iterable, Sequence
from itertools import islice

from ratelimit_service.processes.command_line import typed
from ratelimit_service.rules.tree import Level, Node, Snapshot
from ratelimit_service.service.enqueueing import nowhere_to_queue
from ratelimit_service.settings import Settings, redacted
from ratelimit_service.text.display import printable

__all__ = ["announce"]

log = logging.getLogger(__name__)

_MOST_NAMED = 5
"""Rules that a warning names."""

_EXAMPLES = {"remote_address": "192.0.2.1", "masked_remote_address": "192.0.2.0/24"}
"""Values of keys that Envoy fills with addresses."""


def announce(
    settings: Settings,
    snapshot: Snapshot,
    grpc_port: int,
    http_port: int,
    workers: int,
    admin: str = "",
) -> None:
    """Prints the text; `workers` is 0 where there is never more than one.

    `admin` is where the admin listener is, and for whom; empty if there is none.
    """
    at = f"port {grpc_port}" if grpc_port else settings.grpc
    many = f" with {workers} worker{'' if workers == 1 else 's'}" if workers else ""
    lines = [
        f"ratelimit serves gRPC on {at} and HTTP on port {http_port}{many}",
        *([f"admin on {admin}"] if admin else []),
        f"counters in {redacted(settings.store)}"
        + (f", of seconds in {redacted(settings.second_store)}" if settings.second_store else ""),
        f"rules from {settings.rules}: "
        + (
            _domains(snapshot.domains)
            or f"no domain, so the failure policy decides all: {settings.failure_policy}"
        ),
    ]
    lines += not_served(snapshot)
    lines.append(f"hits of denied requests that count: {settings.denied_counted} (--count-denied)")
    options = []
    if settings.grpc.startswith("unix:") or grpc_port != 8081:
        options += ["--address", f"localhost:{grpc_port}" if grpc_port else settings.grpc]
    if settings.tls_cert:
        options += ["--tls-ca", settings.tls_cert]
    command = _example(snapshot, options)
    if command:
        lines += ["make a decision with", command]
    sys.stdout.write("".join(f"{printable(line)}\n" for line in lines))
    sys.stdout.flush()
    _warn_of_queues(settings, snapshot)
    for flag, url in (("store", settings.store), ("second-store", settings.second_store)):
        if redacted(url) != url and any(url in word for word in sys.argv):
            log.warning(
                "the password in --%s is seen by all who may list processes: give the URL in "
                "RATELIMIT_%s, or the password in a file, by the URL's option password_file",
                flag,
                flag.upper().replace("-", "_"),
            )


def _warn_of_queues(settings: Settings, snapshot: Snapshot) -> None:
    """Says which rules have a queue where there can be none."""
    if settings.store != "memory":
        return
    domains = [domain for domain in snapshot.domains.values() if domain.enqueues]
    rules = list(
        islice((rule for domain in domains for rule in domain.rules if rule.enqueue), _MOST_NAMED)
    )
    if rules:
        log.warning("%s", nowhere_to_queue(rules))


def not_served(snapshot: Snapshot) -> list[str]:
    """A line about the domains whose rules have problems, if there are any."""
    names = snapshot.unserved
    return [f"NOT served, see the errors above: {_domains(names)}"] if names else []


def _domains(names: Iterable[str]) -> str:
    listed = sorted(names)
    return f"{'domain' if len(listed) == 1 else 'domains'} {', '.join(listed)}" if listed else ""


def _example(snapshot: Snapshot, options: Sequence[str]) -> str | None:
    """A shell command that asks for the first limited rule; None if there is none.

    `options` say how the service is reached.
    """
    for domain in snapshot.domains.values():
        path = _first_limited(domain.root)
        if path:
            entries = ",".join(_entry(node) for node in path)
            return shlex.join([*typed(), "hit", *options, domain.name, entries])
    return None


def _first_limited(level: Level) -> list[Node] | None:
    for node in sorted(level.nodes, key=lambda node: node.source):
        if node.matcher is not None and not node.matcher.example:
            continue
        if node.rule and not node.rule.unlimited:
            return [node]
        if node.children and (below := _first_limited(node.children)):
            return [node, *below]
    return None


def _entry(node: Node) -> str:
    value = node.matcher.example if node.matcher else node.value or _EXAMPLES.get(node.key, "alice")
    return f"{_escaped(node.key)}={_escaped(value)}"


def _escaped(text: str) -> str:
    for special in "\\,=":
        text = text.replace(special, "\\" + special)
    return text
