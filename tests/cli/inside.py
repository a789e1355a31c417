"""Runs the command in this process: for what takes no process of its own."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

import pytest

from ratelimit_service.cli import main

__all__ = ["Inside", "Said"]


class Said(NamedTuple):
    """What the command has said, and its exit status."""

    code: int
    out: str
    err: str


class Inside:
    """The command `ratelimit`, as a function."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Said:
        self._monkeypatch.setattr(sys, "argv", ["ratelimit", *map(str, arguments)])
        self._monkeypatch.setattr(
            os, "nice", lambda _: 0
        )  # it would hold for all tests that follow
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = self._capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Said(ended.value.code, out, err)
