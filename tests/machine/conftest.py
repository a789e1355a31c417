"""What walks need beside the servers, and how they tell how far they went."""

import pytest

from tests.stores.conftest import ring_url

__all__ = ["WALKED", "ring_url"]

WALKED: list[str] = []
"""What each walk of this run says of how far it went."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in WALKED:
        terminalreporter.write_line(line)
