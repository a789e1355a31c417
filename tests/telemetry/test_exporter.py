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
    heard = exporter._LogHandler()
    logger.addHandler(heard)
    logger.error("refused: %s", "<p>no\n" * 100_000)
    logger.removeHandler(heard)

    (line,) = capsys.readouterr().out.splitlines()
    said = json.loads(line)
    assert said["text"].startswith("refused: <p>no <p>no ")
    assert len(said["text"]) < 1_100
    assert said["level"] == logging.ERROR
