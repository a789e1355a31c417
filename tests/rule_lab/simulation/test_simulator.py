"""Decisions at times that the caller chooses."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from ratelimit_service.model import Decision, Descriptor, Entry, Request
from ratelimit_service.rule_lab.simulation.simulator import Simulator
from ratelimit_service.settings import Settings
from ratelimit_service.wire import decode_decision, encode_decision
from tests.rule_lab.simulation.test_rule_test_run import RULES
from tests.service.asking import Asking


@given(
    st.lists(
        st.tuples(
            st.integers(0, 40_000_000),
            st.lists(
                st.sampled_from(["user", "address", "client", "job", "spare", "none"]), min_size=1
            ),
            st.integers(0, 4),
        ),
        max_size=20,
    )
)
def test_simulators_decide_as_the_service(steps: list[tuple[int, list[str], int]]) -> None:
    """A simulator decides as the service does with a memory store at the same times."""

    async def both() -> None:
        with TemporaryDirectory() as directory:
            service = Asking(Path(directory), RULES)
        simulator = Simulator(service.rules.snapshot, Settings())
        for step_us, keys, hits in steps:
            service.now_us += step_us
            descriptors = tuple(Descriptor((Entry(key, "a"),), hits_addend=hits) for key in keys)
            request = Request("api", descriptors)
            expected = await service.answer(request)
            got = simulator.decide(request, service.now_us).decision
            assert isinstance(expected, Decision)
            on_the_wire = decode_decision(encode_decision(got))
            assert (on_the_wire.code, on_the_wire.statuses) == (expected.code, expected.statuses)

    asyncio.run(both())
