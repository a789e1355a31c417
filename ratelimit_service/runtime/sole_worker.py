"""Which services have one worker and never two at once, and why.

What must not live here: what is done with that (`app`, `workers`, `supervisor`).
"""

from __future__ import annotations

from ratelimit_service.settings import Settings

__all__ = ["cannot_restart", "keeps_counters", "why_one_worker"]


def keeps_counters(settings: Settings) -> bool:
    """Whether counters are in a worker's memory, and gone with it."""
    return settings.store == "memory"


def why_one_worker(settings: Settings) -> str:
    """What more than one worker would need; empty if there may be several."""
    if keeps_counters(settings):
        return "needs a --store in Redis: in memory each would count for itself"
    if settings.transport != "h2":
        return "needs --transport h2: grpcio cannot take over connections"
    return ""


def cannot_restart(settings: Settings) -> str:
    """Why no worker can be replaced by a new one beside it; empty if it can."""
    if not why_one_worker(settings):
        return ""
    which = "with its counters in memory" if keeps_counters(settings) else "over grpcio"
    return f"one worker {which} cannot hand over to another: stop it and start it again"
