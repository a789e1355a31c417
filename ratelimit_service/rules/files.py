"""Rule files on disk: which there are, and their bytes.

Only regular files of a bounded size are read (`whole_file`), so that nothing that lies in a rules
directory can hold up who reads it. What files say is not known here.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ratelimit_service.errors import RulesError
from ratelimit_service.files.whole_file import read_whole
from ratelimit_service.rules.source import SourceContent

__all__ = ["TESTS", "NoRulesError", "read_rule_files"]

TESTS = ".test.yaml"
"""How the names of tests of rules end, which `ratelimit test` runs."""

_NO_RULES = {
    TESTS: "it holds tests of rules, see `ratelimit test`",
    ".md": "it is a text about rules",
    "~": "it is an editor's copy",
}
"""Names of files in a rules directory that are no rule files end so."""


class NoRulesError(RulesError):
    """There is no rule file where rules should be."""


def read_rule_files(path: Path) -> SourceContent:
    """A rule file, or all files below a directory but dot files, tests and texts.

    Symbolic links are followed, so that a mounted Kubernetes ConfigMap counts once. Raises
    NoRulesError if there is nothing at all, RulesError if nobody can tell.
    """
    try:
        is_directory = stat.S_ISDIR(path.stat().st_mode)
    except FileNotFoundError as error:
        raise NoRulesError(f"{path}: there is no such file or directory") from error
    except OSError as error:
        raise RulesError(f"{path} cannot be read: {error.strerror}") from error
    unread: dict[str, str] = {}
    skipped: dict[str, str] = {}
    paths = _walk(path, unread, skipped) if is_directory else [str(path)]
    if not paths and not unread:
        raise NoRulesError(f"{path}: there is no rule file in this directory")
    files = {}
    for name in paths:
        try:
            files[name] = read_whole(name)
        except OSError as error:
            unread[name] = error.strerror or str(error)
    return SourceContent(files, unread, skipped=skipped)


def _walk(directory: Path, unread: dict[str, str], skipped: dict[str, str]) -> list[str]:
    def failed(error: OSError) -> None:
        unread[str(error.filename)] = error.strerror or str(error)

    paths, seen = [], set()
    for parent, directories, files in os.walk(directory, onerror=failed, followlinks=True):
        real = os.path.realpath(parent)
        if real in seen:  # a link to a directory above
            directories.clear()
            continue
        seen.add(real)
        directories[:] = [name for name in directories if not name.startswith(".")]
        for name in files:
            why = next((why for end, why in _NO_RULES.items() if name.endswith(end)), "")
            if why:
                skipped[str(Path(parent, name))] = why
            elif not name.startswith("."):
                paths.append(Path(parent, name))
    return [str(each) for each in sorted(paths)]
