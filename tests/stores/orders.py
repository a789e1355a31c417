"""Search of small models: every order of steps up to a depth, the shortest first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

__all__ = ["search"]

State = TypeVar("State")


def search(
    first: State,
    depth: int,
    steps: Callable[[State], Iterable[tuple[str, State]]],
    is_wrong: Callable[[State], bool],
) -> tuple[int, list[str]]:
    """Walks all orders of steps; states are told apart by their values.

    Returns how many states there are, and the names of the steps to the first one that is wrong;
    no names if none is.
    """
    came_from: dict[State, tuple[State, str] | None] = {first: None}
    edge = [first]
    for _ in range(depth):
        following = []
        for state in edge:
            for name, after in steps(state):
                if after in came_from:
                    continue
                came_from[after] = state, name
                if is_wrong(after):
                    return len(came_from), _trace(came_from, after)
                following.append(after)
        edge = following
    return len(came_from), []


def _trace(came_from: dict[State, tuple[State, str] | None], state: State) -> list[str]:
    names: list[str] = []
    while (before := came_from[state]) is not None:
        state, name = before
        names.append(name)
    return names[::-1]
