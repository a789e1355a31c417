"""The service's own rules, algorithms and memory store, in this process. The service's only door.

It is imported only where the extra `testing` is used.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ratelimit_client.errors import BadRequestError, UnavailableError
from ratelimit_client.model import TOO_LARGE, Call, Decision, Reason, Request
from ratelimit_client.wire import decode, encode
from ratelimit_service import errors
from ratelimit_service.rule_lab.simulation.simulator import Simulator
from ratelimit_service.rule_lab.simulation.snapshots import BrokenRulesError, snapshot_of
from ratelimit_service.rules.tree import Snapshot
from ratelimit_service.settings import Settings
from ratelimit_service.wire import decode_request, encode_decision, encode_quota

__all__ = ["Virtual"]


class Virtual:
    """Decides at the time of a clock, and counts in memory."""

    def __init__(
        self, rules: str | Path, now_us: Callable[[], int], settings: Settings | None = None
    ) -> None:
        """`rules` is a path, or the text of a rule file. Raises ValueError if it has problems."""
        self._now_us = now_us
        self._simulator = Simulator(_snapshot(rules), settings or Settings())
        self._reservations = 0

    def answer(self, request: Request) -> Decision:
        """Goes through the bytes of both messages, as calls do. Raises as a transport."""
        try:
            if request.call is not Call.DECIDE:
                return self._reserved(request)
            decided = self._simulator.decide(decode_request(encode(request)), self._now_us())
        except errors.BadRequestError as error:
            raise BadRequestError(f"the service refuses the request: {error}") from error
        except errors.PolicyError as error:
            raise UnavailableError(str(error)) from error
        answer = encode_decision(decided.decision)
        if decided.decision.holds_us:
            answer += encode_quota(self._now_us() + decided.decision.holds_us)
        return decode(answer)

    def _reserved(self, request: Request) -> Decision:
        """Holds or settles hits."""
        asked = decode_request(encode(replace(request, call=Call.DECIDE, cost=1)))
        held_id, hits, now_us = request.reservation, request.cost, self._now_us()
        if request.call is Call.SETTLE:
            self._simulator.settle(asked, hits, held_id, now_us)
            return Decision(True, Reason.WITHIN_LIMIT)
        if not held_id:
            self._reservations += 1
            held_id = str(self._reservations)
        ttl_us = round(request.ttl * 1_000_000)
        found = self._simulator.reserve(asked, hits, held_id, ttl_us, now_us)
        if not found.passed:
            detail = TOO_LARGE if found.too_large else ""
            return Decision(False, Reason.OVER_LIMIT, detail=detail)
        return Decision(True, Reason.WITHIN_LIMIT, reservation=held_id if found.held else "")


def _snapshot(rules: str | Path) -> Snapshot:
    if isinstance(rules, str):
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "rules.yaml"
            file.write_text(rules)
            return _snapshot(file)
    try:
        return snapshot_of(rules)
    except BrokenRulesError as error:
        raise ValueError(str(error)) from error
