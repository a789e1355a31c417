"""Regular expressions hold the event loop up for a moment only, whatever a request asks of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from ratelimit_service.model import Code, Request
from ratelimit_service.rules.matchers.automaton import Automaton, CompiledPattern
from ratelimit_service.service import Answer, CallbackBatch
from ratelimit_service.wire import decode_decision, encode_request
from tests.service.asking import Asking, descriptor
from tests.service.overriding import LIMIT, override
from tests.service.test_large import Turns

PATTERN = ".*a.{90}b"
"""It comes to some hundred instructions, and each byte may need them all."""

RULES = f"""
domain: edge
descriptors:
- {{key: path, rate_limit: {{unit: day, requests_per_unit: 1}}}}
- {{key: path, regex: '{PATTERN}', rate_limit: {{unit: day, requests_per_unit: 2}}}}
- {{key: user, rate_limit: {{unit: day, requests_per_unit: 100}}}}
"""

MOST_WORK = 600_000
"""Instructions times bytes in one turn: 3 ms, at 5 ns for each."""


def value(number: int) -> str:
    """Every other one matches."""
    end = "b" if number % 2 else "c"
    return f"{number:03}{'a' * 350}{end}"


def body(numbers: Sequence[int]) -> bytes:
    """A request with these values."""
    asked = [descriptor(f"path={value(number)}") for number in numbers]
    return encode_request(Request("edge", (*asked, descriptor("user=alice"))))


class Searched:
    """How much was searched in each turn of the loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, turns: Turns) -> None:
        self.bytes: Counter[int] = Counter()
        search = Automaton.matching

        def matching(automaton: Automaton, text: str) -> Sequence[int]:
            self.bytes[turns.number] += len(text)
            return search(automaton, text)

        monkeypatch.setattr(Automaton, "matching", matching)

    @property
    def most(self) -> int:
        """Of all turns: instructions times bytes."""
        return max(self.bytes.values()) * CompiledPattern(PATTERN).size


async def asked(asking: Asking, turns: Turns, bodies: Sequence[bytes]) -> list[Answer]:
    """The answers to a batch, when they have come."""
    told: list[Answer] = []
    asking.service.submit(CallbackBatch(list(bodies), told.extend))
    await turns.until(lambda: bool(told))
    return told


def remaining(answer: Answer) -> list[int]:
    assert isinstance(answer, bytes)
    decision = decode_decision(answer)
    assert decision.code is Code.OK
    return [status.remaining for status in decision.statuses]


async def test_long_values_of_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call with many long values is planned over many turns, each value searched once.

    It gets the answer that it would get at once.
    """
    asking, turns = Asking(tmp_path, RULES), Turns()
    searched = Searched(monkeypatch, turns)

    (answer,) = await asked(asking, turns, [body(range(40))])

    assert remaining(answer) == [number % 2 for number in range(40)] + [99]
    assert searched.most <= MOST_WORK
    assert sum(searched.bytes.values()) == 40 * len(value(0))


async def test_long_values_of_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a batch only those calls wait whose values take long; all are answered in their order."""
    asking, turns = Asking(tmp_path, RULES), Turns()
    searched = Searched(monkeypatch, turns)
    broken = b"\xff"

    answers = await asked(asking, turns, [body([]), *(body([at]) for at in range(9)), broken])

    assert [remaining(answer) for answer in answers[:10]] == [
        [99],
        *([number % 2, 98 - number] for number in range(9)),
    ]
    assert not isinstance(answers[10], bytes)
    assert asking.stats.refusals.total() == 1  # it is counted once, in however many turns
    assert searched.most <= MOST_WORK
    assert sum(searched.bytes.values()) == 9 * len(value(0))


async def test_many_expressions_that_nobody_has_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a batch needs of many expressions is built over many turns, each once."""
    lines = [
        f"- {{key: k, regex: '/{number}/[a-z]{{900}}', rate_limit: {{unlimited: true}}}}\n"
        for number in range(10, 30)
    ]
    asking, turns = Asking(tmp_path, "domain: edge\ndescriptors:\n" + "".join(lines)), Turns()
    built: Counter[int] = Counter()
    build = Automaton.build

    def building(automaton: Automaton) -> None:
        built[turns.number] += (
            0 if automaton.built else len(automaton._texts)
        )  # which turn builds what is seen in no other way
        build(automaton)

    monkeypatch.setattr(Automaton, "build", building)
    values = [descriptor(f"k=/{number}/a") for number in range(10, 30)]

    answers = await asked(
        asking, turns, [encode_request(Request("edge", (value,))) for value in values]
    )

    assert [isinstance(answer, bytes) for answer in answers] == [True] * 20
    assert sum(built.values()) == 20
    assert max(built.values()) <= 2


async def test_many_expressions_that_begin_one_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one value needs is built over many turns, too: some begin with a part of another."""
    begin = ["/" + "a" * number for number in range(9)]
    lines = [
        f"- {{key: k, regex: '{each}{rest}', rate_limit: {{unlimited: true}}}}\n"
        for each in begin
        for rest in ("[0-9]", "![a-z]{800}")
    ]
    asking, turns = Asking(tmp_path, "domain: edge\ndescriptors:\n" + "".join(lines)), Turns()
    built: Counter[int] = Counter()
    build = Automaton.build

    def building(automaton: Automaton) -> None:
        built[turns.number] += not automaton.built
        build(automaton)

    monkeypatch.setattr(Automaton, "build", building)

    request = Request("edge", (descriptor(f"k={begin[-1]}x"),))
    (answer,) = await asked(asking, turns, [encode_request(request)])

    assert isinstance(answer, bytes)
    assert sum(built.values()) == 8
    assert max(built.values()) <= 2


async def test_long_values_where_overrides_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the same where an override is in force for a part of the call."""
    asking, turns = Asking(tmp_path, RULES), Turns()
    asking.service.overrides.add([override(LIMIT, "user=alice", 7)])
    searched = Searched(monkeypatch, turns)

    (answer,) = await asked(asking, turns, [body(range(20))])

    assert remaining(answer) == [number % 2 for number in range(20)] + [6]
    assert searched.most <= MOST_WORK
