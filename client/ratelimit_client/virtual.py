"""The service's own rules, algorithms and memory store, in this process. The service's only door.

It is imported only where the extra `testing` is used.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from ratelimit_client.errors import BadRequestError, UnavailableError
from ratelimit_client.model import Decision, Request
from ratelimit_client.wire import decode, encode
from ratelimit_service import errors
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rule_lab.simulation.world import World
from ratelimit_service.rules.from_files import FromFiles
from ratelimit_service.rules.lint import lint
from ratelimit_service.rules.load import Rules
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
        self._world = World(_snapshot(rules), settings or Settings())

    def answer(self, request: Request) -> Decision:
        """Goes through the bytes of both messages, as calls do. Raises as a transport."""
        try:
            decided = self._world.decide(decode_request(encode(request)), self._now_us())
        except errors.BadRequestError as error:
            raise BadRequestError(f"the service refuses the request: {error}") from error
        except errors.PolicyError as error:
            raise UnavailableError(str(error)) from error
        answer = encode_decision(decided.decision)
        if decided.decision.holds_us:
            answer += encode_quota(self._now_us() + decided.decision.holds_us)
        return decode(answer)


def _snapshot(rules: str | Path) -> Snapshot:
    if isinstance(rules, str):
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "rules.yaml"
            file.write_text(rules)
            return _snapshot(file)
    problems = [problem for problem in lint([rules]).problems if problem.fatal(strict=False)]
    if problems:
        raise ValueError("\n".join(map(str, problems)))
    loaded = Rules(FromFiles(rules), stats=Stats(), health=Health())
    loaded.load()
    return loaded.snapshot
