"""Large tables in parts."""

from __future__ import annotations

from ratelimit_service.containers.spread import LARGE, SpreadTable, Table, spread


def test_grows_in_parts() -> None:
    """A table that grows large is spread, and has what it had."""
    table: Table[int, str] = {}
    for number in range(LARGE * 2):
        table[number] = str(number)
        table = spread(table)
    assert isinstance(table, SpreadTable)
    assert sorted(table) == list(range(LARGE * 2))
    assert all(table.get(number) == str(number) for number in range(LARGE * 2))
    assert max(map(len, table.parts)) <= LARGE // 10


def test_low_bits_of_hashes_differ_in_a_part() -> None:
    """A dict places keys by these bits: if all of a part had the same, each look-up was a walk."""
    table = SpreadTable((number, None) for number in range(100_000))
    for part in table.parts:
        assert len({hash(number) & 255 for number in part}) == 256
