"""A call that comes whole takes a short way, and nobody can tell: byte by byte, event by event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimit_service import compiled
from ratelimit_service.grpc.h2 import frames, runs
from ratelimit_service.grpc.h2.connection import Calls
from ratelimit_service.grpc.h2.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    PADDED,
    ErrorCode,
    FrameType,
    SettingId,
)
from ratelimit_service.grpc.h2.receiving import Receiver
from ratelimit_service.grpc.h2.sending import Sender
from ratelimit_service.service import Answer
from tests.grpc.h2_client import HEADERS, PATH, Client

pytestmark = pytest.mark.skipif(compiled(), reason="no short way can be taken away from it")


def block(path: str = PATH) -> bytes:
    encoder = hpack.Encoder()
    encoder.header_table_size = 0
    return encoder.encode(list((dict(HEADERS) | {":path": path}).items()))


BLOCKS = (block(), block(), block("/grpc.health.v1.Health/Watch"), block("/nobody/serves"))


def message(size: int, packed: int = 0) -> bytes:
    return bytes((packed,)) + size.to_bytes(4, "big") + bytes(size)


def whole(stream_id: int, which: int, size: int) -> bytes:
    return frames.frame(FrameType.HEADERS, END_HEADERS, stream_id, BLOCKS[which]) + frames.frame(
        FrameType.DATA, END_STREAM, stream_id, message(size)
    )


def odd(kind: str, stream_id: int) -> bytes:
    """A call that is not quite a whole one."""
    head = frames.frame(FrameType.HEADERS, END_HEADERS, stream_id, BLOCKS[0])
    data = {
        "in two parts": frames.frame(FrameType.DATA, 0, stream_id, message(9)[:7])
        + frames.frame(FrameType.DATA, END_STREAM, stream_id, message(9)[7:]),
        "padded": frames.frame(
            FrameType.DATA, END_STREAM | PADDED, stream_id, b"\3" + message(4) + bytes(3)
        ),
        "packed": frames.frame(FrameType.DATA, END_STREAM, stream_id, message(4, packed=1)),
        "too short": frames.frame(FrameType.DATA, END_STREAM, stream_id, message(4)[:-1]),
        "no message": frames.frame(FrameType.DATA, END_STREAM, stream_id, b""),
        "no end": frames.frame(FrameType.DATA, 0, stream_id, message(4)),
        "ping between": frames.ping(bytes(8), ack=False)
        + frames.frame(FrameType.DATA, END_STREAM, stream_id, message(4)),
    }[kind]
    return head + data


ODD = ("in two parts", "padded", "packed", "too short", "no message", "no end", "ping between")
OTHERS = {
    "ping": frames.ping(b"12345678", ack=False),
    "window": frames.window_update(0, 9),
    "narrow": frames.settings({SettingId.INITIAL_WINDOW_SIZE: 7}),
    "wide": frames.settings({SettingId.INITIAL_WINDOW_SIZE: 70_000}),
    "small table": frames.settings({SettingId.HEADER_TABLE_SIZE: 0}),
    "ack": frames.frame(FrameType.SETTINGS, ACK, 0, b""),
    "leave": b"",
}
SAID = st.one_of(
    st.tuples(st.just("whole"), st.integers(0, 3), st.sampled_from([0, 1, 40, 16_379, 16_380])),
    st.tuples(st.just("odd"), st.sampled_from(ODD), st.just(0)),
    st.tuples(st.just("other"), st.sampled_from(sorted(OTHERS)), st.just(0)),
    st.tuples(st.just("reset"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("late"), st.integers(0, 9), st.just(0)),
)
"""What the client says; `late` is an even, old or open stream's call."""


def spoken(said: Sequence[tuple[str, int | str, int]], stream_id: int) -> tuple[bytes, int]:
    """The client's bytes, and where among them the server begins to leave; -1 if it stays."""
    data, leave_at = b"", -1
    for kind, what, size in said:
        stream_id += 2 * (kind in {"whole", "odd"})
        if what == "leave":
            leave_at = len(data)
        if kind == "whole":
            data += whole(stream_id, int(what), size)
        elif kind == "odd":
            data += odd(str(what), stream_id)
        elif kind == "reset":
            data += frames.rst_stream(max(1, stream_id - 2 * int(what)), ErrorCode.CANCEL)
        elif kind == "late":
            data += whole(max(1, stream_id + 3 - int(what)), 0, 3)
        else:
            data += OTHERS[str(what)]
    return data, leave_at


def life(
    said: Sequence[tuple[str, int | str, int]], reads: Sequence[int], pauses: Sequence[bool]
) -> tuple[list[object], bytes]:
    """The events and the bytes of a connection on which this is said, in reads of these sizes.

    After a read its calls are answered at once, or only after the next one.
    """
    client = Client()
    client.settle()
    connection = client.connection
    data, leave_at = spoken(said, client.stream_id)
    events: list[object] = []
    waiting: list[int] = []
    at = 0
    for number, size in enumerate([*reads, len(data)]):
        if at <= leave_at < at + size:
            connection.shut_down()
        before, waiting = waiting, []
        for event in connection.receive(data[at : at + size]):
            if isinstance(event, Calls):
                events += zip(event.stream_ids, event.messages, strict=True)
                waiting += event.stream_ids
            else:
                events.append(event)
        at += size
        if not pauses[number % len(pauses)]:
            before, waiting = before + waiting, []
        answers: list[Answer] = [bytes(each % 50) for each in before]
        done = connection.sender.answer_whole(before, answers)
        for each in before[done:]:
            if connection.is_open(each):
                connection.sender.answer(each, bytes(each % 50))
    return events, connection.take_output()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(SAID, max_size=14),
    st.lists(st.integers(1, 400), max_size=12),
    st.lists(st.booleans(), min_size=1, max_size=3),
)
def test_whole_calls_are_handled_alike(
    said: Sequence[tuple[str, int | str, int]], reads: Sequence[int], pauses: Sequence[bool]
) -> None:
    """Whatever a client says, both ways hand on the same and write the same."""
    short = life(said, reads, pauses)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(runs, "usual_calls", lambda *given: (given[1], [], []))
        assert life(said, reads, pauses) == short
        patched.setattr(Receiver, "_calls", lambda *_: (0, 0))
        patched.setattr(Sender, "answer_whole", lambda *_: 0)
        assert life(said, reads, pauses) == short


def test_whole_calls_take_the_short_way() -> None:
    """Of calls that come whole none is handled frame by frame, and each is answered in one go."""
    client, taken = Client(), Counter[str]()
    client.settle()
    take, answer = Receiver._take, Sender.answer_whole

    def counted(receiver: Receiver, *given: object) -> None:
        taken["frames"] += 1
        take(receiver, *given)  # type: ignore[arg-type]

    def answered(sender: Sender, stream_ids: list[int], answers: list[Answer]) -> int:
        done = answer(sender, stream_ids, answers)
        taken["answers"] += done
        return done

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Receiver, "_take", counted)
        patched.setattr(Sender, "answer_whole", answered)
        first = client.stream_id + 2
        calls = range(first, first + 20, 2)
        events = client.connection.receive(b"".join(whole(each, 0, 5) for each in calls))
        for each in calls:
            client.connection.sender.answer(each, b"")

    assert isinstance(events[0], Calls)
    assert events[0].stream_ids == list(calls)
    assert taken == {"answers": 10}
