"""Runs the command in this process: for what takes no process of its own."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from typing import NamedTuple

import pytest

from ratelimit_service.cli import main

__all__ = ["Inside", "Printed", "inside"]


class Printed(NamedTuple):
    """What the command has said, and its exit status."""

    code: int
    out: str
    err: str


def inside(*arguments: object, environment: Mapping[str, str] | None = None) -> Printed:
    """Runs the command; `environment` is all that it has, if it is given."""
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        code = _run(patch, arguments, environment)
    return Printed(code, out.getvalue(), err.getvalue())


def _run(
    patch: pytest.MonkeyPatch,
    arguments: tuple[object, ...],
    environment: Mapping[str, str] | None = None,
) -> int:
    patch.setattr(sys, "argv", ["ratelimit", *map(str, arguments)])
    patch.setattr(os, "setpriority", lambda *_: None)  # it would hold for all tests that follow
    for name in list(os.environ) if environment is not None else ():
        patch.delenv(name)
    for name, value in (environment or {}).items():
        patch.setenv(name, value)
    with _logging_as_it_was(), pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


@contextmanager
def _logging_as_it_was() -> Iterator[None]:
    """A command that would serve says how everybody logs; tests that follow log as before."""
    root, ours = logging.getLogger(), logging.getLogger("ratelimit_service")
    handlers, levels = root.handlers[:], (root.level, ours.level)
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(levels[0])
        ours.setLevel(levels[1])


class Inside:
    """The command `ratelimit`, as a function, whose output pytest has captured."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Printed:
        code = _run(self._monkeypatch, arguments)
        return Printed(code, *self._capsys.readouterr())
