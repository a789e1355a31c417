"""What pyproject.toml cannot say: the hot path as machine code, and the README of the package.

The hot path is built by mypyc where RATELIMIT_COMPILED is set; else nothing is built. The same
source runs either way: `make install-compiled`.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

from setuptools import Extension, setup

COMPILED = {
    "deciding": """
        observability/stats
        containers/sketches
        model/request model/hit model/step model/algorithm model/decision model/limit
        model/network model/schedule model/refusal model/call_origin
        algorithms/*
        rules/match rules/moment
        stores/store stores/settled stores/keys stores/corrupt_state stores/memory_counter
        stores/memory_holds stores/memory_tables stores/memory stores/local stores/local_cache
        limiter/callers limiter/compiled limiter/compiler limiter/plan limiter/statuses
        limiter/additions/*
        limiter/answer limiter/tally limiter/turns
        wire/request wire/response
        service/faults service/planned service/memo service/planning service/answering
        service/patience service/records service/decision_events service/batch
        service/caller_sample service/service
    """,
    "redis": """
        stores/redis/script stores/redis/batch stores/redis/charge stores/redis/cross_shard
        stores/redis/give_back stores/redis/resync stores/redis/breaker
        stores/redis/server_clock stores/redis/server stores/redis/call_window
        stores/redis/divided stores/redis/batches stores/redis/shard stores/redis/connection
        stores/redis/store
        stores/redis/advance stores/redis/advances stores/redis/balance stores/redis/hand_backs
    """,
    "transport": """
        eventloop/clock eventloop/scheduler
        net/channel
        grpc/h2/costs grpc/h2/limits grpc/h2/frames grpc/h2/fields grpc/h2/head
        grpc/h2/header_template grpc/h2/headers grpc/h2/messages grpc/h2/events grpc/h2/streams
        grpc/h2/life grpc/h2/budget grpc/h2/open_streams grpc/h2/runs grpc/h2/sending
        grpc/h2/control grpc/h2/bodies grpc/h2/receiving grpc/h2/connection grpc/h2/admission
        grpc/h2/presence grpc/h2/client
        grpc/call_batch
        grpc/h2/callers
        grpc/calls grpc/overload
    """,
    "replay": """
        rule_lab/simulation/simulator
        rule_lab/replay/sketches rule_lab/replay/timeline rule_lab/replay/use
        rule_lab/replay/matched rule_lab/replay/trace rule_lab/replay/play
        rule_lab/replay/recorded rule_lab/replay/logs rule_lab/replay/csv_log
        rule_lab/replay/envoy_log rule_lab/replay/decision_log
    """,
}
"""The modules that a request goes through, a recorded one too, and what they share; `*` is any
name. Each group becomes one piece of machine code, and these are built side by side. One piece of
all would take twice the time."""


def extensions() -> list[Extension]:
    """What is to be built besides copying files."""
    if not os.environ.get("RATELIMIT_COMPILED"):
        return []
    from mypyc.build import mypycify  # only here, since a plain build needs no compiler

    groups = [(paths(modules), f"ratelimit_service_{name}") for name, modules in COMPILED.items()]
    every = [path for each, _ in groups for path in each]
    return mypycify(every, opt_level="3", strip_asserts=False, separate=groups)


def paths(modules: str) -> list[str]:
    """The files of these modules."""
    found: list[str] = []
    for module in modules.split():
        files = sorted(map(str, Path("ratelimit_service").glob(f"{module}.py")))
        if not files:
            raise FileNotFoundError(
                f"setup.py: there is no ratelimit_service/{module}.py to compile"
            )
        found += files
    return found


def readme() -> str:
    """README.md with absolute links: a package index has no other files of the repository."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    blob = f"{project['urls']['Source']}/blob/main"
    text = Path("README.md").read_text(encoding="utf-8")
    return re.sub(r"\]\((?!https?:|#)", f"]({blob}/", text)


setup(
    ext_modules=extensions(),
    long_description=readme(),
    long_description_content_type="text/markdown",
    options={"build_ext": {"parallel": True}},
)
