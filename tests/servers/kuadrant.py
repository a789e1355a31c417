"""A gateway that speaks Kuadrant's protocol: the Go program of tests/kuadrant."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.conftest import need

KUADRANT = str(Path(__file__).parents[2] / ".tools" / "kuadrant")
OK, OVER_LIMIT = "OK", "OVER_LIMIT"

Call = tuple[str, dict[str, object]]
"""A method, and its request in protobuf's JSON."""


class Gateway:
    """It asks for descriptors such as `user=alice` of one domain, by the service at an address."""

    def __init__(self, address: str, domain: str) -> None:
        need(KUADRANT, "install Go, and run the test again")
        self._domain = domain
        self._child = subprocess.Popen(
            [KUADRANT, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def close(self) -> None:
        """Ends it."""
        self._child.communicate()

    def call(self, *calls: Call) -> list[dict[str, Any]]:
        """The answers to calls that are made at the same time; of one that failed its `status`."""
        assert self._child.stdin
        assert self._child.stdout
        self._child.stdin.write(json.dumps(calls) + "\n")
        self._child.stdin.flush()
        answers: list[dict[str, Any]] = json.loads(self._child.stdout.readline())
        return answers

    def _request(self, descriptors: tuple[str, ...], **fields: object) -> dict[str, object]:
        entries = [
            [dict(zip(("key", "value"), each.split("="), strict=True))] for each in descriptors
        ]
        return {
            "domain": self._domain,
            "descriptors": [{"entries": each} for each in entries],
            **fields,
        }

    def reserving(self, amount: int, *descriptors: str, ttl: str = "60s") -> Call:
        """A Reserve that can be made at the same time as others."""
        return "Reserve", self._request(descriptors, amount=amount, ttl=ttl)

    def reserve(self, amount: int, *descriptors: str, ttl: str = "60s") -> str:
        """The id of what is held; empty if there was no room."""
        (answer,) = self.call(self.reserving(amount, *descriptors, ttl=ttl))
        assert (answer["code"] == OK) == bool(answer["reservationId"])
        return str(answer["reservationId"])

    def commit(self, reservation: str, actual: int, *descriptors: str) -> bool:
        """Whether something was still held."""
        request = self._request(descriptors, reservationId=reservation, actualAmount=actual)
        (answer,) = self.call(("Commit", request))
        return bool(answer["reservationReleased"])

    def check(self, *descriptors: str, **fields: object) -> str:
        """The code of CheckRateLimit; `hitsAddend` is a field."""
        (answer,) = self.call(("CheckRateLimit", self._request(descriptors, **fields)))
        return str(answer["overallCode"])

    def report(self, *descriptors: str, **fields: object) -> None:
        """Counts, by Report."""
        (answer,) = self.call(("Report", self._request(descriptors, **fields)))
        assert answer["overallCode"] in {OK, OVER_LIMIT}

    def room(self, *descriptors: str) -> int:
        """The most hits that would fit, found out by CheckRateLimit, which counts none of them."""
        low, high = 0, 1 << 20
        while high - low > 1:
            middle = (low + high) // 2
            fits = self.check(*descriptors, hitsAddend=middle) == OK
            low, high = (middle, high) if fits else (low, middle)
        return low
