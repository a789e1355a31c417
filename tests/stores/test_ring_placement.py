"""Where a ring places counters, and which files of shards it takes."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from ratelimit_service.algorithms import DEFAULT
from ratelimit_service.errors import SettingsError
from ratelimit_service.model import CounterSpec
from ratelimit_service.stores.keys import CounterNames, partition_of
from ratelimit_service.stores.redis.address import parse_store
from ratelimit_service.stores.redis.ring import fingerprint, owners
from ratelimit_service.stores.redis.shards_file import read_shards
from tests.stores.cases import MINUTE

THREE = {"a:6379": 1, "b:6379": 1, "c:6379": 1}
NAMES = CounterNames("shop", CounterSpec(DEFAULT, 5, MINUTE))


@cache
def partitions() -> list[int]:
    """Where each of 100,000 keys lies."""
    return [partition_of(NAMES.key([("user", f"user-{number}")])) for number in range(100_000)]


def placed(weights: dict[str, int]) -> list[str]:
    """The shard of each key."""
    names = owners(weights)
    return [names[partition] for partition in partitions()]


def test_equal_shards_have_about_the_same() -> None:
    """The heaviest of three equal shards has at most 1.15 times the keys of the lightest."""
    counts = Counter(placed(THREE)).values()

    assert len(counts) == 3
    assert max(counts) <= 1.15 * min(counts)


def test_weights_count() -> None:
    """A shard of weight 3 has about three times the keys of one of weight 1."""
    counts = Counter(placed({"a": 3, "b": 1}))

    assert 2.7 < counts["a"] / counts["b"] < 3.3


def test_only_what_must_moves() -> None:
    """A fourth shard takes a quarter of the keys, and none moves between the others."""
    before, after = placed(THREE), placed(THREE | {"d:6379": 1})

    moved = [now for then, now in zip(before, after, strict=True) if then != now]
    assert set(moved) == {"d:6379"}
    assert 0.23 < len(moved) / len(before) < 0.27


def test_order_does_not_matter() -> None:
    """Placement and fingerprint depend on names and weights, not on their order."""
    turned = dict(reversed(THREE.items()))

    assert owners(turned) == owners(THREE)
    assert fingerprint(turned) == fingerprint(THREE) != fingerprint(THREE | {"c:6379": 2})


def test_placement_is_for_ever() -> None:
    """The ring of these names is the same in every process and release."""
    assert fingerprint(THREE) == "aeee978ca5d501cb"
    assert (
        "".join(name[0] for name in owners(THREE)[:40])
        == "acbbabbbcbacccbbcaccaccbcbcbcbcaabccbcba"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shards: []", "f.yaml:1: lists no shards: write `shards:`"),
        ("shards:\n- {name: a}", "f.yaml:2: a shard without store"),
        ("shards:\n- {store: redis://h, wieght: 2}", "f.yaml:2: a shard has no field 'wieght'"),
        ("shards:\n- {store: redis://h, weight: 0}", "f.yaml:2: weight '0' is no number from 1"),
        ("shards:\n- store: redis+ring://a,b", "f.yaml:2: a shard is one server"),
        ("shards:\n- store: redis://a\n- store: redis://a", "f.yaml:3: the name 'a:6379' is taken"),
        ("shards:\n- store: rediss://:pw@a?x=1", "f.yaml:2: store URL option 'x' is unknown"),
        ("shards:\n- [", "f.yaml:2: this is no YAML: a value must stand here"),
        ("shards:\n- \x01", "f.yaml is no YAML: the character 0x1 cannot stand in it"),
        ("- a", "f.yaml:1: the file is no mapping: allowed are shards"),
    ],
)
def test_file_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    """A shards file that cannot be used is refused with the line and what is allowed."""
    file = tmp_path / "f.yaml"
    file.write_text(text)

    with pytest.raises(SettingsError) as refused:
        read_shards(file, parse_store)

    assert message in str(refused.value)
    assert "pw" not in str(refused.value)
