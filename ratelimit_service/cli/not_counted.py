"""Why no count decided on a descriptor: what an answer does not say is asked for by peeking."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ratelimit_service.cli.service_client import Client
from ratelimit_service.model import Code, Decision, Descriptor, Limit, OverrideKind, Request, Unit

__all__ = ["not_counted", "overrides_of", "why_not_counted"]

_SOME_LIMIT = Limit(1, Unit.YEAR)


def not_counted(decision: Decision) -> Iterator[int]:
    """The places of the descriptors that no count decided on; unlimited ones are not among them."""
    for index, status in enumerate(decision.statuses):
        if status.limit is None and not status.remaining:
            yield index


def overrides_of(decision: Decision) -> dict[int, str]:
    """The operator's overrides that took part, by place of the descriptor, as text."""
    texts: dict[int, str] = {}
    for index, override in _listed(decision, "by_override"):
        text = f"{override['kind']} {override['id']}"
        texts[index] = f"{texts[index]}, {text}" if index in texts else text
    return {index: f"override ({text})" for index, text in texts.items()}


def why_not_counted(
    client: Client, request: Request, decision: Decision, timeout_us: int
) -> dict[int, str]:
    """The reason for each descriptor that no count decided on, by its place.

    Asks the service again where the answer does not say it: with 0 hits, which count nothing.
    Raises TransportError if it does not answer.
    """
    policies, overrides = _policies(decision), overrides_of(decision)
    banned = decision.code is Code.OVER_LIMIT and _names_ban(decision)
    reasons: dict[int, str] = {}
    served: bool | None = None
    for index in not_counted(decision):
        if index in policies:
            reasons[index] = f"failure policy {policies[index]}: the service's health says why"
            continue
        if index in overrides:
            reasons[index] = overrides[index]
            continue
        if banned:
            reasons[index] = "another descriptor of the request is banned"
            continue
        if served is None:
            served = _knows(client, request, timeout_us)
        if not served:
            reasons[index] = f"the service has no domain {request.domain!r}"
        elif len(request.descriptors) > 1 and _counts(
            client, request.domain, request.descriptors[index], timeout_us
        ):
            reasons[index] = "another rule of the request replaces its own"
        else:
            reasons[index] = "no rule matches"
    return reasons


def _names_ban(decision: Decision) -> bool:
    """Whether a ban took part: then nothing of a denied request is counted."""
    return any(
        override["kind"] == OverrideKind.BAN for _, override in _listed(decision, "by_override")
    )


def _policies(decision: Decision) -> dict[int, str]:
    """The failure policies that decided, by place."""
    return {index: str(decided["policy"]) for index, decided in _listed(decision, "by_policy")}


def _listed(decision: Decision, name: str) -> Iterator[tuple[int, Mapping[str, object]]]:
    """What an answer's metadata lists under a name, with the place of its descriptor."""
    listed = (decision.metadata or {}).get(name)
    if isinstance(listed, list):
        for item in listed:
            yield int(item["descriptor"]), item


def _knows(client: Client, request: Request, timeout_us: int) -> bool:
    """Whether the domain is there: only then a limit that the caller brings applies."""
    bringing = request.descriptors[0]._replace(limit=_SOME_LIMIT)
    return _counts(client, request.domain, bringing, timeout_us)


def _counts(client: Client, domain: str, descriptor: Descriptor, timeout_us: int) -> bool:
    """Whether a descriptor has a limit if nothing stands beside it."""
    peek = descriptor._replace(hits_addend=0, is_negative_hits=False)
    answer = client.should_rate_limit(Request(domain, (peek,)), timeout_us)
    return not list(not_counted(answer)) or bool(_policies(answer))
