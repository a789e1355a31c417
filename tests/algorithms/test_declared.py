"""Nobody forgets a part of an algorithm: what each declared one must bring along.

`make lint` runs this, since it takes neither a server nor time.
"""

from __future__ import annotations

import re
from importlib.resources import files
from operator import ne
from pathlib import Path

import pytest

from ratelimit_service.algorithms import ALGORITHMS, PARAMETERS
from ratelimit_service.model import Algorithm, Anchor, CounterForm, CounterSpec, Limit, Takes
from ratelimit_service.rules.language import IN_LIMIT
from tests.algorithms import ways

PACKAGE = Path(__file__).parents[2] / "ratelimit_service"
RULES = Path(__file__).parents[2] / "docs" / "rules.md"

each = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=str)


@each
def test_lua(algorithm: Algorithm) -> None:
    """Every algorithm has its rendering for Redis."""
    assert (files("ratelimit_service.algorithms") / "lua" / f"{algorithm.name}.lua").is_file()


def test_letters() -> None:
    """No two algorithms begin their keys with the same letter; `h` is fixed_window's second one."""
    letters = [algorithm.letter for algorithm in ALGORITHMS.values()]

    assert len({*letters, "h"}) == len(letters) + 1
    assert all(len(letter) == 1 and letter.isalpha() for letter in letters)


def test_nobody_asks_for_a_name() -> None:
    """What others ask about an algorithm they ask its object: no name stands in their code."""
    names = re.compile(rf"""["']({"|".join(ALGORITHMS)})["']""")
    own = [PACKAGE / "algorithms", PACKAGE / "model" / "limit.py"]

    assert [
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if names.search(path.read_text()) and not any(path.is_relative_to(each) for each in own)
    ] == []


@each
def test_tables(algorithm: Algorithm) -> None:
    """Every algorithm has ways to count, limits for the walk, a table of cases, and costs."""
    (module,) = [
        module for module in ways.MODULES if module.__name__.endswith(f".{algorithm.name}")
    ]

    assert all([module.WAYS, module.WALKED, module.CASES, module.COSTS])
    limits: list[Limit] = [*module.WAYS, *module.WALKED]
    assert {limit.algorithm for limit in limits} == {algorithm.name}


@each
def test_documents(algorithm: Algorithm) -> None:
    """docs/rules.md has each algorithm in its table, a section on it, and its keys of rules."""
    text = RULES.read_text()

    assert f"\n| `{algorithm.name}` |" in text
    assert f"\n### {algorithm.name}\n" in text
    for parameter in algorithm.parameters:
        default = parameter.default if parameter.default == "none" else f"`{parameter.default}`"
        assert f"\n| `{parameter.name}` | {default} | {parameter.help} |\n" in text


@each
def test_parameters(algorithm: Algorithm) -> None:
    """A key means the same to all algorithms that have it, and is kept where it can be."""
    for parameter in algorithm.parameters:
        assert PARAMETERS[parameter.name] == parameter
        assert [each.name for each in IN_LIMIT].count(parameter.name) == 1
        assert parameter.field in Limit._fields or not parameter.field
        assert parameter.words or parameter.takes is not Takes.WORD
        assert parameter.instead or parameter.beside


def test_a_spec_may_gain_fields() -> None:
    """A spec of nothing but what every algorithm needs has defaults for all else."""
    for algorithm in ALGORITHMS.values():
        spec = CounterSpec(algorithm, 5, 60_000_000)

        assert spec.with_numbers(5, 0) == spec
        assert spec != spec.with_numbers(4, 0)
        assert hash(spec) == hash(spec.with_numbers(5, 0))


def test_a_spec_with_other_numbers_is_the_same_else() -> None:
    """Other numbers of hits change nothing else, and leave none reserved."""
    numbered = (
        ALGORITHMS["leaky_bucket"],
        5,
        60_000_000,
        3,
    )
    form = CounterForm(1, Anchor.FIRST_HIT, 2, True, True, (7,), True, True)
    spec, plain = CounterSpec(*numbered, 9, form), CounterSpec(ALGORITHMS["fixed_window"], 0, 1)

    assert all(map(ne, spec._fields(), plain._fields()))
    assert all(map(ne, form, plain.form))
    assert spec.with_numbers(5, 3)._fields() == CounterSpec(*numbered, form=form)._fields()
