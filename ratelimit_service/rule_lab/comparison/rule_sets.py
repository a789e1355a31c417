"""The two sets of rules that are compared: files, directories, or what git has of them.

A revision is written as git does, `main:rules` or `HEAD~1:rules/api.yaml`. One without a path
takes the path of the other side, else `rules`.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from posixpath import normpath

from ratelimit_service.errors import RateLimitError, RulesError
from ratelimit_service.observability.stats import Tallies
from ratelimit_service.rules.build import Version, build
from ratelimit_service.rules.files import NoRulesError, read_rule_files
from ratelimit_service.rules.tree import Domain
from ratelimit_service.text.display import printable

__all__ = ["RuleSet", "RuleSetError", "read_rule_sets"]

_DEFAULT_PATH = "rules"


class RuleSetError(RateLimitError):
    """Rules that have problems; each line of the text is one."""


@dataclass(frozen=True, slots=True)
class RuleSet:
    """The rules of one side, by domain, and what it is called."""

    name: str
    domains: Mapping[str, Domain]


def read_rule_sets(old: str, new: str) -> tuple[RuleSet, RuleSet]:
    """Both sides. Raises SideError if rules have problems, RulesError if there are none.

    A revision from before there were rules, named without a path, has none, and all are new.
    """
    return _read(old, new, old=True), _read(new, old)


def _read(side: str, other: str, *, old: bool = False) -> RuleSet:
    if side and Path(side).exists():
        return RuleSet(side, _domains(side, _files(Path(side))))
    revision, colon, path = side.partition(":")
    if not _is_revision(revision):
        raise RulesError(
            f"{printable(side)}: there is no such file or directory, and git knows no such revision"
        )
    if not colon:
        path = _path_of(other)
    name = f"{revision}:{path}"
    if old and not colon and not _git("-C", str(_top()), "ls-tree", revision, "--", path):
        return RuleSet(name, {})
    return RuleSet(name, _domains(name, _of_revision(revision, path)))


def _path_of(side: str) -> str:
    """The path of a side, as git has it."""
    if Path(side).exists():
        try:
            return Path(side).resolve().relative_to(_top()).as_posix()
        except ValueError as error:
            message = f"{printable(side)} is in no checkout: write REVISION:PATH for the other"
            raise RulesError(message) from error
    return side.partition(":")[2] or _DEFAULT_PATH


def _files(path: Path) -> dict[str, bytes]:
    read = read_rule_files(path)
    for name, why in read.unread.items():
        raise RulesError(f"{printable(name)} cannot be read: {why}")
    return read.files


def _domains(name: str, files: Mapping[str, bytes]) -> Mapping[str, Domain]:
    versions = [Version(file, data, None) for file, data in files.items()]
    built = build(versions, Tallies, strict=False)
    problems = [
        problem
        for problem in [*built.conflicts, *(each for file in built.files for each in file.problems)]
        if problem.fatal(strict=False)
    ]
    if problems:
        lines = "\n".join(map(str, sorted(problems)))
        raise RuleSetError(f"{lines}\n{printable(name)} cannot be compared: mend these first")
    return built.domains


def _of_revision(revision: str, path: str) -> dict[str, bytes]:
    """The rule files under a path as they were, named as git names them."""
    if path.startswith(("./", "../")):
        path = f"{_git('rev-parse', '--show-prefix').decode().strip()}{path}"
    path = normpath(path)
    top = ("-C", str(_top()))
    try:
        packed = _git(*top, "archive", "--format=tar", f"{revision}^{{commit}}", "--", path)
    except RulesError as error:
        raise RulesError(f"{printable(revision)} has no rules at {printable(path)}") from error
    with tempfile.TemporaryDirectory(prefix="ratelimit-diff-") as directory:
        try:
            with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
                tar.extractall(directory, filter="data")
        except tarfile.TarError as error:
            raise RulesError(f"{printable(revision)}: {printable(str(error))}") from error
        root = Path(directory).resolve()
        try:
            files = _files(root / path)
        except NoRulesError as error:
            raise RulesError(f"{printable(revision)} has no rules at {printable(path)}") from error
        return {
            f"{revision}:{PurePosixPath(name).relative_to(root)}": data
            for name, data in files.items()
        }


def _is_revision(revision: str) -> bool:
    try:
        _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    except RulesError:
        return False
    return bool(revision)


def _top() -> Path:
    return Path(_git("rev-parse", "--show-toplevel").decode().removesuffix("\n"))


def _git(*arguments: str) -> bytes:
    """What git says. Raises RulesError if it fails, or is not there."""
    try:
        done = subprocess.run(  # noqa: S603 -- no shell, and a revision is never an option
            ["git", *arguments],  # noqa: S607 -- the reader's own
            capture_output=True,
            check=False,
        )
    except OSError as error:
        raise RulesError(f"git cannot be run: {error.strerror}") from error
    if done.returncode:
        raise RulesError(f"git: {printable(done.stderr.decode('utf-8', 'replace').strip())}")
    return done.stdout
