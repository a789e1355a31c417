"""What tests of the command share."""

from __future__ import annotations

import pytest

from tests.cli.inside import Inside


@pytest.fixture
def ratelimit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Inside:
    """The command, run in this process."""
    return Inside(monkeypatch, capsys)
