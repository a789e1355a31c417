"""What tests of the command share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.inside import Inside
from tests.cli.ran import RULES
from tests.servers.service import ServiceProcess


@pytest.fixture
def ratelimit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Inside:
    """The command, run in this process."""
    return Inside(monkeypatch, capsys)


@pytest.fixture(scope="package")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rules") / "demo.yaml"
    path.write_text(RULES)
    return path


@pytest.fixture(scope="package")
def service(rules: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    process = ServiceProcess(tmp_path_factory.mktemp("service"), "--rules", str(rules))
    process.start()
    yield process
    process.kill()
