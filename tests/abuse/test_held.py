"""What one client leaves behind has a bound: bodies, answers, streams, and what is logged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ratelimit_service.grpc.h2 import frames
from ratelimit_service.grpc.h2.frames import ErrorCode, FrameType, SettingId
from ratelimit_service.grpc.h2.limits import HELD_BYTES
from ratelimit_service.wire import SERVICE
from tests.abuse.siege import REFLECT, Attacker, Siege, head, prefixed

MAX_HELD_BYTES = HELD_BYTES * 9 // 8
"""What a connection may make us keep, and an eighth more for what is not counted."""


async def test_answers_that_are_not_read(tmp_path: Path) -> None:
    """Answers that a client asks for and does not take are held up to a bound."""

    async def attack(attacker: Attacker) -> None:
        asked = prefixed(b"\x22" + bytes((len(SERVICE),)) + SERVICE.encode())
        chunk = asked * (16_000 // len(asked))
        await attacker.send(attacker.headers(head(REFLECT)))
        for _ in range(40):  # 640 KB that ask for 70 MB
            if attacker.closed or attacker.stalled:
                break
            await attacker.send(frames.frame(FrameType.DATA, 0, attacker.stream_id, chunk))

    zero = {SettingId.INITIAL_WINDOW_SIZE: 0}
    async with Siege(tmp_path) as siege:
        assert await siege.held_bytes(attack, zero) < MAX_HELD_BYTES


async def test_messages_that_never_end(tmp_path: Path) -> None:
    """Messages of which the last byte does not come are held up to a bound."""

    async def attack(attacker: Attacker) -> None:
        for _ in range(900):
            if attacker.closed or attacker.stalled:
                break
            part = (65_536).to_bytes(5, "big") + bytes(65_000)
            await attacker.send(attacker.call(part, end=False))

    async with Siege(tmp_path) as siege:
        assert await siege.held_bytes(attack) < MAX_HELD_BYTES


async def test_streams_that_the_server_resets(tmp_path: Path) -> None:
    """A client that makes the server reset its streams is told to calm down, as for its own."""
    malformed = head("/", ("connection", "close"))
    resets: dict[str, Callable[[Attacker], bytes]] = {
        "malformed headers": lambda attacker: attacker.headers(malformed),
        "no window": lambda attacker: (
            attacker.headers() + frames.window_update(attacker.stream_id, 0)
        ),
        "more after the end": lambda attacker: (
            attacker.headers()
            + frames.frame(FrameType.DATA, 1, attacker.stream_id, bytes(5))
            + frames.frame(FrameType.DATA, 0, attacker.stream_id, b"more")
        ),
        "a priority of itself": lambda attacker: (
            attacker.headers()
            + frames.frame(
                FrameType.PRIORITY,
                0,
                attacker.stream_id,
                attacker.stream_id.to_bytes(4, "big") + b"\0",
            )
        ),
    }
    async with Siege(tmp_path) as siege:
        for name, make in resets.items():
            attacker = await siege.attacker()

            await attacker.send(b"".join(make(attacker) for _ in range(5_000)))

            assert attacker.goaway == ErrorCode.ENHANCE_YOUR_CALM, name
            attacker.close()
