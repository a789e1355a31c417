"""The program that sends over OTLP, by what it says to its parent."""

from __future__ import annotations

import json
import logging

import pytest

from ratelimit_service.telemetry import exporter


def test_pages_of_collectors_are_cut(capsys: pytest.CaptureFixture[str]) -> None:
    """A collector that answers with a large page has a line of the log, and no more of it."""
    logger = logging.getLogger("a library")
    logger.propagate = False
    received = exporter.LogHandler()
    logger.addHandler(received)
    logger.error("refused: %s", "<p>no\n" * 100_000)
    logger.removeHandler(received)

    (line,) = capsys.readouterr().out.splitlines()
    result = json.loads(line)
    assert result["text"].startswith("refused: <p>no <p>no ")
    assert len(result["text"]) < 1_100
    assert result["level"] == logging.ERROR
