"""A store is one file and one line: held by one that is not shipped, as CONTRIBUTING shows it.

The tests that hold the stores that are shipped hold this one, too.
"""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator
from pathlib import Path
from textwrap import indent

import pytest

from ratelimit_service.model import Code
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.runtime.deciding import deciding
from ratelimit_service.runtime.stores import STORES
from ratelimit_service.settings import Settings
from ratelimit_service.stores import Settled, Verdict
from ratelimit_service.stores.memory import MemoryStore
from tests.service.asking import Asking
from tests.stores import test_cases
from tests.stores.cases import BROKEN, charged, hit, ok
from tests.stores.conftest import Time
from tests.stores.sqlite_store.opening import _in_sqlite
from tests.stores.sqlite_store.sqlite import SqliteStore

TOP = Path(__file__).parents[2]
EXAMPLE = TOP / "tests" / "stores" / "sqlite_store"
SHOWN = (TOP / "CONTRIBUTING.md").read_text().partition("## A store\n")[2].partition("\n## ")[0]
A_SECOND = 1_000_000

test_table_of_cases = test_cases.test_table_of_cases
test_damage_is_counted = test_cases.test_damage_is_counted
test_quotas_of_several_limits = test_cases.test_quotas_of_several_limits
test_batch_is_settled_in_order = test_cases.test_batch_is_settled_in_order
test_nothing_to_charge = test_cases.test_nothing_to_charge
test_any_microsecond_of_this_century = test_cases.test_any_microsecond_of_this_century


@pytest.fixture
async def sqlite_store(tmp_path: Path, clock: Time, stats: Stats) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(str(tmp_path / "counters"), 10_000_000, stats, Health(), clock)
    await store.start()
    yield store
    await store.close()


@pytest.fixture
def store(sqlite_store: SqliteStore) -> SqliteStore:
    """Stands for the fixture of all stores, as the name in its list would."""
    return sqlite_store


async def test_random_walk(
    memory: MemoryStore, sqlite_store: SqliteStore, tmp_path: Path, clock: Time
) -> None:
    """Two processes on one file answer random hits in turns as memory answers them alone."""
    chance = random.Random(20261122)
    other = SqliteStore(str(tmp_path / "counters"), 10_000_000, Stats(), Health(), clock)
    walked = 0
    while walked < 600:
        clock.now_us += chance.choice(test_cases.PAUSES_US)
        requests = [test_cases.random_hits(chance) for _ in range(chance.choice([1, 2, 30]))]
        walked += sum(map(len, requests))

        assert await charged(chance.choice([sqlite_store, other]), requests) == await charged(
            memory, requests
        )
    await other.close()


async def test_fault_of_ours(sqlite_store: SqliteStore) -> None:
    """A request that meets a fault of ours counts nothing, and costs no other its answer."""
    broken = hit()._replace(spec=BROKEN)

    found: list[Settled] = []
    sqlite_store.charge([[hit()], [hit(), broken], [hit()]], found.extend)

    assert [one.verdict for one in found] == [Verdict.WITHIN, Verdict.BROKEN, Verdict.WITHIN]
    assert list(found[2].outcomes) == [ok(3)]


async def test_file_that_is_away(tmp_path: Path, clock: Time) -> None:
    """While the file is away the failure policy decides, and health says why; then it counts."""
    health = Health()
    path = tmp_path / "later" / "counters"
    store = SqliteStore(str(path), A_SECOND, Stats(), health, clock)

    await store.start()
    assert await charged(store, [[hit()]]) == [[None]]
    assert f"the counters in {path} are away: " in health.faults["store"]
    path.parent.mkdir()

    assert [one.remaining for (one,) in await charged(store, [[hit()]]) if one] == [4]
    assert not health.faults
    await store.close()


RULES = "domain: edge\ndescriptors:\n- {key: user, rate_limit: {unit: year, requests_per_unit: 2}}"


async def test_chosen_by_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its line in the table `--store` opens it, and what was counted outlives the process."""
    monkeypatch.setitem(STORES, "sqlite://", _in_sqlite)  # the one line
    settings = Settings(store=f"sqlite://{tmp_path}/counters", store_timeout_us=A_SECOND)
    asking = Asking(tmp_path, RULES, settings=settings)
    codes = []
    for _ in range(2):
        async with deciding(
            settings, lambda: asking.rules.snapshot, asking.stats, asking.health
        ) as decided:
            asking.service = decided.service
            codes += [(await asking.ask("user=ann")).code for _ in range(2)]

    assert codes == [Code.OK, Code.OK, Code.OVER_LIMIT, Code.OVER_LIMIT]


def test_shown() -> None:
    """CONTRIBUTING shows what these tests ran: parts of the store, its line and its fixture."""
    store, line, fixture = re.findall(r"```python\n(.*?)```", SHOWN, re.DOTALL)
    opening, registered = line.split("\nSTORES", 1)

    for function in store.split("\n\n\n"):  # there they are methods
        assert indent(function, " " * 4) in (EXAMPLE / "sqlite.py").read_text()
    assert opening.strip() in (EXAMPLE / "opening.py").read_text()
    assert '"sqlite://": _in_sqlite,\n' in registered
    assert fixture in Path(__file__).read_text()
    assert set(re.findall(r'^    "(.*?)":', registered, re.MULTILINE)) == {*STORES, "sqlite://"}
    for path in re.findall(r"^\d+\. `([^`]+)`", SHOWN, re.MULTILINE):
        assert (TOP / path).exists() or path == "ratelimit_service/stores/sqlite.py"
