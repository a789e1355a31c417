"""`ratelimit restart`: asks a service on this machine to replace its workers, and waits for it.

Only the process that has answered gets a signal: `peer` makes sure of that.
"""

from __future__ import annotations

import json
import os
import ssl
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import NotRequired, TypedDict

from ratelimit_service.errors import RateLimitError
from ratelimit_service.runtime.peer import check_peer
from ratelimit_service.runtime.signals import RESTART
from ratelimit_service.settings import split_address
from ratelimit_service.text.display import reason

__all__ = ["restart"]

_LOOK_SECONDS = 0.1
_ANSWER_SECONDS = 5.0
_MOST_BYTES = 1 << 20


class _Process(TypedDict):
    worker: int
    pid: int


class _Processes(TypedDict):
    """The part of `/processes` that is needed here."""

    pid: int
    version: str
    restarts: int
    restarting: bool
    restart_error: str
    cannot_restart: NotRequired[str]
    """Older versions do not send it."""
    workers: list[_Process]


def restart(http: str, timeout_us: int, *, tls: bool = False) -> Iterator[str]:
    """Replaces the workers of the service whose HTTP port is given; tells how it goes.

    `tls` is for an HTTP port that speaks it. Raises RateLimitError if there is no such service,
    or it cannot or does not restart.
    """
    with closing(_connection(http, tls=tls)) as connection:
        before = _processes_of(http, connection)
        if why := before.get("cannot_restart"):
            raise RateLimitError(f"the service at {http} does not restart: {why}")
        if before["restarting"]:
            raise RateLimitError(f"the service at {http} is restarting already")
        check_peer(connection.sock, before["pid"])
        os.kill(before["pid"], RESTART)
    yield from _followed(http, tls, before, time.monotonic() + timeout_us / 1_000_000)


def _followed(http: str, tls: bool, before: _Processes, until: float) -> Iterator[str]:
    reported = {worker["pid"] for worker in before["workers"]}
    begun = False
    while time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)
        try:
            with closing(_connection(http, tls=tls)) as connection:
                now = _processes_of(http, connection)
        except RateLimitError:  # nobody answers for a moment
            continue
        begun = begun or now["restarting"]
        for worker in now["workers"]:
            if now["restarts"] == before["restarts"] and worker["pid"] not in reported:
                reported.add(worker["pid"])
                yield f"worker {worker['worker']}: process {worker['pid']}"
        if begun and not now["restarting"]:
            if now["restart_error"]:
                raise RateLimitError(f"not restarted: {now['restart_error']}")
            yield f"restarted: version {now['version']}"
            return
        begun = begun or now["restarts"] != before["restarts"] or bool(now["restart_error"])
    raise RateLimitError(f"the service at {http} is still restarting: see its log")


def _connection(http: str, *, tls: bool) -> HTTPConnection:
    host, port = split_address(http)
    if not tls:
        return HTTPConnection(host, port, timeout=_ANSWER_SECONDS)
    # The system knows better than a certificate who is at the other end: see `peer`.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return HTTPSConnection(host, port, timeout=_ANSWER_SECONDS, context=context)


def _processes_of(http: str, connection: HTTPConnection) -> _Processes:
    """What the service says of its processes."""
    try:
        connection.request("GET", "/processes")
        answer = json.loads(connection.getresponse().read(_MOST_BYTES))
    except OSError as error:
        raise RateLimitError(
            f"no service answers at {http}: {reason(error)}; name its HTTP port with --http, and "
            "give --tls if it speaks that"
        ) from error
    except (HTTPException, ValueError) as error:
        raise RateLimitError(_OTHER.format(http=http)) from error
    if not _is_whole(answer):
        raise RateLimitError(_OTHER.format(http=http))
    processes: _Processes = answer
    return processes


_OTHER = (
    "what answers at http://{http} is no rate limit service: "
    "name its HTTP port with --http HOST:PORT"
)


def _is_whole(answer: object) -> bool:
    """Whether that is what a service says."""
    if not isinstance(answer, dict) or type(answer.get("pid")) is not int:
        return False
    workers = answer.get("workers")
    if not isinstance(workers, list):
        return False
    fits = all(
        isinstance(worker, dict) and {"worker", "pid"} <= worker.keys() for worker in workers
    )
    rest = {"version", "restarts", "restarting", "restart_error"}
    return fits and rest <= answer.keys()
