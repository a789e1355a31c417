"""How many answers of a benchmark may be decided by failure policy: one in a thousand.

An answer by policy costs less than a counted one, so beyond that nothing is said of counting. Every
benchmark that loads a service asks here. Where policies are what is to be seen, it does not: while
a fault lasts (`faults`, which asks about the time before it), and above what the service can bear
(`overload`, which has a column for these answers and a bound for those that were counted).
"""

from __future__ import annotations

import urllib.request

__all__ = ["hold", "told_by_service", "too_many"]

_MOST = 0.001
_METRIC = "ratelimit_policy_decisions_total{"


def too_many(calls: float, by_policy: float, most: float = _MOST) -> str:
    """What is wrong, if so many of these calls were decided by policy; else nothing."""
    if by_policy <= most * calls:
        return ""
    return (
        f"{by_policy:.0f} of {calls:.0f} answers were decided by failure policy, "
        "so this says nothing of counting"
    )


def hold(what: str, calls: float, by_policy: float, most: float = _MOST) -> None:
    """Ends the benchmark, if too many calls were decided by policy; `what` names its row.

    `most` is the share that may be, where that is less than elsewhere.
    """
    if wrong := too_many(calls, by_policy, most):
        raise SystemExit(f"{what}: {wrong}")


def told_by_service(http_port: int) -> int:
    """How many descriptors a service has decided by policy, by its own metrics.

    For clients that do not see it, such as Envoy's.
    """
    with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    found = [line.rpartition(" ")[2] for line in lines if line.startswith(_METRIC)]
    return sum(int(float(number)) for number in found)
