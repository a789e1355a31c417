"""How many answers of a benchmark may be decided by failure policy, and which benchmarks ask."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.by_policy import hold, too_many

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

UNASKED = {"measured", "overload", "overload_envoy"}
"""What serves but loads nothing, and where the answers by policy are what is to be seen."""


@pytest.mark.parametrize("thousands", [1, 7, 1_000])
def test_one_in_a_thousand_may_be_decided_by_policy(thousands: int) -> None:
    """Exactly one of a thousand calls may be decided by policy. One more is too many."""
    calls = 1_000 * thousands

    assert too_many(calls, thousands) == ""
    hold("a row", calls, thousands)

    wrong = too_many(calls, thousands + 1)
    assert wrong.startswith(f"{thousands + 1} of {calls} answers were decided by failure policy")
    with pytest.raises(SystemExit) as ended:
        hold("a row", calls, thousands + 1)
    assert ended.value.code == f"a row: {wrong}"


@pytest.mark.parametrize("calls", [0, 1, 999])
def test_of_less_than_a_thousand_calls_none_may_be(calls: int) -> None:
    """Of less than a thousand calls not even one may be decided by policy."""
    assert too_many(calls, 0) == ""
    assert too_many(calls, 1)


def test_where_less_may_be() -> None:
    """A benchmark of a call's processor time allows none at all."""
    hold("a row", 5_000, 0, most=0)
    with pytest.raises(SystemExit):
        hold("a row", 5_000, 1, most=0)


def programs() -> dict[str, list[ast.Module]]:
    """The modules of each benchmark: a file of its own, or a folder."""
    found: dict[str, list[ast.Module]] = {}
    for path in sorted(BENCHMARKS.rglob("*.py")):
        name = path.relative_to(BENCHMARKS).parts[0].removesuffix(".py")
        found.setdefault(name, []).append(ast.parse(path.read_text()))
    return found


def calls_of(modules: Sequence[ast.Module]) -> Iterator[tuple[str, ast.Call]]:
    """All calls, each with the last part of what is called."""
    for module in modules:
        for node in ast.walk(module):
            if isinstance(node, ast.Call):
                of = node.func
                yield getattr(of, "attr", getattr(of, "id", "")), node


def loads(modules: Sequence[ast.Module]) -> bool:
    """Whether a benchmark puts a service under load: it starts one, or has `run` start it."""
    words = {
        node.value
        for module in modules
        for node in ast.walk(module)
        if isinstance(node, ast.Constant)
    }
    return "serve" in words or "Bench" in {name for name, _ in calls_of(modules)}


def asks(modules: Sequence[ast.Module]) -> bool:
    """Whether it asks how many answers were decided by policy, or loads by what asks for it.

    That is `turn` of `cpu`, and `Bench` of `run` if it is not told otherwise.
    """
    calls = list(calls_of(modules))
    imported = {
        each.name
        for module in modules
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom)
        for each in node.names
    }
    words = {word.arg for _, call in calls for word in call.keywords}
    return not {name for name, _ in calls}.isdisjoint({"hold", "too_many", "turn"}) or (
        "Bench" in imported and "by_policy" not in words
    )


PROGRAMS = programs()

LOADING = [name for name, modules in PROGRAMS.items() if loads(modules)]


def test_benchmarks_that_load_are_known() -> None:
    """Those that measure calls are among the benchmarks that are looked at."""
    assert {"abuse", "beside", "console", "faults", "pairs", "peers", "restarts"} < set(LOADING)
    assert {"algorithms", "run", "shards", "workers"} < set(LOADING)
    assert set(LOADING) > UNASKED


OTHERS = {"clients", "cpu", "stalls", "xds"}
"""What loads a service as well, but is not seen to by `loads`."""


@pytest.mark.parametrize("name", sorted({*LOADING, *OTHERS} - UNASKED))
def test_benchmarks_ask(name: str) -> None:
    """No benchmark tells how fast calls are without asking whether they were counted."""
    assert asks(PROGRAMS[name])
