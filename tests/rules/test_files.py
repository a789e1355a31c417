"""What lies in a rules directory that is no rule file, cannot be read, or is gone."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from ratelimit_service.errors import RulesError
from ratelimit_service.files.whole_file import read_whole
from ratelimit_service.rules import files, from_files, watch
from ratelimit_service.rules.lint import lint
from tests.rules.test_load import BAD, Directory, file_of
from tests.waiting import PATIENCE_SECONDS, until


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(3 << 30)


def link_to_nothing(path: Path) -> None:
    path.symlink_to("nowhere")


def link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


ODD = [
    (pipe, "it is no regular file but a pipe"),
    (device, "it is no regular file but a device"),
    (huge, "it has more than 16 MiB"),
    (link_to_nothing, "No such file or directory"),
    (link_to_itself, "Too many levels of symbolic links"),
]
each_special_file = pytest.mark.parametrize(
    ("make", "why"), ODD, ids=lambda each: getattr(each, "__name__", "")
)


@each_special_file
def test_what_is_no_rule_file_at_start(directory: Directory, make: object, why: str) -> None:
    """It is an error that names it, at the start and in lint, and nobody waits for it."""
    assert callable(make)
    make(directory.write(a=file_of("one", "x")).path / "odd")

    for read in (directory.load, lambda: lint([directory.path])):
        with pytest.raises(RulesError, match=f"odd cannot be read: {why}"):
            read()


@each_special_file
async def test_file_that_turns_into_something_else(
    directory: Directory, make: object, why: str
) -> None:
    """Its last good version stays, other files go on changing, and health says why."""
    directory.write(a=file_of("one", "x"), b=file_of("two", "x")).load()
    assert callable(make)
    (directory.path / "a.yaml").unlink()
    make(directory.path / "a.yaml")

    await directory.reload(b=file_of("two", "y"))

    assert directory.domains == {"one": ["x"], "two": ["y"]}
    assert f"a.yaml: this cannot be read: {why}" in directory.health.faults["rules"]
    assert directory.stats.rule_loads["error"] > 0
    (directory.path / "a.yaml").unlink()
    await directory.reload(a=file_of("one", "z"))
    assert directory.domains == {"one": ["z"], "two": ["y"]}
    assert directory.health.faults == {}


SWAPPED = [pipe, device, Path.mkdir]


@pytest.mark.parametrize("make", SWAPPED, ids=lambda each: each.__name__)
def test_file_that_is_swapped_while_it_is_opened(
    directory: Directory, make: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was a rule file a moment ago, and is something else once open, is not read either."""
    path = directory.write(a=file_of("one", "x")).path / "a.yaml"
    really_open = os.open
    opened: list[int] = []

    def swapping(name: str, flags: int) -> int:
        Path(name).unlink()
        make(Path(name))
        opened.append(really_open(name, flags))
        return opened[-1]

    monkeypatch.setattr(os, "open", swapping)

    content = files.read_rule_files(path)

    (descriptor,) = opened
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    assert content.files == {}
    assert content.unread[str(path)].startswith("it is no regular file but a ")


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A directory that will not be read; the system would let a superuser."""
    path = tmp_path / "closed"
    scandir = os.scandir

    def closing(of: object = ".") -> object:
        if of == str(path) and not (path / ".open").exists():
            raise PermissionError(errno.EACCES, "Permission denied", of)
        return scandir(of)  # type: ignore[call-overload]

    path.mkdir()
    (path / ".open").touch()
    monkeypatch.setattr(os, "scandir", closing)
    return path


async def test_directory_that_closes(directory: Directory, closed: Path) -> None:
    """The files of a directory that cannot be read keep their rules, also after SIGHUP."""
    (closed / "b.yaml").write_text(file_of("two", "x"))
    directory.write(a=file_of("one", "x")).load()
    (closed / ".open").unlink()

    for _ in range(2):
        await directory.reload(a=file_of("one", "y"))

    assert directory.domains == {"one": ["y"], "two": ["x"]}
    assert "closed: this cannot be read: Permission denied" in directory.health.faults["rules"]
    with pytest.raises(RulesError, match="closed cannot be read: Permission denied"):
        Directory(directory.path).load()
    (closed / ".open").touch()
    await directory.rules.reload()
    assert directory.health.faults == {}


async def test_file_that_vanishes(directory: Directory) -> None:
    """Its rules stay and health says so, until it is back or somebody says that it is meant."""
    directory.write(a=file_of("one", "x"), b=file_of("two", "x")).load()
    (directory.path / "a.yaml").unlink()

    for _ in range(2):
        await directory.rules.reload(keep_vanished=True)
        assert directory.domains == {"one": ["x"], "two": ["x"]}
        assert "a.yaml: this file has vanished" in directory.health.faults["rules"]
    assert directory.stats.rule_loads["error"] == 1
    directory.write(a=file_of("one", "y"))
    await directory.rules.reload(keep_vanished=True)
    assert directory.domains == {"one": ["y"], "two": ["x"]}
    assert directory.health.faults == {}

    (directory.path / "a.yaml").unlink()
    await directory.rules.reload()
    assert directory.domains == {"two": ["x"]}
    assert directory.health.faults == {}


async def test_file_that_is_renamed(directory: Directory) -> None:
    """Where other files now say what the vanished one said, they hold, and nothing is wrong."""
    directory.write(a=file_of("one", "x", "y")).load()
    (directory.path / "a.yaml").rename(directory.path / "b.yaml")
    directory.write(b=file_of("one", "y", "z"))

    await directory.rules.reload(keep_vanished=True)

    assert directory.domains == {"one": ["y", "z"]}
    assert directory.health.faults == {}


async def test_one_file_of_a_domain_vanishes(directory: Directory) -> None:
    """A part of a domain's rules does not vanish either."""
    directory.write(a=file_of("one", "x"), b=file_of("one", "y")).load()
    (directory.path / "a.yaml").unlink()
    directory.write(b=file_of("one", "z"))

    await directory.rules.reload(keep_vanished=True)

    assert directory.domains == {"one": ["x", "z"]}
    assert "vanished" in directory.health.faults["rules"]


async def vanish(directory: Directory, name: str) -> None:
    (directory.path / f"{name}.yaml").unlink()
    await directory.rules.reload(keep_vanished=True)


async def test_removing_a_copy_mends_a_domain_that_was_never_served(directory: Directory) -> None:
    """A file of which nothing was ever in force has nothing to keep: the others hold at once."""
    directory.write(a=file_of("one", "x"), copy=file_of("one", "x")).load()
    assert directory.domains == {}

    await vanish(directory, "copy")

    assert directory.domains == {"one": ["x"]}
    assert directory.health.faults == {}


async def test_bad_file_that_comes_and_goes(directory: Directory) -> None:
    """A new file that was never good leaves nothing behind, and neither does one of no domain."""
    directory.write(a=file_of("one", "x")).load()

    await directory.reload(b=BAD.format("two"), c="junk: [")
    assert directory.rules.snapshot.unserved == {"two"}
    await vanish(directory, "b")
    assert "c.yaml" in directory.health.faults["rules"]
    await vanish(directory, "c")

    assert directory.domains == {"one": ["x"]}
    assert directory.rules.snapshot.unserved == frozenset()
    assert directory.health.faults == {}


async def test_changes_beside_a_copy_hold_once_it_is_gone(directory: Directory) -> None:
    """What changed while a copy contradicted its domain is taken over when the copy is removed."""
    directory.write(a=file_of("one", "x"), b=file_of("one", "y")).load()
    await directory.reload(copy=file_of("one", "x"))
    await directory.reload(a=file_of("one", "x", "new"))
    assert directory.domains == {"one": ["x", "y"]}

    await vanish(directory, "copy")

    assert directory.domains == {"one": ["x", "new", "y"]}
    assert directory.health.faults == {}


async def test_file_that_vanishes_after_it_contradicted(directory: Directory) -> None:
    """What was in force of it stays, and not what it said when it was removed."""
    directory.write(a=file_of("one", "x"), b=file_of("one", "y")).load()
    await directory.reload(b=file_of("one", "x"))

    await vanish(directory, "b")

    assert directory.domains == {"one": ["x", "y"]}
    assert "b.yaml: this file has vanished" in directory.health.faults["rules"]


async def test_file_that_vanishes_from_a_domain_that_contradicts_itself(
    directory: Directory,
) -> None:
    """Its rules stay as well when the contradiction between the others is over."""
    directory.write(a=file_of("one", "x"), b=file_of("one", "y")).load()
    await directory.reload(copy=file_of("one", "x"))

    await vanish(directory, "b")
    assert directory.domains == {"one": ["x", "y"]}
    assert "duplicate" in {problem.kind for problem in directory.rules.problems()}
    await vanish(directory, "copy")

    assert directory.domains == {"one": ["x", "y"]}
    assert "b.yaml: this file has vanished" in directory.health.faults["rules"]


async def test_file_that_vanishes_after_it_moved_into_a_contradiction(
    directory: Directory,
) -> None:
    """Nothing of a domain that it had left comes back."""
    directory.write(a=file_of("one", "x"), b=file_of("two", "x")).load()
    await directory.reload(b=file_of("one", "x"))
    assert directory.domains == {"one": ["x"]}

    await vanish(directory, "b")

    assert directory.domains == {"one": ["x"]}
    assert directory.health.faults == {}


def test_a_copy_is_told_to_be_removed(directory: Directory) -> None:
    """Who has two files that say the same reads which files count; within a file nobody does."""
    directory.write(a=file_of("one", "x"), b=file_of("one", "x"), c=file_of("two", "x", "x"))

    across, within = (each.message for each in lint([directory.path]).problems)

    assert across.endswith(
        "a.yaml:3:5: merge the two into one file, or remove one: every file counts unless its name "
        "begins with a dot"
    )
    assert within.endswith("merge the two")


async def test_reading_that_takes_for_ever(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that does not answer degrades health; the look after its return goes on."""
    directory.write(a=file_of("one", "x")).load()
    pipes = os.pipe()

    def waiting(name: str) -> bytes:
        os.read(pipes[0], 1)
        return read_whole(name)

    monkeypatch.setattr(files, "read_whole", waiting)
    monkeypatch.setattr("ratelimit_service.rules.load._READ_SECONDS", 0.01)
    for _ in range(2):
        await directory.reload(a=file_of("one", "y"))
        assert "takes more than" in directory.health.faults["rules"]

    os.close(pipes[1])
    async with asyncio.timeout(PATIENCE_SECONDS):
        while directory.health.faults:
            await directory.rules.reload()
    assert directory.domains == {"one": ["y"]}
    os.close(pipes[0])


async def test_reading_that_took_too_long(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a read brings that took too long is not used: files may have changed meanwhile."""
    directory.write(a=file_of("one", "x")).load()
    pipes = os.pipe()

    def slow(name: str) -> bytes:
        data = read_whole(name)
        os.read(pipes[0], 1)
        return data

    monkeypatch.setattr(files, "read_whole", slow)
    monkeypatch.setattr("ratelimit_service.rules.load._READ_SECONDS", 0.01)
    while not directory.health.faults:
        await directory.reload(a=file_of("one", "y"))
    directory.write(a=file_of("one", "z"))
    os.close(pipes[1])

    async with asyncio.timeout(PATIENCE_SECONDS):
        while directory.health.faults:
            await directory.rules.reload()

    assert directory.domains == {"one": ["z"]}
    os.close(pipes[0])


async def test_watcher_that_dies(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Health says so, changes are looked for all the same, and watching begins anew."""
    deaths = ["no space left for\nwatches", "", None]

    async def dying(*_: object, **__: object) -> AsyncIterator[set[object]]:
        death = deaths.pop(0) if deaths else None
        if death is not None:
            raise OSError(death)
        yield set()
        await asyncio.Event().wait()

    monkeypatch.setattr(from_files, "awatch", dying)
    monkeypatch.setattr(from_files, "_LOOK_MS", 1)
    monkeypatch.setattr(from_files, "_RETRY_SECONDS", 0.001)
    faults: list[str] = []
    directory.health.listen(lambda: faults.extend(directory.health.faults.values()))
    directory.write(a=file_of("one", "x")).load()
    directory.write(a=file_of("one", "y"))
    watching = asyncio.create_task(watch.watch(directory.rules))

    await until(
        lambda: directory.domains == {"one": ["y"]} and not deaths and not directory.health.faults
    )

    assert any("does not tell of changed rules" in fault for fault in faults)
    assert all("\n" not in fault for fault in faults)
    assert not watching.done()
    watching.cancel()


def test_texts_and_tests_are_no_rules(directory: Directory) -> None:
    """Tests, texts and editors' copies beside rules are not read; lint names them."""
    for name in ("one.test.yaml", "README.md", "one.yaml~"):
        (directory.path / name).write_text("domain: [")
    directory.write(a=file_of("one", "x")).load()

    assert directory.domains == {"one": ["x"]}
    assert sorted(Path(each.source.file).name for each in lint([directory.path]).problems) == [
        "README.md",
        "one.test.yaml",
        "one.yaml~",
    ]
    assert all(each.hint for each in lint([directory.path]).problems)


def test_odd_names(directory: Directory) -> None:
    """A file's name reaches no log and no terminal raw."""
    name = b"a\n\x1b[31m\xff\xe2\x80\xae.yaml"
    Path(os.fsdecode(os.fsencode(directory.path) + b"/" + name)).write_text("domain: [")

    (problem,) = lint([directory.path]).problems
    directory.write(b=file_of("one", "x")).load()

    assert "a\\n\\x1b[31m\\udcff\\u202e.yaml" in str(problem)
    assert str(problem).isprintable()
    assert directory.health.faults["rules"].isprintable()
