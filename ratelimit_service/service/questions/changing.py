"""A change of overrides or counters, made with its record: who, from where, what and why.

What must not live here: what may be changed, and what its maker is told (`overrides`, `importing`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ratelimit_service.model import Descriptor, Entry, Override, time_text
from ratelimit_service.service.questions.question import About, Deciding
from ratelimit_service.text.descriptors import format_descriptor, override_text
from ratelimit_service.text.display import count, printable

__all__ = ["audit_line", "change"]

log = logging.getLogger(__name__)

_AUDIT_VERSION: Final = 1


def audit_line(
    deciding: Deciding,
    about: About,
    action: str,
    before: Sequence[Override | Mapping[str, object]],
    after: Sequence[Override],
) -> str:
    """The line that is kept of a change: who, from where, what, why, before and after."""
    told: dict[str, object] = {
        "v": _AUDIT_VERSION,
        "time": time_text(deciding.overrides.clock()),
        "action": action,
        "who": str(about.get("who", "")),
        "from": str(about.get("from", "")),
    }
    for name in ("domain", "descriptor", "limit", "reason", "id"):
        if name in about:
            told[name] = about[name]
    told["before"] = [each.fields() if isinstance(each, Override) else each for each in before]
    told["after"] = [each.fields() for each in after]
    return json.dumps(told)


async def change(
    deciding: Deciding, added: Sequence[Override], removed: Sequence[str], *audit: str
) -> None:
    """Makes a change, and says so in the log once it is made."""
    await deciding.overrides.change(added, removed, *audit)
    log.info("%s", _sentence([json.loads(each) for each in audit]))


def _sentence(lines: Sequence[Mapping[str, Any]]) -> str:
    """A change in words, as its lines of the audit have it."""
    audit = lines[0]
    who = audit["who"] + (f" from {audit['from']}" if audit["from"] else "")
    before = audit["before"]
    if audit["action"] == "reset":
        counts = [str(each["count"]) for each in before if each["count"] is not None]
        had = f", which had counted {' and '.join(counts)}" if counts else ""
        entries = tuple(Entry(key, value) for key, value in audit["descriptor"])
        whom = printable(f"{audit['domain']} {format_descriptor(Descriptor(entries))}")
        return f"{who} has reset the counters of {whom}{had}"
    if audit["action"] == "remove":
        return f"{who} has removed {'; '.join(map(override_text, before))}"
    if audit["action"] == "import":
        return f"{who} has imported {count(len(lines), 'override')}"
    instead = f", instead of {'; '.join(map(override_text, before))}" if before else ""
    return f"{who} has added {'; '.join(map(override_text, audit['after']))}{instead}"
