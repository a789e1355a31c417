"""Calls that there is no time for are told to who listens and who traces, as far as time allows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ratelimit_service.decision_log.packets import decisions_in
from ratelimit_service.decision_log.queue import DecisionQueue
from ratelimit_service.errors import StatusCode
from ratelimit_service.service import CallOrigin, DecidedBy, DecisionRecord, Refusal, Traced
from ratelimit_service.settings import Settings
from tests.grpc.served_ends import RULES, Ends
from tests.service.asking import Asking, Heard, Timed

ID = b"x-request-id"
MOST_TOLD = 256
"""In a second."""


class Keeping:
    """Wants every call, and keeps what it hears."""

    def __init__(self) -> None:
        self.open = True
        self.heard: list[tuple[CallOrigin, DecisionRecord]] = []

    def choose(self, callers: Sequence[CallOrigin]) -> Sequence[Traced]:
        return [Traced(place, each) for place, each in enumerate(callers)]

    def decided(self, traced: Traced, record: DecisionRecord) -> None:
        assert isinstance(traced.parent, CallOrigin)
        self.heard.append((traced.parent, record))


def ends_of(tmp_path: Path) -> Ends:
    ends = Ends(Asking(tmp_path, RULES, store=Timed()))
    ends.settle()
    ends.served.connection.callers.peer = "10.0.0.7"
    return ends


async def test_refused_calls_are_told(tmp_path: Path) -> None:
    """Who listens hears of a refused call what was asked, who asked, and that it was refused."""
    ends = ends_of(tmp_path)
    heard = Heard(ends.service)
    ends.service.events.tracer = tracer = Keeping()

    assert not ends.call(waited_us=80_000_000)
    ends.calls.look()

    (told,) = heard
    assert isinstance(told.answer, Refusal)
    assert told.answer.code is StatusCode.RESOURCE_EXHAUSTED
    assert (told.by, told.denied) == (DecidedBy.NOTHING, True)
    assert told.caller is not None
    assert told.caller.peer == "10.0.0.7"
    assert b"user" in told.body
    ((origin, record),) = tracer.heard
    assert (origin.peer, record.answer) == ("10.0.0.7", told.answer)


async def test_headers_of_refused_calls_are_read(tmp_path: Path) -> None:
    """Each refused call is told with the headers that it came with."""
    ends = ends_of(tmp_path)
    heard = Heard(ends.service)
    for number in range(3):
        extra = [("grpc-timeout", "100S"), ("x-request-id", f"call-{number}")]
        data = ends.client.headers(extra) + ends.client.data(b"no request")
        ends.receive(data, waited_us=80_000_000)
    ends.calls.look()

    origins = [each.caller for each in heard]
    assert [dict(each.headers) for each in origins if each is not None] == [
        {ID: f"call-{number}".encode()} for number in range(3)
    ]


async def test_only_so_many_are_told_and_the_others_are_counted(tmp_path: Path) -> None:
    """In a second some calls are told at most; the decision log counts the others as dropped."""
    ends = ends_of(tmp_path)
    sent: list[int] = []

    def send(packet: bytes) -> bool:
        sent.append(decisions_in(packet))
        return True

    queue = DecisionQueue(Settings(decision_log="x"), ends.stats, send)
    ends.service.events.add(queue)
    for _ in range(MOST_TOLD + 50):
        assert not ends.call(waited_us=80_000_000)
    ends.calls.look()
    queue.flush()

    assert sum(sent) == MOST_TOLD
    assert ends.stats.decision_log == {"dropped_overload": 50}
    assert not ends.call(waited_us=80_000_000)
    ends.calls.look()
    queue.flush()
    assert sum(sent) == MOST_TOLD + 1
