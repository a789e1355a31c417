"""Loading, merging and reloading: what holds after each change of the files."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ratelimit_service.errors import RulesError
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.lint import lint
from ratelimit_service.rules.load import LoadPolicy, Rules
from ratelimit_service.rules.watch import watch
from tests.waiting import until


def file_of(domain: str, *keys: str, requests: int = 1) -> str:
    limit = f"rate_limit: {{unit: day, requests_per_unit: {requests}}}"
    lines = [f"domain: {domain}", "descriptors:"]
    return "\n".join(lines + [f"  - {{key: {key}, {limit}}}" for key in keys]) + "\n"


BAD = "domain: {}\ndescriptors: [{{kye: a}}]\n"


class Directory:
    """A directory of rule files and what is loaded from it."""

    def __init__(self, path: Path, *, strict: bool = False) -> None:
        self.path = path
        self.stats = Stats()
        self.health = Health()
        self.rules = Rules(
            path, stats=self.stats, health=self.health, policy=LoadPolicy(strict=strict)
        )

    def write(self, **files: str) -> Directory:
        for name, text in files.items():
            (self.path / f"{name}.yaml").write_text(text)
        return self

    def load(self) -> Directory:
        self.rules.load()
        return self

    async def reload(self, **files: str) -> None:
        self.write(**files)
        await self.rules.reload()

    @property
    def domains(self) -> dict[str, list[str]]:
        """The paths of the rules of each domain."""
        snapshot = self.rules.snapshot
        return {name: [rule.path for rule in each.rules] for name, each in snapshot.domains.items()}


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


def test_every_file_counts_but_dot_files(directory: Directory) -> None:
    """All files below the directory are loaded, whatever their name, but those with a dot."""
    (directory.path / "sub" / "deeper").mkdir(parents=True)
    (directory.path / ".hidden").mkdir()
    (directory.path / "sub" / "deeper" / "no-suffix").write_text(file_of("a", "x"))
    (directory.path / ".hidden" / "b.yaml").write_text(file_of("b", "x"))
    (directory.path / ".c.yaml").write_text(file_of("c", "x"))
    (directory.path / "loop").symlink_to(directory.path)

    directory.load()

    assert directory.domains == {"a": ["x"]}


def test_single_file(tmp_path: Path) -> None:
    """The path of the rules may be one file."""
    path = tmp_path / "rules.yaml"
    path.write_text(file_of("a", "x"))

    assert Directory(path).load().domains == {"a": ["x"]}


def test_files_of_one_domain_are_merged_in_path_order(directory: Directory) -> None:
    """Several files add descriptors to the same domain, in the order of their paths."""
    directory.write(b=file_of("edge", "second"), a=file_of("edge", "first")).load()

    assert directory.domains == {"edge": ["first", "second"]}


@pytest.mark.parametrize("strict", [False, True])
def test_nothing_to_load(tmp_path: Path, strict: bool) -> None:
    """A path that does not exist, and a directory without files, cannot be served."""
    with pytest.raises(RulesError, match="no rule file"):
        Directory(tmp_path, strict=strict).load()
    with pytest.raises(RulesError, match="no such file"):
        Directory(tmp_path / "nowhere", strict=strict).load()


def test_bad_file_at_start(directory: Directory) -> None:
    """A file that is bad from the start leaves its domain unserved, and no other."""
    directory.write(a=BAD.format("bad"), b=file_of("bad", "x"), c=file_of("good", "x")).load()

    assert directory.domains == {"good": ["x"]}
    assert directory.rules.snapshot.unserved == {"bad"}
    assert "a.yaml:2:" in directory.health.faults["rules"]
    assert directory.stats.rule_loads == {"error": 1}


async def test_file_that_turns_bad(directory: Directory) -> None:
    """A file that turns bad keeps its last good version; others go on changing."""
    directory.write(a=file_of("one", "x"), b=file_of("two", "x")).load()

    await directory.reload(a=BAD.format("one"), b=file_of("two", "y"))

    assert directory.domains == {"one": ["x"], "two": ["y"]}
    assert "rules" in directory.health.faults
    await directory.reload(a=file_of("one", "z"))
    assert directory.domains == {"one": ["z"], "two": ["y"]}
    assert directory.health.faults == {}
    assert directory.stats.rule_loads == {"success": 2, "error": 1}


async def test_new_bad_file_of_a_served_domain(directory: Directory) -> None:
    """A new file that is bad takes nothing from the domain that others serve."""
    directory.write(a=file_of("edge", "x")).load()

    await directory.reload(b=BAD.format("edge"))

    assert directory.domains == {"edge": ["x"]}
    assert directory.rules.snapshot.unserved == frozenset()


async def test_files_that_contradict(directory: Directory) -> None:
    """Where two files declare the same, the domain keeps its last good whole."""
    directory.write(a=file_of("edge", "x"), b=file_of("edge", "y")).load()

    await directory.reload(a=file_of("edge", "x", "new"), b=file_of("edge", "x"))

    assert directory.domains == {"edge": ["x", "y"]}
    assert "[duplicate]" in directory.health.faults["rules"]
    await directory.reload(b=file_of("edge", "z"))
    assert directory.domains == {"edge": ["x", "new", "z"]}


async def test_what_places_counters_holds_for_a_domain(directory: Directory) -> None:
    """One file of a domain says what places its counters; two must not say different things."""
    directory.write(a="shard_by: [x]\n" + file_of("edge", "x"), b=file_of("edge", "y")).load()
    assert directory.rules.snapshot.domains["edge"].shard_by == frozenset("x")

    await directory.reload(b="shard_by: domain\n" + file_of("edge", "y"))

    assert directory.rules.snapshot.domains["edge"].shard_by == frozenset("x")
    assert "[shard_by]" in directory.health.faults["rules"]
    await directory.reload(a=file_of("edge", "x"))
    assert directory.rules.snapshot.domains["edge"].shard_by == frozenset()


def test_files_that_contradict_at_start(directory: Directory) -> None:
    """A domain whose files contradict from the start is not served."""
    directory.write(a=file_of("edge", "x"), b=file_of("edge", "x")).load()

    assert directory.domains == {}
    assert directory.rules.snapshot.unserved == {"edge"}


async def test_file_that_goes(directory: Directory) -> None:
    """A file that is removed takes its rules along."""
    directory.write(a=file_of("one", "x"), b=file_of("two", "x")).load()

    (directory.path / "b.yaml").unlink()
    await directory.rules.reload()

    assert directory.domains == {"one": ["x"]}


async def test_all_files_gone(directory: Directory) -> None:
    """When everything vanishes the last good rules stay, and health says so."""
    directory.write(a=file_of("one", "x")).load()

    (directory.path / "a.yaml").unlink()
    await directory.rules.reload()

    assert directory.domains == {"one": ["x"]}
    assert "the last good rules stay" in directory.health.faults["rules"]
    await directory.reload(a=file_of("one", "x"))
    assert directory.health.faults == {}


async def test_nothing_changed(directory: Directory) -> None:
    """A reload without a change makes no new snapshot and counts no load."""
    directory.write(a=file_of("one", "x")).load()
    before = directory.rules.snapshot

    await directory.rules.reload()

    assert directory.rules.snapshot is before
    assert directory.stats.rule_loads == {"success": 1}


async def test_tallies_outlive_reloads(directory: Directory) -> None:
    """A rule that is still there goes on counting, also with another number."""
    directory.write(a=file_of("edge", "x", "y")).load()
    for rule in directory.rules.snapshot.domains["edge"].rules:
        rule.tallies.of().hits += 7
    directory.rules.snapshot.domains["edge"].overrides.of().hits += 3

    await directory.reload(a=file_of("edge", "y", "z", requests=2))

    domain = directory.rules.snapshot.domains["edge"]
    assert {rule.path: rule.tallies.of().hits for rule in domain.rules} == {"y": 7, "z": 0}
    assert domain.overrides.of().hits == 3


def test_strict(directory: Directory) -> None:
    """With --strict-rules any problem is an error that lists them all."""
    directory.write(a="domain: edge\nunit: day\n", b=BAD.format("bad"))
    strict = Directory(directory.path, strict=True)

    with pytest.raises(RulesError) as refused:
        strict.load()

    assert "[misplaced_key]" in str(refused.value)
    assert "[unknown_key]" in str(refused.value)


def test_tolerated_problem_is_served_with_a_warning(
    directory: Directory, caplog: pytest.LogCaptureFixture
) -> None:
    """What the reference accepts is served, and warned of."""
    directory.write(a="domain: edge\nunit: day\n").load()

    assert directory.domains == {"edge": []}
    assert directory.health.faults == {}
    assert [(record.levelname, "misplaced_key" in record.message) for record in caplog.records] == [
        ("WARNING", True)
    ]


def test_lint_merges_the_files_of_a_path(directory: Directory) -> None:
    """Files of one path are checked together, as they would be served."""
    directory.write(a=file_of("edge", "x"), b=file_of("edge", "x"))

    assert [problem.kind for problem in lint([directory.path]).problems] == ["duplicate"]
    assert lint([directory.path / "a.yaml", directory.path / "b.yaml"]).problems == ()


async def until_domains(directory: Directory, domains: dict[str, list[str]]) -> None:
    await until(lambda: directory.domains == domains)


async def test_watch(directory: Directory) -> None:
    """Edits, replacements and additions in sub-directories are seen; of removals health says so."""
    directory.write(a=file_of("one", "x")).load()
    watching = asyncio.create_task(watch(directory.rules))
    await asyncio.sleep(0)

    directory.write(a=file_of("one", "edited"))
    await until_domains(directory, {"one": ["edited"]})
    beside = directory.path / ".a.yaml.swp"
    beside.write_text(file_of("one", "replaced"))
    beside.rename(directory.path / "a.yaml")
    await until_domains(directory, {"one": ["replaced"]})
    (directory.path / "sub").mkdir()
    (directory.path / "sub" / "b").write_text(file_of("two", "x"))
    await until_domains(directory, {"one": ["replaced"], "two": ["x"]})
    (directory.path / "a.yaml").unlink()
    await until(lambda: "rules" in directory.health.faults)

    assert "a.yaml: this file has vanished" in directory.health.faults["rules"]
    assert directory.domains == {"one": ["replaced"], "two": ["x"]}
    assert not watching.done()
    watching.cancel()


async def test_watch_of_a_config_map(tmp_path: Path) -> None:
    """Kubernetes swaps a ConfigMap by turning the link `..data` to another directory."""

    def publish(version: str, text: str) -> None:
        (tmp_path / f"..{version}").mkdir()
        (tmp_path / f"..{version}" / "edge.yaml").write_text(text)
        (tmp_path / "..data_tmp").symlink_to(f"..{version}")
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")

    publish("v1", file_of("edge", "one"))
    (tmp_path / "edge.yaml").symlink_to("..data/edge.yaml")
    directory = Directory(tmp_path).load()
    assert directory.domains == {"edge": ["one"]}
    watching = asyncio.create_task(watch(directory.rules))
    await asyncio.sleep(0)

    publish("v2", file_of("edge", "two"))

    await until_domains(directory, {"edge": ["two"]})
    watching.cancel()


async def test_watch_of_a_single_file(tmp_path: Path) -> None:
    """A single file that is replaced is seen as well."""
    path = tmp_path / "rules.yaml"
    path.write_text(file_of("edge", "one"))
    directory = Directory(path).load()
    watching = asyncio.create_task(watch(directory.rules))
    await asyncio.sleep(0)

    (tmp_path / "new").write_text(file_of("edge", "two"))
    (tmp_path / "new").replace(path)

    await until_domains(directory, {"edge": ["two"]})
    watching.cancel()
