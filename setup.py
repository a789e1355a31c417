"""Builds the hot path as machine code (mypyc) where RATELIMIT_COMPILED is set; else nothing.

The same source runs either way: `make install-compiled`.
"""

from __future__ import annotations

import os
from pathlib import Path

from setuptools import Extension, setup

COMPILED = """
    clock observer reads sketches turns
    model/request model/hit model/step model/algorithm model/decision model/limit
    model/network model/schedule
    algorithms/*
    rules/match rules/moment
    stores/store stores/settled stores/keys stores/damage
    stores/memory_counter stores/memory_tables stores/memory
    stores/local stores/local_cache
    stores/redis/script stores/redis/batch stores/redis/charge stores/redis/cross_shard
    stores/redis/give_back stores/redis/debts
    stores/redis/server stores/redis/filling stores/redis/batches stores/redis/shard
    stores/redis/connection
    stores/redis/store
    limiter/callers limiter/compiled limiter/compiler limiter/plan limiter/statuses
    limiter/additions/* limiter/answer limiter/tally
    wire/request wire/response
    service/refusal service/faults service/asked service/memo service/planning
    service/answering service/at_hand service/patience service/records service/callers
    service/telling service/service
    transport/h2/costs transport/h2/limits transport/h2/frames transport/h2/fields
    transport/h2/head transport/h2/likeness
    transport/h2/headers transport/h2/messages transport/h2/events transport/h2/streams
    transport/h2/account
    transport/h2/life transport/h2/open_streams transport/h2/runs transport/h2/passing
    transport/h2/ordering transport/h2/sending
    transport/h2/control transport/h2/incoming transport/h2/hurrying transport/h2/connection
    transport/h2/inbox transport/h2/drawing transport/h2/read_pauses transport/h2/presence
    transport/h2/protocol transport/h2/gathered transport/h2/calls transport/h2/overload
    simulation/world
    replay/sketches replay/timeline replay/use replay/met replay/play
    replay/recorded replay/logs replay/csv_log replay/envoy_log replay/decision_log
"""
"""The modules that a request goes through, a recorded one too, and what they share; `*` is any
name."""


def extensions() -> list[Extension]:
    """What is to be built besides copying files."""
    if not os.environ.get("RATELIMIT_COMPILED"):
        return []
    from mypyc.build import mypycify  # only here, since a plain build needs no compiler

    paths: list[str] = []
    for module in COMPILED.split():
        found = sorted(map(str, Path("ratelimit_service").glob(f"{module}.py")))
        if not found:
            raise FileNotFoundError(
                f"setup.py: there is no ratelimit_service/{module}.py to compile"
            )
        paths += found
    return mypycify(paths, opt_level="3", strip_asserts=False)


setup(ext_modules=extensions())
