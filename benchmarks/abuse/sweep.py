"""Each thing that rules can say, asked with 250 descriptors and long values in one call.

Where each descriptor meets several limits, there are as many as one call is counted on.

    .venv/bin/python -m benchmarks.abuse.sweep [--only TEXT ...] [--on memory|redis ...]

Prints the longest turn of the loop that a call causes, in the best of three calls, and the CPU that
it takes, in the best of three. Ends with 1 if a turn is above MAX_TURN_MS and above MOST_TURNS
times that of a plain rule, or the CPU above MOST_CPU times that of a plain rule.
Redis is started beside it, from the path. Each call asks for values that were never asked for.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.run import free_port
from benchmarks.timing import MeasuredLoop
from ratelimit_service import wire
from ratelimit_service.eventloop.clock import now_us
from ratelimit_service.limiter.plan import MAX_LIMITS
from ratelimit_service.model import Descriptor, Entry, Override, OverrideKind, Request
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.rules.load import Rules
from ratelimit_service.service import Refusal, Service
from ratelimit_service.settings import Settings
from ratelimit_service.stores import Store
from ratelimit_service.stores.memory import MemoryStore
from ratelimit_service.stores.redis import RedisStore

DESCRIPTORS: Final = 250
LONG: Final = 230
"""Characters of a value: so that 250 descriptors fit into a message."""
MAX_TURN_MS: Final = 5.0
MOST_TURNS: Final = 1.3
MOST_CPU: Final = 5.0
CALLS: Final = 3

_LIMIT: Final = "rate_limit: {unit: day, requests_per_unit: 1000000}"
_NUMBERS: Final = itertools.count(10**9)


class Case(NamedTuple):
    """Rules of a domain, and how its values begin; each is made long, and its own."""

    name: str
    rules: str
    value: str = "v{number}-"
    overrides: Sequence[str] = ()
    hits: int = 1
    """That each descriptor comes to."""
    filler: str = "x"

    @property
    def descriptors(self) -> int:
        return min(DESCRIPTORS, MAX_LIMITS // self.hits)


def _level(*nodes: str) -> str:
    return "domain: edge\ndescriptors:\n" + "\n".join(f"- {{key: k, {each}}}" for each in nodes)


def _values(form: str, count: int, more: str = "") -> str:
    """A level of so many rules, the number of each in its text."""
    return _level(*(f"{form.format(number)}, {more}{_LIMIT}" for number in range(count)))


def _limits(count: int) -> str:
    each = [f"{{window: {at + 1}h, requests_per_unit: 1000000}}" for at in range(count)]
    return f"rate_limits: [{', '.join(each)}]"


_ADDRESS: Final = "10.{a}.{b}.{c}"


def cases() -> list[Case]:
    """All of them; the plain one comes first."""
    named = "name: a, unit: day, requests_per_unit: 1000000"
    replaced = ", ".join(f"{{name: r{number}}}" for number in range(199))
    others = [
        f"value: r{number}, rate_limit: {{name: r{number}, unlimited: true}}"
        for number in range(199)
    ]
    long = "n" * 128
    found = [
        Case("plain", _level(_LIMIT)),
        Case("value", _values("value: v{}", 1_000)),
        Case("one_of", _values("one_of: [a{0}, b{0}]", 1_000)),
        Case("patterns '*x*', 10", _values("value: '*p{}*'", 10)),
        Case("patterns '*x*', 100", _values("value: '*p{}*'", 100)),
        Case("patterns '*x*', 1,000", _values("value: '*p{}*'", 1_000)),
        Case("patterns '*x*' that all match", _values("value: '*x{}*-*'", 1_000), filler="x12"),
        Case("patterns 'x*'", _values("value: 'p{}*'", 1_000)),
        Case("patterns '*x'", _values("value: '*p{}'", 1_000)),
        Case("a pattern of 500 stars", _level(f"value: '{'*x' * 500}', {_LIMIT}")),
        Case("a pattern of 100 stars", _level(f"value: '{'*x' * 100}y', {_LIMIT}")),
        Case("regex", _level(f"regex: 'v[0-9]+-x*', {_LIMIT}")),
        Case("cidr", _values("cidr: 10.{}.0.0/16", 250), _ADDRESS),
        Case("group", _level(f"group: {{ipv4: 24}}, {_LIMIT}"), _ADDRESS),
    ]
    for count in (33, 1_000):
        groups = [
            f"value: '10.{at % 250}.0.0/{at % 32}', group: {{ipv4: {at % 32}, ipv6: {at // 32}}}, "
            f"{_LIMIT}"
            for at in range(count)
        ]
        found.append(Case(f"{count} groups", _level(*groups), _ADDRESS))
        found.append(Case(f"{count} groups, no addresses", _level(*groups)))
    for count in (10, 100, 1_000):
        overrides = [f"*p{number}*" for number in range(count)]
        found += [Case(f"overrides '*x*', {count}", _level(_LIMIT), overrides=overrides)]
    found += [
        Case("overrides '*x*' that take all", _level(_LIMIT), overrides=["*x*"] * 10),
        Case("limits, 4", _level(_limits(4)), hits=4),
        Case("limits, 16", _level(_limits(16)), hits=16),
        Case("ietf", _level(f"answer: {{headers: ietf}}, {_LIMIT}")),
        Case("ietf, 4 limits", _level(f"answer: {{headers: ietf}}, {_limits(4)}"), hits=4),
        Case("ietf, 16 limits", _level(f"answer: {{headers: ietf}}, {_limits(16)}"), hits=16),
        Case("x-ratelimit", _level(f"answer: {{headers: x-ratelimit}}, {_LIMIT}")),
        Case(
            "a rule that replaces 199",
            _level(f"rate_limit: {{{named}, replaces: [{replaced}]}}", *others),
        ),
        Case(
            "a long name", _level(f"rate_limit: {{name: {long}, unit: day, requests_per_unit: 9}}")
        ),
        Case(
            "a long name, ietf",
            _level(
                f"answer: {{headers: ietf}}, "
                f"rate_limit: {{name: {long}, unit: day, requests_per_unit: 9}}"
            ),
        ),
        Case("detailed_metric", _level(f"detailed_metric: true, {_LIMIT}")),
        Case("value_to_metric", _level(f"value_to_metric: true, {_LIMIT}")),
        Case("share_threshold", _level(f"value: 'v*', share_threshold: true, {_LIMIT}")),
        Case("quota_mode", _level(f"quota_mode: true, {_LIMIT}")),
        Case("shadow_mode", _level(f"shadow_mode: true, {_LIMIT}")),
    ]
    for algorithm in ("sliding_window", "token_bucket", "leaky_bucket", "concurrency"):
        limit = f"{{unit: day, requests_per_unit: 9000, algorithm: {algorithm}}}"
        found.append(Case(algorithm, _level(f"rate_limit: {limit}")))
    return found


def body(case: Case) -> bytes:
    """A call whose values nobody has asked for."""
    descriptors = []
    for number in itertools.islice(_NUMBERS, case.descriptors):
        value = case.value.format(
            number=number, a=number >> 16 & 255, b=number >> 8 & 255, c=number & 255
        )
        if case.value != _ADDRESS:
            value = (value + case.filler * LONG)[:LONG]
        descriptors.append(Descriptor((Entry("k", value),)))
    return wire.encode_request(Request("edge", tuple(descriptors)))


class Cost(NamedTuple):
    """Of a call, in milliseconds of CPU."""

    turn_ms: float
    cpu_ms: float


async def costs(case: Case, redis: str, directory: Path) -> Cost:
    """The best of some calls. Raises SystemExit if the rules are none."""
    stats, health = Stats(), Health()
    path = directory / "rules.yaml"
    path.write_text(case.rules)
    rules = Rules(path, stats=stats, health=health)
    rules.load()
    if "edge" not in rules.snapshot.domains:
        raise SystemExit(f"{case.name}: these rules are not taken")
    store: Store = MemoryStore(1_000_000, stats, health)
    if redis:
        store = RedisStore(redis, 5_000_000, stats, health)
    await store.start()
    await asyncio.sleep(0.2 if redis else 0)  # so that it is connected
    service = Service(lambda: rules.snapshot, store, Settings(), stats)
    service.overrides.add(
        Override(str(at), OverrideKind.LIMIT, "edge", (Entry("k", each),), now_us(), 100)
        for at, each in enumerate(case.overrides)
    )
    loop = asyncio.get_running_loop()
    assert isinstance(loop, MeasuredLoop)
    found = []
    for _ in range(CALLS + 1):
        asked = body(case)
        await asyncio.sleep(0.01)
        turns = [0.0]
        loop.note = lambda cpu, _wall, _cause, turns=turns: turns.append(cpu)  # type: ignore[misc]
        before = time.thread_time()
        (answer,) = await asyncio.create_task(service.decide([asked]))
        found.append(Cost(max(turns), (time.thread_time() - before) * 1e3))
        if isinstance(answer, bytes) and b"by_policy" in answer:
            raise SystemExit(f"{case.name}: Redis has not counted")
        if isinstance(answer, Refusal):
            raise SystemExit(f"{case.name}: {answer.message}")
    await store.close()
    warm = found[1:]
    return Cost(min(each.turn_ms for each in warm), min(each.cpu_ms for each in warm))


async def sweep(only: Sequence[str], redis: str, directory: Path) -> int:
    """Prints a line for each case; returns how many break a bound."""
    broken = 0
    plain: Cost | None = None
    for case in cases():
        if plain is not None and only and not any(text in case.name for text in only):
            continue
        cost = await costs(case, redis, directory)
        plain = plain or cost
        slow = cost.turn_ms > max(MAX_TURN_MS, MOST_TURNS * plain.turn_ms)
        dear = cost.cpu_ms > MOST_CPU * plain.cpu_ms
        broken += slow or dear
        where = "Redis " if redis else "memory"
        says = (" turn" if slow else "") + (" CPU" if dear else "")
        print(
            f"{where} | {case.name:34} | {cost.turn_ms:7.2f} ms | {cost.cpu_ms:7.2f} ms |"
            f"{says and ' above its bound:' + says}",
            flush=True,
        )
    return broken


async def _everything(only: Sequence[str], on: Sequence[str]) -> int:
    broken = 0
    with tempfile.TemporaryDirectory() as directory:
        if "memory" in on:
            broken += await sweep(only, "", Path(directory))
        program = shutil.which("redis-server")
        if "redis" in on and program is not None:
            port = free_port()
            server = await asyncio.create_subprocess_exec(
                *(program, "--port", str(port), "--bind", "127.0.0.1", "--save", ""),
                stdout=asyncio.subprocess.DEVNULL,
            )
            try:
                await asyncio.sleep(0.5)
                broken += await sweep(only, f"redis://127.0.0.1:{port}", Path(directory))
            finally:
                server.terminate()
                await server.wait()
    return broken


def main() -> int:
    """Reads the command line; returns how the program ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--on", nargs="*", default=["memory", "redis"])
    chosen = parser.parse_args()
    MeasuredLoop.turns = True
    with asyncio.Runner(loop_factory=MeasuredLoop) as runner:
        return min(1, runner.run(_everything(chosen.only, chosen.on)))


if __name__ == "__main__":
    sys.exit(main())
