"""Garbage in cycles is freed, whoever makes it and however long it lived, in bounded steps."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator

import pytest

from ratelimit_service.eventloop.scheduler import shared_scheduler
from ratelimit_service.runtime import process


class Knot:
    """An object that nothing but the collector can free."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    steps = Steps()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: steps)
    monkeypatch.setattr(process, "thread_time_ns", lambda: steps.used_ns)
    process.spare_the_old()
    gc.callbacks.append(steps.collecting)
    process.collect()
    yield steps
    gc.callbacks.remove(steps.collecting)
    gc.enable()


class Steps:
    """Stands for the event loop: turns come when they are asked for."""

    def __init__(self) -> None:
        self.largest = 0
        """The most objects that a collection of older generations had to look at."""
        self._soon: list[Callable[[], None]] = []
        self.busy = True
        """Whether the process has much to do between two collections."""
        self.used_ns = 0
        """What it has used of the processor."""
        self.wait = 0.0
        """Seconds until the next collection, and what that is."""
        self._next: Callable[[], None] = process.collect
        self.generations: list[int] = []
        """What was collected."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    def turn(self) -> None:
        """Does what waits for the loop's next round, in which it has nothing else to do."""
        soon, self._soon = self._soon, []
        for each in soon:
            each()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.wait, self._next = seconds, callback

    def look(self) -> None:
        """Has the next collection begin."""
        self.used_ns += 1_000_000 if self.busy else 100_000
        self._next()

    def take(self, seconds: float) -> None:
        passed = 0.0
        while passed < seconds - 1e-9:
            passed += self.wait
            self.look()
            while self._soon:  # ten milliseconds are many rounds
                self.turn()

    def collecting(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self.generations.append(info["generation"])
        if phase == "start" and (oldest := info["generation"]):
            seen = sum(len(gc.get_objects(generation=each)) for each in range(oldest + 1))
            self.largest = max(self.largest, seen)


@pytest.mark.parametrize("busy", [True, False], ids=["busy", "quiet"])
@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.5, 20.0])
def test_garbage_is_freed_whatever_its_age(steps: Steps, seconds: float, busy: bool) -> None:
    """A cycle that has lived for a moment or for long is freed some seconds after its end."""
    steps.busy = busy
    knots = [Knot() for _ in range(1_000)]
    living = weakref.WeakSet(knots)
    steps.take(seconds)
    assert len(living) == 1_000

    knots.clear()
    steps.take(6.0)

    assert len(living) == 0


def test_memory_stays_flat(steps: Steps) -> None:
    """Cycles that live for a second each leave nothing behind, however many there were."""
    living: weakref.WeakSet[Knot] = weakref.WeakSet()
    for _ in range(20):
        knots = [Knot() for _ in range(500)]
        living.update(knots)
        steps.take(1.0)
        knots.clear()
    steps.take(6.0)

    assert len(living) == 0


def test_no_collection_is_large(steps: Steps) -> None:
    """What is made to stay by the hundred thousand is never looked at in one go."""
    objects: list[list[object]] = []
    for _ in range(100):
        objects += [[[]] for _ in range(2_000)]
        steps.take(0.02)
    steps.take(12.0)

    assert 0 < steps.largest <= process.AT_ONCE


def test_quiet_process_is_left_alone(steps: Steps) -> None:
    """Who does next to nothing is woken less often, until there is something to do again."""
    waits = []
    for busy in (True, False, False, True):
        steps.busy = busy
        steps.take(steps.wait)
        waits.append(steps.wait)

    assert waits == [0.01, 0.04, 0.04, 0.01]


def test_old_objects_are_counted_seldom(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    """While few objects come to stay, those that stay are not counted again and again."""
    get_objects, counted = gc.get_objects, []

    def counting(generation: int) -> list[object]:
        counted.append(generation)
        return get_objects(generation=generation)

    objects: list[list[object]] = [[] for _ in range(1_000)]
    steps.take(3.0)
    gc.callbacks.remove(steps.collecting)
    with monkeypatch.context() as patched:
        patched.setattr(gc, "get_objects", counting)
        steps.take(3.0)
    gc.callbacks.append(steps.collecting)

    assert len(objects) == 1_000
    assert counted.count(2) == 0


def test_older_objects_have_a_turn(steps: Steps) -> None:
    """Older objects are not collected in the turn of young ones."""
    seen = [list(steps.generations)]
    for _ in range(2):
        steps.generations.clear()
        steps.turn()
        seen.append(list(steps.generations))

    assert seen == [[0], [2], []]


def test_what_is_counted_stays_small(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of objects that are made to stay no more are counted at once than come in a moment."""
    get_objects, counted = gc.get_objects, [0]

    def counting(generation: int) -> list[object]:
        result = get_objects(generation=generation)
        counted[0] = max(counted[0], len(result))
        return result

    monkeypatch.setattr(gc, "get_objects", counting)
    gc.callbacks.remove(steps.collecting)
    objects: list[list[object]] = []
    for _ in range(300):
        objects += [[] for _ in range(1_000)]
        steps.take(0.01)
    gc.callbacks.append(steps.collecting)

    assert counted[0] <= process.AT_ONCE + 2_000


def test_collections_take_turns(steps: Steps) -> None:
    """While a turn is due, a collection of what is new waits for it."""
    for _ in range(2):
        steps.turn()
    knot = Knot()
    gone = weakref.ref(knot)
    del knot
    shared_scheduler().go_on(lambda: None)
    steps.look()
    assert gone() is not None

    steps.turn()

    assert gone() is None
