"""What one client sends costs others no long wait: no turn of the event loop is long."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ratelimit_service import compiled
from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.frames import (
    END_HEADERS,
    END_STREAM,
    ErrorCode,
    FrameType,
    SettingId,
)
from ratelimit_service.limiter import MAX_LIMITS
from ratelimit_service.model import Descriptor, Entry
from ratelimit_service.wire import SERVICE
from ratelimit_service.wire.request import MAX_DESCRIPTORS, MAX_ENTRIES
from tests.abuse.siege import (
    DECIDE,
    LIMITS_OF_MANY,
    REFLECT,
    Attacker,
    Lines,
    Siege,
    head,
    prefixed,
    request,
)
from tests.grpc.h2_client import Client

Attack = Callable[[Attacker], Awaitable[None]]

MAX_TURN = 120_000
"""Lines of Python: about 5 ms on the machine for which bounds were set."""

MAX_FRAME = 30_000
"""What is handled before others can have their turn; some of these may come together."""

interpreted = pytest.mark.skipif(compiled(), reason="lines of Python are counted")

ATTACKS: dict[str, tuple[Attack, dict[SettingId, int]]] = {}


def attack(name: str, settings: dict[SettingId, int] | None = None) -> Callable[[Attack], Attack]:
    def put(act: Attack) -> Attack:
        ATTACKS[name] = act, settings or {}
        return act

    return put


def users(count: int, first: int = 0) -> bytes:
    return request(
        *(Descriptor((Entry("user", f"customer-{first + number:09d}"),)) for number in range(count))
    )


@attack("settings of many windows on many streams")
async def settings(attacker: Attacker) -> None:
    await attacker.send(b"".join(attacker.headers() for _ in range(1_000)))
    entries = b"".join(
        SettingId.INITIAL_WINDOW_SIZE.to_bytes(2, "big") + (65_535 + at % 2).to_bytes(4, "big")
        for at in range(2_730)
    )
    for _ in range(3):
        await attacker.send(frames.frame(FrameType.SETTINGS, 0, 0, entries))


@attack("header lists of 16,000 fields")
async def header_lists(attacker: Attacker) -> None:
    for number in range(8):
        await attacker.send(attacker.call(users(1), head(DECIDE) + b"\x90" * (16_000 + number)))


@attack("long paths in Huffman's code")
async def huffman_paths(attacker: Attacker) -> None:
    await attacker.send(
        b"".join(
            attacker.call(users(1), head("/" + "0" * 25_000 + f"{number:09d}"))
            for number in range(8)
        )
    )


@attack("window updates of a byte on many blocked answers", {SettingId.INITIAL_WINDOW_SIZE: 0})
async def blocked_streams(attacker: Attacker) -> None:
    await attacker.send(b"".join(attacker.call(users(1)) for _ in range(900)))
    await attacker.send(frames.window_update(0, 1) * 1_500)


@attack("window updates of a byte on a connection that many answers wait for")
async def blocked_connection(attacker: Attacker) -> None:
    for _ in range(16):
        await attacker.send(b"".join(attacker.call(users(1)) for _ in range(200)))
    await attacker.send(frames.window_update(0, 1) * 1_500)


@attack("answers that a window lets through all at once")
async def answers_at_once(attacker: Attacker) -> None:
    for _ in range(8):
        await attacker.send(b"".join(attacker.call(users(1)) for _ in range(200)))
    await attacker.send(frames.window_update(0, 1_000_000))


@attack("watches that end at once")
async def watches(attacker: Attacker) -> None:
    block = head("/grpc.health.v1.Health/Watch")
    await attacker.send(b"".join(attacker.call(prefixed(b""), block) for _ in range(900)))
    resets = (frames.rst_stream(at, ErrorCode.CANCEL) for at in range(5, 1_805, 2))
    await attacker.send(b"".join(resets))


@attack("many calls of many descriptors")
async def many_descriptors(attacker: Attacker) -> None:
    calls = [attacker.call(users(256, number << 8)) for number in range(32)]
    await attacker.send(b"".join(calls))


def short(count: int, first: int = 0) -> bytes:
    """A call of descriptors as short as they can be, each with a counter of its own."""
    numbers = range(first, first + count)
    return request(*(Descriptor((Entry("user", f"{number:x}"),)) for number in numbers))


@attack("many calls of many short descriptors")
async def short_descriptors(attacker: Attacker) -> None:
    calls = [attacker.call(short(250, number * 250)) for number in range(32)]
    await attacker.send(b"".join(calls))


@attack("calls that meet as many limits as one is counted on, all of which are told")
async def most_limits(attacker: Attacker) -> None:
    for number in range(8):
        values = (f"{number}-{each}" for each in range(MAX_LIMITS // LIMITS_OF_MANY))
        descriptors = (Descriptor((Entry("many", value),)) for value in values)
        await attacker.send(attacker.call(request(*descriptors)))


@attack("calls that meet more limits than one is counted on")
async def more_limits(attacker: Attacker) -> None:
    for number in range(8):
        values = (f"{number}-{each}" for each in range(MAX_DESCRIPTORS))
        descriptors = (Descriptor((Entry("many", value),)) for value in values)
        await attacker.send(attacker.call(request(*descriptors)))


@attack("many calls of a descriptor with many entries")
async def many_entries(attacker: Attacker) -> None:
    calls = []
    for number in range(32):
        entries = (Entry("user", f"{number}-{each}") for each in range(3_200))
        calls.append(attacker.call(request(Descriptor(tuple(entries)))))
    await attacker.send(b"".join(calls))


@attack("many calls of a descriptor with as many entries as are read")
async def readable_entries(attacker: Attacker) -> None:
    calls = []
    for number in range(32):
        entries = (Entry("user", f"{number}-{each}") for each in range(MAX_ENTRIES))
        calls.append(attacker.call(request(Descriptor(tuple(entries)))))
    await attacker.send(b"".join(calls))


@attack("calls of as many descriptors and entries as are read, all of which are matched")
async def matched_entries(attacker: Attacker) -> None:
    depth = MAX_ENTRIES // MAX_DESCRIPTORS
    for number in range(4):
        values = (f"{number}-{each}" for each in range(MAX_DESCRIPTORS))
        descriptors = (Descriptor(tuple(Entry(key, value) for key in "abcd")) for value in values)
        assert depth == len("abcd")
        await attacker.send(attacker.call(request(*descriptors)))


@attack("calls of as many entries as there is room for")
async def most_entries(attacker: Attacker) -> None:
    entries = (Entry("u", "") for _ in range(11_000))
    message = request(Descriptor(tuple(entries)))
    for _ in range(4):
        await attacker.send(attacker.call(message))


@attack("calls of as many empty descriptors as there is room for")
async def empty_descriptors(attacker: Attacker) -> None:
    message = request(*(Descriptor(()) for _ in range(32_000)))
    for _ in range(4):
        await attacker.send(attacker.call(message))


@attack("long values that metrics would show")
async def shown_values(attacker: Attacker) -> None:
    for number in range(8):
        entry = Entry("shown", f"{number}" + "x" * 60_000)
        await attacker.send(attacker.call(request(Descriptor((entry,)))))


@attack("many large messages")
async def large_messages(attacker: Attacker) -> None:
    calls = [
        attacker.call(request(Descriptor((Entry("user", f"{number}" + "x" * 60_000),))))
        for number in range(64)
    ]
    await attacker.send(b"".join(calls))


@attack("small messages that unpack to large ones")
async def packed(attacker: Attacker) -> None:
    message = gzip.compress(bytes(65_536), 9)
    message = b"\1" + len(message).to_bytes(4, "big") + message
    block = head(DECIDE, ("grpc-encoding", "gzip"))
    await attacker.send(b"".join(attacker.call(message, block) for _ in range(500)))


@attack("many reflection requests in a frame", {SettingId.INITIAL_WINDOW_SIZE: 0})
async def reflection(attacker: Attacker) -> None:
    asked = prefixed(b"\x22" + bytes((len(SERVICE),)) + SERVICE.encode())
    await attacker.send(attacker.headers(head(REFLECT)))
    for _ in range(4):
        await attacker.send(
            frames.frame(FrameType.DATA, 0, attacker.stream_id, asked * (16_000 // len(asked)))
        )


@attack("calls that are reset at once")
async def rapid_reset(attacker: Attacker) -> None:
    await attacker.send(
        b"".join(
            attacker.call(users(1)) + frames.rst_stream(attacker.stream_id, ErrorCode.CANCEL)
            for _ in range(5_000)
        )
    )


@attack("calls that make the server reset them")
async def made_you_reset(attacker: Attacker) -> None:
    await attacker.send(
        b"".join(
            attacker.call(users(1)) + frames.window_update(attacker.stream_id, 0)
            for _ in range(5_000)
        )
    )


@attack("frames of priorities and of unknown kinds")
async def odd_frames(attacker: Attacker) -> None:
    unknown = bytearray(frames.frame(FrameType.PING, 0, 0, b"12345678"))
    unknown[3] = 0xBB
    priority = frames.frame(FrameType.PRIORITY, 0, 3, bytes(3) + b"\1\x10")
    await attacker.send((bytes(unknown) + priority) * 5_000)


@attack("calls that end with many trailers of their own")
async def trailers(attacker: Attacker) -> None:
    for number in range(16):
        more = [(f"x-{each}", f"{number}") for each in range(400)]
        call = attacker.call(users(1), end=False)
        block = head(DECIDE, *more)
        end = frames.frame(FrameType.HEADERS, END_HEADERS | END_STREAM, attacker.stream_id, block)
        await attacker.send(call + end)


@attack("calls with absurd timeouts and encodings of their own")
async def absurd_headers(attacker: Attacker) -> None:
    timeouts = ("99999999H", "1x", "", "9" * 300 + "S", "-1S", "00000001u")
    encodings = ("gzip", "deflate", "", "x" * 1_000, "gzip,gzip")
    await attacker.send(
        b"".join(
            attacker.call(
                users(1),
                head(
                    DECIDE,
                    ("grpc-timeout", timeouts[number % len(timeouts)]),
                    ("grpc-encoding", encodings[number % len(encodings)]),
                    ("x-own", f"{number}"),
                ),
            )
            for number in range(1_000)
        )
    )


@attack("many open reflection streams, asked in turn")
async def open_reflection(attacker: Attacker) -> None:
    asked = prefixed(b"\x22" + bytes((len(SERVICE),)) + SERVICE.encode())
    first = attacker.stream_id + 2
    await attacker.send(b"".join(attacker.headers(head(REFLECT)) for _ in range(900)))
    streams = range(first, attacker.stream_id + 1, 2)
    await attacker.send(b"".join(frames.frame(FrameType.DATA, 0, at, asked) for at in streams))


@interpreted
@pytest.mark.parametrize("name", ATTACKS)
async def test_turns(tmp_path: Path, name: str) -> None:
    """No turn is longer than some 5 ms, whatever one client sends."""
    act, announced = ATTACKS[name]

    async with Siege(tmp_path) as siege:
        attacker = await siege.attacker(announced)
        attacker.longest_turn = 0
        await act(attacker)
        assert attacker.longest_turn < MAX_TURN


@interpreted
@pytest.mark.parametrize("setting", [*SettingId, 99])
def test_settings_of_one_frame(setting: int) -> None:
    """A frame cannot be parted, so one with as many settings as it can hold takes little time."""
    entries = setting.to_bytes(2, "big") + (1 if setting == 2 else 20_000).to_bytes(4, "big")
    client = Client()
    client.settle()

    with Lines() as lines:
        client.connection.receive(frames.frame(FrameType.SETTINGS, 0, 0, entries * 2_730))

    assert not client.connection.closing
    assert lines.count < MAX_FRAME


async def test_many_connections(tmp_path: Path) -> None:
    """What many clients send at the same moment is not handled in one turn, but in theirs."""
    async with Siege(tmp_path) as siege:
        attackers = [await siege.attacker() for _ in range(20)]
        for number, attacker in enumerate(attackers):
            attacker.push(attacker.call(users(256, number << 8)))
        in_turns: list[int] = []
        while sum(in_turns) < len(attackers):
            await asyncio.sleep(0)
            in_turns.append(sum(attacker.hears() for attacker in attackers))

    assert max(in_turns) <= 8


def in_two_frames(attacker: Attacker, message: bytes) -> bytes:
    """A call whose message comes in two DATA frames."""
    head_and_first = attacker.call(message[:100], end=False)
    rest = frames.frame(FrameType.DATA, END_STREAM, attacker.stream_id, message[100:])
    return head_and_first + rest


@pytest.mark.parametrize("make", [Attacker.call, in_two_frames])
async def test_many_connections_with_short_descriptors(
    tmp_path: Path, make: Callable[[Attacker, bytes], bytes]
) -> None:
    """A call of many descriptors is planned in a turn of its own, and counted in another.

    Also if each message is short, if it comes in parts, and if many clients make such calls
    together.
    """
    async with Siege(tmp_path) as siege:
        attackers = [await siege.attacker() for _ in range(20)]
        before, in_turns, answered = siege.steps, [], 0
        for number, attacker in enumerate(attackers):
            attacker.push(make(attacker, short(250, number * 250)))
        while answered < len(attackers):
            await asyncio.sleep(0)
            in_turns.append(siege.steps - before)
            answered += sum(attacker.hears() for attacker in attackers)
            before = siege.steps

    assert sum(in_turns) == 2 * len(attackers)
    assert max(in_turns) == 1


async def test_small_calls_beside_many_descriptors(tmp_path: Path) -> None:
    """Beside calls of many descriptors a client with small ones is answered after a few turns."""
    async with Siege(tmp_path) as siege:
        attackers = [await siege.attacker() for _ in range(20)]
        honest = await siege.attacker()
        for number, attacker in enumerate(attackers):
            attacker.push(attacker.call(short(250, number * 250)))
        for number in range(10):
            await asyncio.sleep(0)
            honest.push(honest.call(users(1, number)))
            steps = siege.steps
            while not honest.hears():
                await asyncio.sleep(0)
            assert siege.steps - steps <= 5


async def test_a_store_is_given_one_large_call_at_a_time(tmp_path: Path) -> None:
    """While a store counts many descriptors it gets small calls, and no more large ones."""
    async with Siege(tmp_path) as siege:
        attackers = [await siege.attacker() for _ in range(5)]
        honest = await siege.attacker()
        kept = siege.counters.kept = []
        for number, attacker in enumerate(attackers):
            attacker.push(attacker.call(short(250, number * 250)))
        answered = 0
        while answered < len(attackers):
            while not kept:
                await asyncio.sleep(0)
            honest.push(honest.call(users(1)))
            while not honest.hears():
                await asyncio.sleep(0)
            (charge,) = kept
            kept.clear()
            charge()
            while not any(attacker.hears() for attacker in attackers):
                await asyncio.sleep(0)
            answered += 1
