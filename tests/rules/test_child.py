"""Rules built in another process are the same rules, taken over and let go of in slices."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from ratelimit_service.errors import RulesError
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats, Tallies
from ratelimit_service.rules.build import MAX_REPORTED, Version, build
from ratelimit_service.rules.child import Builder
from ratelimit_service.rules.dump import dump
from ratelimit_service.rules.from_files import FromFiles
from ratelimit_service.rules.load import Rules
from ratelimit_service.rules.source import LastGoodFiles, SourceContent
from ratelimit_service.rules.tree import Rule, Snapshot, walk
from tests.servers.process import running
from tests.waiting import PATIENCE_SECONDS

LIMIT = "{unit: day, requests_per_unit: 5}"


def wide(count: int, value: str = "v") -> str:
    """A domain of many rules, most of them two levels below one node."""
    lines = ["domain: wide", "descriptors:"]
    lines += ["  - key: top", "    descriptors:", "      - key: middle", "        descriptors:"]
    for number in range(count):
        pattern = "*" if number % 5 == 0 else ""
        lines.append(
            f"          - {{key: k, value: {value}{number}{pattern}, rate_limit: {LIMIT}}}"
        )
    lines += [
        f"  - {{key: flat, value: f{number}, rate_limit: {LIMIT}}}" for number in range(count)
    ]
    return "\n".join(lines)


VERSIONS = [
    Version("wide.yaml", wide(300).encode(), None),
    Version(
        "small.yaml",
        b"domain: small\ndescriptors:\n"
        b"  - {key: a, shadow_mode: true, value_to_metric: true, metadata: {x: [1, {y: z}]},"
        b" on_limit: enqueue,"
        b" rate_limit: {unit: week, unit_multiplier: 2, requests_per_unit: 5, name: n}}\n"
        b"  - {key: b, value: 'x*', share_threshold: true, rate_limit: {unlimited: true,"
        b" replaces: [{name: n}, {name: nobody}]}}",
        None,
    ),
    Version("bad.yaml", b"domain: bad\ndescriptors: [{}]", None),
    Version("worse.yaml", b"domain: [", None),
    Version("mended.yaml", b"domain: old\ndescriptors: 7", wide(2).replace("wide", "old").encode()),
    Version("one.yaml", b"domain: two\ndescriptors: [{key: a}]", None),
    Version("two.yaml", b"domain: two\ndescriptors: [{key: a}]", None),
]


@pytest.mark.parametrize("strict", [True, False])
def test_problems_are_bounded(strict: bool) -> None:
    """Of very many problems of a file the first are told, and how many more there are."""
    many = MAX_REPORTED * 3
    tolerated = "".join(f"- {{key: a{number}, shadow_mode: true}}\n" for number in range(many))
    bad = "".join(f"- {{value: v{number}}}\n" for number in range(7))
    text = f"domain: d\ndescriptors:\n{tolerated}{bad}".encode()

    built = build([Version("r.yaml", text, None)], Tallies, strict=strict)

    (report,) = built.files
    assert report.bad
    assert len(report.problems) == MAX_REPORTED + 1
    assert str(report.problems[-1]) == (
        f"r.yaml: and {many + 7 - MAX_REPORTED} more problems: `ratelimit lint` shows all [more]"
    )
    kinds = [problem.kind for problem in report.problems]
    assert strict or kinds[:7] == ["no_key"] * 7


async def test_the_same_in_another_process() -> None:
    """What the child builds is what this process would have built, with this process's tallies."""
    tallies: dict[tuple[str, str], Tallies] = {}

    def tallies_of(domain: str, path: str) -> Tallies:
        return tallies.setdefault((domain, path), Tallies(domain, path))

    expected = build(VERSIONS, tallies_of, strict=False)
    built = await Builder().build(VERSIONS, tallies_of, strict=False)

    assert built._replace(domains={}) == expected._replace(domains={})
    assert list(built.domains) == list(expected.domains)
    shown = [list(dump(Snapshot(1, each.domains))) for each in (built, expected)]
    assert shown[0] == shown[1]
    for name, domain in built.domains.items():
        other = expected.domains[name]
        assert domain.overrides is other.overrides
        for node, twin in zip(walk(domain.root.nodes), walk(other.root.nodes), strict=True):
            assert (node.takes, node.matcher) == (twin.takes, twin.matcher)
            assert node.share_threshold == twin.share_threshold
            assert node.value_to_metric == twin.value_to_metric
            assert (node.rule is None) == (twin.rule is None)
            if node.rule and twin.rule:
                assert node.rule.tallies is twin.rule.tallies
                assert node.rule.metadata == twin.rule.metadata


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("/bin/false", "failed: it was killed"),
        ("/bin/ls", "failed: Try '/bin/ls --help'"),
        ("/bin/nothing", "cannot be started: No such file or directory"),
    ],
)
async def test_child_that_fails(
    monkeypatch: pytest.MonkeyPatch, program: str, message: str
) -> None:
    """A process that cannot be used is an error with what it said last."""
    monkeypatch.setattr(sys, "executable", program)

    with pytest.raises(RulesError, match=f"the process that reads the rules {message}"):
        await Builder().build(VERSIONS, Tallies, strict=False)


async def test_failed_reload_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the rules cannot be read for reasons of ours the old stay, and the next look helps."""
    (tmp_path / "a.yaml").write_text(wide(1))
    health = Health()
    rules = Rules(tmp_path, stats=Stats(), health=health)
    rules.load()
    (tmp_path / "a.yaml").write_text(wide(2))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")
        await rules.reload()

    assert len(list(rules.snapshot.domains["wide"].rules)) == 2
    assert "the last good rules stay" in health.faults["rules"]
    await rules.reload()
    assert len(list(rules.snapshot.domains["wide"].rules)) == 4
    assert health.faults == {}


async def test_old_trees_are_freed(tmp_path: Path) -> None:
    """After a reload nothing is left of the tree before, and no slice of the work is large."""
    (tmp_path / "a.yaml").write_text(wide(300))
    rules = Rules(tmp_path, stats=Stats(), health=Health())
    rules.load()
    before = living_rules()
    (tmp_path / "a.yaml").write_text(wide(300, value="w"))
    pauses = 0

    async def others() -> None:
        nonlocal pauses
        while True:
            pauses += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    await rules.reload()
    beside.cancel()

    assert living_rules() == before
    assert pauses > 600 / 60
    tallies = [each for each in gc.get_objects() if isinstance(each, Tallies)]
    paths = {each.path for each in tallies if each.domain == "wide"}
    assert len(paths) == 602  # two of them are the domain's: overrides, and what no rule takes
    assert "top > middle > k=w1" in paths


def living_rules() -> int:
    gc.collect()
    return sum(isinstance(each, Rule) for each in gc.get_objects())


async def test_end_while_rules_are_built(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The process that builds is ended and gone at once, and nobody says that it has failed."""
    (tmp_path / "a.yaml").write_text(wide(1))
    health = Health()
    rules = Rules(tmp_path, stats=Stats(), health=health)
    rules.load()
    (tmp_path / "a.yaml").write_text(wide(2))
    reload = asyncio.create_task(rules.reload())
    async with asyncio.timeout(PATIENCE_SECONDS):
        while rules._builder._child is None:  # the moment at which it is to end
            await asyncio.sleep(0)
    (builder,) = running("ratelimit_service.rules.child")
    os.kill(builder, signal.SIGSTOP)

    rules.end()

    with pytest.raises(ProcessLookupError):
        os.kill(builder, 0)
    await asyncio.wait_for(reload, PATIENCE_SECONDS)
    assert not health.faults
    assert not caplog.records


class SlowDisk(FromFiles):
    """Files of which the first look takes long."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.has_read, self.goes_on = threading.Event(), threading.Event()

    def first(self, former: LastGoodFiles | None) -> SourceContent | None:
        content = super().first(former)
        self.has_read.set()
        self.goes_on.wait()
        return content


async def test_reload_while_the_first_rules_load(tmp_path: Path) -> None:
    """What was read later holds in the end, though the first rules took longer than a reload."""
    file = tmp_path / "a.yaml"
    file.write_text(wide(2))
    rule_counts: list[int] = []

    async def reloaded() -> None:
        rule_counts.append(len(list(rules.snapshot.domains["wide"].rules)))

    source = SlowDisk(tmp_path)
    rules = Rules(source, stats=Stats(), health=Health(), reloaded=reloaded)
    loading = asyncio.create_task(rules.load_aside())
    await asyncio.to_thread(source.has_read.wait)
    file.write_text(wide(1))
    reload = asyncio.create_task(rules.reload())
    for _ in range(10):
        await asyncio.sleep(0)
    source.goes_on.set()
    await asyncio.gather(loading, reload)

    assert rule_counts == [4, 2]
    assert len(list(rules.snapshot.domains["wide"].rules)) == 2
