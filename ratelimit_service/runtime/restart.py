"""`ratelimit restart`: asks a service on this machine to replace its workers, and waits for it."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import TypedDict

from ratelimit_service.errors import RateLimitError
from ratelimit_service.runtime.signals import RESTART

__all__ = ["restart"]

_LOOK_SECONDS = 0.1
_ANSWER_SECONDS = 5.0


class _Process(TypedDict):
    worker: int
    pid: int


class _Processes(TypedDict, total=False):
    """What `/processes` shows, as far as it is needed here."""

    pid: int
    version: str
    restarts: int
    restarting: bool
    restart_error: str
    workers: list[_Process]


def restart(http: str, timeout_us: int) -> Iterator[str]:
    """Replaces the workers of the service whose HTTP port is given; tells how it goes.

    Raises RateLimitError if there is no such service, or it cannot or does not restart.
    """
    before = _asked(http)
    if not before["workers"]:
        raise RateLimitError(
            f"the service at {http} is one process, with its counters in memory or over grpcio: "
            "there is nobody to take over; stop it and start it again"
        )
    if before["restarting"]:
        raise RateLimitError(f"the service at {http} is restarting already")
    try:
        os.kill(before["pid"], RESTART)
    except ProcessLookupError as error:
        raise RateLimitError(
            f"process {before['pid']} is not on this machine: run this where the service runs"
        ) from error
    except PermissionError as error:
        raise RateLimitError(
            f"process {before['pid']} is another user's: run this as that user"
        ) from error
    yield from _followed(http, before, time.monotonic() + timeout_us / 1_000_000)


def _followed(http: str, before: _Processes, until: float) -> Iterator[str]:
    told = {worker["pid"] for worker in before["workers"]}
    begun = False
    while time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)
        try:
            now = _asked(http)
        except RateLimitError:  # for a moment nobody answers
            continue
        begun = begun or now["restarting"]
        for worker in now["workers"]:
            if now["restarts"] == before["restarts"] and worker["pid"] not in told:
                told.add(worker["pid"])
                yield f"worker {worker['worker']}: process {worker['pid']}"
        if begun and not now["restarting"]:
            if now["restart_error"]:
                raise RateLimitError(f"not restarted: {now['restart_error']}")
            yield f"restarted: version {now['version']}"
            return
        begun = begun or now["restarts"] != before["restarts"] or bool(now["restart_error"])
    raise RateLimitError(f"the service at {http} is still restarting: see its log")


def _asked(http: str) -> _Processes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{http}/processes", timeout=_ANSWER_SECONDS) as answer:
            processes: _Processes = json.load(answer)
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise RateLimitError(
            f"no service answers at http://{http}: {reason}; name its HTTP port with --http"
        ) from error
    return processes
