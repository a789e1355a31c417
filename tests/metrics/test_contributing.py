"""The walked example of an exporter in CONTRIBUTING.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ratelimit_service.metrics import CATALOGUE, MetricKind, Page, Sources
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.load import Loaded
from ratelimit_service.rules.tree import Domain, Level, Snapshot
from ratelimit_service.settings import Settings

TOP = Path(__file__).parents[2]


def blocks() -> list[str]:
    """The code of the section, in order: the exporter, and how it is registered."""
    _, _, section = (TOP / "CONTRIBUTING.md").read_text().partition("\n## An exporter\n")
    return re.findall(r"```python\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)


async def test_the_example_exports_every_metric() -> None:
    """The exporter as it is printed writes all of the catalogue, once it is registered."""
    example, _ = blocks()
    module: dict[str, object] = {}
    exec(example, module)
    exports = module["exports"]
    assert callable(exports)
    (page,) = exports(Settings(debug="127.0.0.1:0"))
    assert isinstance(page, Page)
    snapshot, loaded = Snapshot(1, {"d": Domain("d", Level.of(()))}), Loaded(1, "5d1f02ab")
    sources = Sources(Stats(), Health(), lambda: snapshot, lambda: 7, list, lambda: loaded)

    written = b"".join([part async for part in page.render(await sources.read())]).decode()

    names = {line.split(" ")[0].split(".")[0] for line in written.splitlines()}
    assert names == {
        metric.name for metric in CATALOGUE if metric.kind is not MetricKind.HISTOGRAM
    } - {
        "ratelimit_rule_limit",  # there is no rule
        "ratelimit_worker_connections",
        "ratelimit_worker_cpu_seconds",
        "ratelimit_worker_resident_bytes",
    }
    assert "ratelimit_memory_counters 7 -1\n" in written
    assert list(exports(Settings())) == []


@pytest.mark.parametrize("path", ["metrics/catalogue.py", "runtime/exporting.py"])
def test_what_the_example_names_is_there(path: str) -> None:
    """The files that the section speaks of are where it says."""
    assert (TOP / "ratelimit_service" / path).exists()
