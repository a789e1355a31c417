"""Who counts in a server: every process says so once a second, and hears who else does.

A sorted set in the server has the processes and the times of their last heartbeats, by its clock.
So each process knows its share of the limits for when the server is away, and sees if another one
places counters on another ring.
"""

from __future__ import annotations

from typing import NamedTuple

from ratelimit_service.stores.redis.connection import Command, Reply

__all__ = ["HEARTBEAT_SECONDS", "PROCESSES", "Process", "farewell", "heartbeat", "others"]

HEARTBEAT_SECONDS = 1.0

PROCESSES = "{ratelimit}processes"
_LIFE_MS = 5_000

_SCRIPT = """\
local time = redis.call("TIME")
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call("ZADD", KEYS[1], now, ARGV[1])
redis.call("ZREMRANGEBYSCORE", KEYS[1], "-inf", now - ARGV[2])
redis.call("ZREMRANGEBYSCORE", KEYS[1], now + ARGV[2], "+inf")
redis.call("PEXPIRE", KEYS[1], ARGV[2])
return redis.call("ZRANGE", KEYS[1], 0, -1)
"""


class Process(NamedTuple):
    """A process by its own id, and the fingerprint of its ring."""

    id: str
    ring: str


def heartbeat(process: Process, key: str = PROCESSES) -> Command:
    """The command by which a process says that it is there; see `others` for the reply."""
    return "EVAL", _SCRIPT, 1, key, " ".join(process), _LIFE_MS


def farewell(process: Process, key: str) -> Command:
    """The command by which a process says that it leaves."""
    return "ZREM", key, " ".join(process)


def others(reply: Reply) -> list[Process] | None:
    """The processes of the last five seconds, this one included; None for an error."""
    if not isinstance(reply, list):
        return None
    processes = []
    for member in reply:
        if isinstance(member, bytes):
            name, _, ring = member.decode("utf-8", "replace").partition(" ")
            processes.append(Process(name, ring))
    return processes
