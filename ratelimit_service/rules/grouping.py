"""The key `group` of descriptors and limits: from YAML to how addresses are put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratelimit_service.model import Grouping, IPAddress
from ratelimit_service.rules.language import GROUP_KEYS
from ratelimit_service.rules.matchers.cidr import Networks
from ratelimit_service.rules.matchers.matcher import Matcher

if TYPE_CHECKING:
    from ratelimit_service.rules.fields import Fields

__all__ = ["check_groupings", "read_grouping"]


def read_grouping(fields: Fields) -> Grouping | None:
    """How the addresses of a descriptor or limit are put together; None if each is by itself."""
    if not fields.given("group"):
        return None
    inside = fields.mapping("group", GROUP_KEYS)
    if not inside.readable:
        return None
    lengths = [
        inside.number(name, 0, IPAddress.bits_of(family)) if inside.given(name) else None
        for name, family in (("ipv4", 4), ("ipv6", 6))
    ]
    if lengths == [None, None]:
        message = "group is empty: write a prefix length, as in group: {ipv6: 64}"
        fields.report("group", message, key="group")
        return None
    whole = Grouping()
    ipv4, ipv6 = lengths
    return Grouping(whole.ipv4 if ipv4 is None else ipv4, whole.ipv6 if ipv6 is None else ipv6)


def check_groupings(
    descriptor: Fields,
    limits: list[Fields],
    grouping: Grouping | None,
    matcher: Matcher | None,
    *,
    shared: bool,
) -> None:
    """Reports groups that mean nothing where they stand."""
    if grouping is not None and isinstance(matcher, Networks):
        for network in matcher.networks:
            least = grouping.ipv4 if network.family == 4 else grouping.ipv6
            if network.length > least:
                message = (
                    f"group puts together networks of /{least}, and {network} is only a part of "
                    "one: give it another prefix length, or write a larger network"
                )
                descriptor.report("group", message, key="group")
    for limit in limits:
        if not limit.given("group"):
            continue
        if grouping is not None:
            message = "group stands on the descriptor already: put one into each limit instead"
            limit.report("group", message, key="group")
        elif shared:
            message = "group means nothing with share_threshold: all values share one counter"
            limit.report("group", message, key="group")
