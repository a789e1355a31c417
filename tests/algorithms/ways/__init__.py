"""What each algorithm must answer, a module each, found by the registry's names.

A module has `WAYS` (a limit of each way to count), `WALKED` (limits for the random walk, several
on one counter), `CASES` (time and hits in, outcomes out) and `COSTS` (what a counter may take).
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from ratelimit_service.algorithms import ALGORITHMS
from ratelimit_service.model import Limit
from tests.algorithms.costs import Cost
from tests.stores.cases import Case

__all__ = ["CASES", "COSTS", "MODULES", "WALKED", "WAYS"]


def _module(name: str) -> ModuleType:
    path = f"{__name__}.{name}"
    if find_spec(path) is None:
        raise NotImplementedError(f"{path} is missing: see CONTRIBUTING.md, An algorithm")
    return import_module(path)


MODULES = [_module(name) for name in ALGORITHMS]

WAYS: list[Limit] = [limit for module in MODULES for limit in module.WAYS]
"""A limit of each way to count."""

WALKED: list[Limit] = [limit for module in MODULES for limit in module.WALKED]
"""Limits of which several count on one counter: a rule's number changes all the time."""

CASES: list[Case] = [case for module in MODULES for case in module.CASES]

COSTS: dict[str, Cost] = {name: cost for module in MODULES for name, cost in module.COSTS.items()}
