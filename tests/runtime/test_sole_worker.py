"""The one worker that has the counters in its memory, or speaks over grpcio: never two at once."""

from __future__ import annotations

import os
import signal

import pytest

from tests.runtime.conftest import Start
from tests.runtime.seen import metric, pids
from tests.servers.process import wait_until
from tests.servers.service import ServiceProcess


def denied(service: ServiceProcess) -> bool:
    """Uses up what the rule grants, and says whether the next hit is denied."""
    return [service.decide("edge", user="bob").status for _ in range(3)] == [200, 200, 429]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("transport", ["h2", "grpcio"])
def test_it_dies(start: Start, transport: str, how: signal.Signals) -> None:
    """Log, health and metric tell of its end; another serves, whose counters begin again."""
    service = start("--transport", transport)
    (first,) = pids(service)
    assert denied(service)

    os.kill(first, how)

    wait_until(lambda: pids(service) not in ([], [first]), "another worker")
    wait_until(lambda: service.get("/healthcheck").text == "OK", "it to serve")
    assert denied(service)
    assert f"ERROR worker 1 (pid {first})" in service.log
    assert "ERROR counters began again, and overrides that no file has are gone" in service.log
    assert "workers: no worker serves" in service.log
    assert metric(service, 'ratelimit_worker_ends_total{reason="died"}') == 1


def test_it_is_silent(start: Start) -> None:
    """It is not killed for its silence, since it has the counters; health says so meanwhile."""
    service = start()
    (worker,) = pids(service)
    assert denied(service)

    os.kill(worker, signal.SIGSTOP)
    wait_until(lambda: "hangs; it is not killed" in service.log, "the silence to be seen")
    meanwhile = service.get("/healthcheck")
    os.kill(worker, signal.SIGCONT)
    wait_until(lambda: service.get("/healthcheck").text == "OK", "it to go on")

    assert (meanwhile.status, meanwhile.text) == (
        500,
        "no worker serves: see the log\nworkers: 1 of 1 workers are missing: see the log\n",
    )
    assert pids(service) == [worker]
    assert service.decide("edge", user="bob").status == 429


def test_it_is_silent_at_the_end(start: Start) -> None:
    """A worker that does not end in time is killed when the service stops, and the log says so."""
    service = start("--grace", "1s")
    (worker,) = pids(service)

    os.kill(worker, signal.SIGSTOP)
    service.signal(signal.SIGTERM)

    assert service.wait() == 0
    assert f"ERROR worker 1 (pid {worker}) did not end in time and was killed" in service.log


def test_counters_are_told(start: Start) -> None:
    """Metrics say how many counters there are in its memory, at the moment of the question."""
    service = start()

    service.decide("edge", user="bob")
    service.decide("edge", user="eve")

    assert metric(service, "ratelimit_memory_counters") == 2
