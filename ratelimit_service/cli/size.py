"""`ratelimit size`: how many cores and how much memory a load needs, from what was measured."""

from __future__ import annotations

import json
import math
from typing import Final, NamedTuple

import click

from ratelimit_service.algorithms import DEFAULT
from ratelimit_service.cli.measured import (
    BY_ALGORITHM,
    CALLS_A_CORE,
    CLIENTS_BYTES,
    SOURCE,
    WORKER_BYTES,
)
from ratelimit_service.cli.say import say
from ratelimit_service.text.display import count

__all__ = ["Load", "Needed", "needed", "size"]

_BUSY: Final = 0.5
"""The share of a core that is planned for: above it answers wait for each other."""

_MEASURED_DESCRIPTORS: Final = 2
_MOST: Final = 10**12


class Load(NamedTuple):
    """What a service is asked: calls a second, and counters that are in use at the same time."""

    rate: int
    keys: int
    descriptors: int = 2
    algorithm: str = DEFAULT.name
    store: str = "redis"
    build: str = "compiled"


class Needed(NamedTuple):
    """What a load needs. `busy` and `redis_busy` are cores that it really uses; sizes are bytes."""

    workers: int
    busy: float
    memory: int
    memory_at_most: int
    redis_servers: int
    redis_busy: float
    redis_memory: int
    redis_memory_at_most: int


def needed(load: Load) -> Needed:
    """What a load needs, so that no core is busy for more than half of its time.

    A call of more descriptors than were measured costs more in proportion; one of fewer costs the
    same, since most of it is the call.
    """
    measured = BY_ALGORITHM[load.algorithm]
    share = measured.memory_rate if load.store == "memory" else measured.redis_rate
    more = max(1.0, load.descriptors / _MEASURED_DESCRIPTORS)
    busy = load.rate * more / (CALLS_A_CORE[load.store, load.build] * share)
    workers = max(1, math.ceil(busy / _BUSY))
    if load.store == "memory":  # one process has all of it, however many cores there are
        counters = load.keys * measured.memory_bytes
        memory = WORKER_BYTES + counters
        return Needed(1, busy, memory, memory + CLIENTS_BYTES, 0, 0.0, 0, 0)
    redis_busy = load.rate * load.descriptors * measured.redis_us / 1_000_000
    memory = workers * WORKER_BYTES
    return Needed(
        workers,
        busy,
        memory,
        memory + workers * CLIENTS_BYTES,
        max(1, math.ceil(redis_busy / _BUSY)),
        redis_busy,
        load.keys * measured.redis_bytes,
        load.keys * measured.redis_bytes_at_most,
    )


@click.command()
@click.option(
    "--rate",
    type=click.IntRange(1, _MOST),
    required=True,
    metavar="N",
    help="Calls a second at the busiest time.",
)
@click.option(
    "--keys",
    type=click.IntRange(1, _MOST),
    required=True,
    metavar="N",
    help="Counters in use at the same time: callers in a window, times their limits.",
)
@click.option(
    "--descriptors",
    type=click.IntRange(1, 1_000),
    default=2,
    show_default=True,
    metavar="N",
    help="Descriptors of a call.",
)
@click.option(
    "--algorithm",
    type=click.Choice(list(BY_ALGORITHM)),
    default=DEFAULT.name,
    show_default=True,
    help="How most limits count: an algorithm that was measured.",
)
@click.option(
    "--store",
    type=click.Choice(["redis", "memory"]),
    default="redis",
    show_default=True,
    help="Where they count.",
)
@click.option("--interpreted", is_flag=True, help="The build that is not compiled.")
@click.option("--json", "as_json", is_flag=True, help="The numbers as JSON.")
def size(
    rate: int,
    keys: int,
    descriptors: int,
    algorithm: str,
    store: str,
    interpreted: bool,
    as_json: bool,
) -> int:
    """Tell how many cores and how much memory a load needs.

    The numbers follow from one machine's benchmarks, and plan for cores that are busy for half of
    their time. Other machines differ: measure yours before you rely on them.

    Exits 0 if the service can take the load, 1 if one process in memory cannot.

    Example: ratelimit size --rate 50000 --keys 1000000
    """
    build = "interpreted" if interpreted else "compiled"
    load = Load(rate, keys, descriptors, algorithm, store, build)
    needs = needed(load)
    enough = store == "redis" or needs.busy <= _BUSY
    if as_json:
        fields = {**load._asdict(), **needs._asdict(), "enough": enough, "source": SOURCE}
        click.echo(json.dumps(fields))
        return 0 if enough else 1
    say(
        f"{rate:,} calls a second of {count(descriptors, 'descriptor')}, {keys:,} counters of "
        f"{algorithm}, {store}, {build}"
    )
    cores = count(needs.workers, "core")
    say(f"service: {cores} (--workers {needs.workers}), of which it uses {needs.busy:.2f}")
    say(f"memory:  {_bytes(needs.memory)}, and up to {_bytes(needs.memory_at_most)} under attack")
    if needs.redis_servers:
        say(
            f"Redis:   {count(needs.redis_servers, 'server')} with a core each, of which "
            f"{needs.redis_busy:.2f} in use; {_bytes(needs.redis_memory)} for all counters, "
            f"{_bytes(needs.redis_memory_at_most)} at most"
        )
    if not enough:
        say("counters in memory have one process, which has no time for this: count in Redis")
    say(f"measured on one machine ({SOURCE}); half of each core is left free")
    return 0 if enough else 1


def _bytes(number: int) -> str:
    if number < 10**9:
        return f"{math.ceil(number / 10**6):,} MB"
    return f"{number / 10**9:,.1f} GB"
