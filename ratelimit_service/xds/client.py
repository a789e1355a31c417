"""The program that asks a management server for rules, in a process of its own.

It is the state of the world over ADS: the server sends all resources at once, and each response
is answered, with an ACK or with a NACK that says why. Its parent (`rules/from_xds.py`) gives it
its task and says what became of a snapshot; what rules mean is not known here. What comes while
its parent is busy takes the place of what has not been handed on yet.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import ssl
import sys
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any, NamedTuple

import grpc
from grpc import aio

from ratelimit_service import __version__
from ratelimit_service.errors import BadRequestError
from ratelimit_service.eventloop.backoff import Backoff
from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.files.whole_file import read_whole
from ratelimit_service.observability.log_throttle import LogThrottle
from ratelimit_service.processes.low_priority import NICENESS
from ratelimit_service.processes.pipes import framed
from ratelimit_service.rules.resource import resource_bytes
from ratelimit_service.wire.discovery import (
    METHOD,
    TYPE_URL,
    Response,
    decode_resource,
    decode_response,
    encode_request,
)

__all__ = ["main"]

_NACK_US = 1_000_000
"""A server answers a NACK at once with what was refused: so often one is sent at most."""

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 30.0

_EARLY_SECONDS = 1.0
"""A server that has not answered for so long after the start is spoken of."""


_KEEPALIVE_MS = 20_000
_MAX_DETAIL = 1 << 20
"""Characters in a NACK, far more than anybody reads: a server takes messages of 4 MiB."""

_MOST_SHOWN = 256
"""Characters of a version or a type in logs and problems. Each resource names its version, so that
a long one would be kept as often."""

_MOST_NAME = 1_024
"""Characters in the name of a resource. Every problem in it repeats that."""

_SAY_AGAIN_US = 60_000_000
"""How seldom a server is said to send what nobody has asked for."""

_Call = aio.StreamStreamCall[bytes, bytes]


class _LostError(Exception):
    """The stream has ended, or there was none; the text says why."""


class _Judged(NamedTuple):
    """A snapshot that the parent has looked at, and what is wrong with it."""

    response: Response
    problems: Sequence[str]


class _Client:
    """The dialogue, and what has to outlive a stream."""

    def __init__(self, task: Mapping[str, Any], verdicts: asyncio.StreamReader) -> None:
        self._task = task
        self._verdicts = verdicts
        self._judgements: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._backoff = Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        self._stamp = 0
        self._resources = _Resources()
        self._judged: _Judged | None = None
        self._latest: bytes | None = None
        """What has come and was not looked at yet."""
        self._come = asyncio.Event()
        self._received = False
        """Whether something has come on this stream."""
        self._nacked_us = -_NACK_US
        self._unrequested = LogThrottle(_SAY_AGAIN_US)
        """When the log last said that something came that nobody has asked for."""
        self._why = "it has not answered yet"
        self._away: asyncio.TimerHandle | None = None
        self._reported_early = False
        """Whether something has come, or it was said why not."""

    async def run(self) -> None:
        """Asks for ever."""
        self._doubt()
        asyncio.get_running_loop().call_later(_EARLY_SECONDS, self._report_early)
        while True:
            self._received = False
            try:
                await self._converse()
            except (_LostError, OSError, aio.AioRpcError, aio.UsageError) as error:
                self._why = _reason(error)
                if self._received:
                    await self._log(logging.WARNING, f"lost {self._location}: {self._why}")
                else:
                    self._report_early()
                self._doubt()
            await asyncio.sleep(self._backoff.next_seconds())

    @property
    def _location(self) -> str:
        return f"xds://{self._task['address']}"

    # One stream

    async def _converse(self) -> None:
        self._latest, version = None, ""
        self._come.clear()
        async with self._channel() as channel:
            call: _Call = channel.stream_stream(METHOD)(
                metadata=[(name.lower(), value) for name, value in self._task["headers"].items()]
            )
            reading = asyncio.create_task(self._read(call))
            try:
                await self._write(call, "", "", ())
                self._why = "it is connected, but silent"
                while True:
                    response = await self._next(reading)
                    problems = await self._judge(response)
                    if not problems:
                        version = response.version
                    elif await self._newer_in_time():
                        continue  # what is newer is answered instead
                    else:
                        self._nacked_us = elapsed_us()
                    await self._write(call, version, response.nonce, problems)
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
                call.cancel()

    async def _read(self, call: _Call) -> None:
        """Takes what comes, however fast. Raises _LostError at the end of the stream."""
        while True:
            data = await call.read()
            if not isinstance(data, bytes):
                raise _LostError(await _ended(call))
            self._latest = data
            self._come.set()

    async def _next(self, reading: asyncio.Task[None]) -> Response:
        """The newest response that has come. Raises what ended the reading, if it has ended."""
        while True:
            coming = asyncio.create_task(self._come.wait())
            await asyncio.wait([coming, reading], return_when=asyncio.FIRST_COMPLETED)
            coming.cancel()
            if self._latest is None:
                reading.result()
                continue
            data, self._latest = self._latest, None
            self._come.clear()
            try:
                response = decode_response(data)
            except BadRequestError as error:
                raise _LostError(f"what it sends is no DiscoveryResponse: {error}") from error
            if response.type_url == TYPE_URL:
                return response
            if self._unrequested.take():
                kind = response.type_url[:_MOST_SHOWN]
                text = f"{self._location} sends {kind!r}, which nobody has asked for"
                await self._log(logging.WARNING, text)

    async def _newer_in_time(self) -> bool:
        """Waits until a NACK may be sent; whether something newer has come before."""
        wait_us = self._nacked_us + _NACK_US - elapsed_us()
        if wait_us > 0:
            try:
                async with asyncio.timeout(wait_us / 1_000_000):
                    await self._come.wait()
            except TimeoutError:
                return False
            return True
        return False

    async def _write(self, call: _Call, version: str, nonce: str, problems: Sequence[str]) -> None:
        refused = "\n".join(problems)
        if len(refused) > _MAX_DETAIL:
            refused = f"{refused[:_MAX_DETAIL]}…\n{len(problems)} problems in all"
        request = encode_request(
            self._task["node"],
            self._task["metadata"],
            ("ratelimit-service", __version__),
            version=version,
            nonce=nonce,
            refused=refused,
        )
        try:
            await call.write(request)
        except (asyncio.InvalidStateError, aio.UsageError) as error:
            raise _LostError(await _ended(call)) from error

    def _channel(self) -> aio.Channel:
        """A connection of its own, with TLS files as they are now. Raises OSError for these."""
        options: list[tuple[str, str | int]] = [
            ("grpc.enable_http_proxy", 0),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", self._task["max_message_bytes"]),
            ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
            ("grpc.http2.max_pings_without_data", 0),
        ]
        tls = self._task["tls"]
        if tls is None:
            return aio.insecure_channel(self._task["address"], options)
        if tls["name"]:
            options.append(("grpc.ssl_target_name_override", tls["name"]))
        authorities = tls["ca"] or ssl.get_default_verify_paths().cafile
        content = [
            read_whole(name) if name else None for name in (authorities, tls["key"], tls["cert"])
        ]
        credentials = grpc.ssl_channel_credentials(*content)
        return aio.secure_channel(self._task["address"], credentials, options)

    # The parent

    async def _judge(self, response: Response) -> Sequence[str]:
        """Hands a snapshot on, waits until it is in force or refused, and returns why not."""
        self._note_received()
        same = self._judged is not None and (
            (response.version, response.resources)
            == (self._judged.response.version, self._judged.response.resources)
        )
        self._stamp += 1
        parts = await asyncio.to_thread(self._resources.parts, response, self._stamp, same=same)
        await asyncio.to_thread(_say, parts)
        while True:
            verdict = await self._judgements.get()
            if verdict["stamp"] == self._stamp:
                self._judged = _Judged(response, verdict["problems"])
                return self._judged.problems

    async def listen(self) -> None:
        """Takes verdicts, until the parent is gone."""
        while line := await self._verdicts.readline():
            self._judgements.put_nowait(json.loads(line))

    async def _log(self, level: int, text: str) -> None:
        await asyncio.to_thread(_say, [_head(kind="log", level=level, text=text)])

    def _note_received(self) -> None:
        """Something has come: the server is there."""
        self._received = self._reported_early = True
        self._backoff.reset()
        if self._away is not None:
            self._away.cancel()
            self._away = None

    def _doubt(self) -> None:
        """Nothing comes: if that goes on, the parent is told."""
        if self._away is None:
            loop = asyncio.get_running_loop()
            self._away = loop.call_later(self._task["away_seconds"], self._report_away)

    def _report_early(self) -> None:
        """Says once, soon after the start, that nothing has come yet, and why."""
        if not self._reported_early:
            self._reported_early = True
            text = f"nothing has come from {self._location} yet: {self._why}; it goes on asking"
            _say([_head(kind="log", level=logging.WARNING, text=text)])

    def _report_away(self) -> None:
        _say([_head(kind="away", why=self._why)])
        self._away = None
        self._doubt()


async def _ended(call: _Call) -> str:
    """Why a stream has ended."""
    code, details = await call.code(), await call.details()
    return f"{code.name}: {details}" if details else code.name


def _reason(error: BaseException) -> str:
    if isinstance(error, aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename} cannot be read: {error.strerror}"
    return str(error) or type(error).__name__


class _Resources:
    """Resources as the parent is told of them; one that has come before is not decoded again."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, bytes], tuple[bytes, bytes]] = {}
        """Name and rules of those that came last, by type and bytes."""

    def parts(self, response: Response, stamp: int, *, same: bool) -> list[bytes]:
        """What is said of a snapshot; one that the parent has had already is not sent again."""
        if same:
            return [_head(kind="again", stamp=stamp)]
        parts: list[bytes] = []
        unread, version = "", response.version[:_MOST_SHOWN]
        known = {}
        for number, resource in enumerate(response.resources, 1):
            try:
                name, content = known[resource] = self._known.get(resource) or _decoded(*resource)
            except BadRequestError as error:
                unread = unread or f"resource {number} of version {version}: {error}"
                continue
            parts += [name, resource_bytes(version, content)]
        self._known = known
        head = _head(
            kind="snapshot",
            stamp=stamp,
            version=version,
            resources=len(parts) // 2,
            unread=unread,
        )
        return [head, *parts]


def _decoded(type_url: str, data: bytes) -> tuple[bytes, bytes]:
    """A resource's name, and what a rule file would say, in JSON. Raises BadRequestError."""
    name, values = decode_resource(type_url, data)
    name = name or values["domain"]
    if len(name) > _MOST_NAME:
        text = f"its name has {len(name):,} characters: at most {_MOST_NAME:,} are allowed"
        raise BadRequestError("malformed", text)
    return name.encode(), json.dumps(values).encode()


def _head(**values: object) -> bytes:
    return json.dumps(values).encode()


_saying = Lock()


def _say(parts: Sequence[bytes]) -> None:
    with _saying:
        for part in parts:
            sys.stdout.buffer.write(framed(part))
        sys.stdout.buffer.flush()


async def _main() -> None:
    verdicts = asyncio.StreamReader(limit=2 * _MAX_DETAIL)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(verdicts), sys.stdin
    )
    task = json.loads(await verdicts.readline() or "null")
    if task is not None:
        client = _Client(task, verdicts)
        ways = [asyncio.create_task(client.listen()), asyncio.create_task(client.run())]
        done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for ended in done:
            ended.result()


def main() -> None:
    """The process: its task is the first line that it is told, verdicts are the others."""
    os.nice(NICENESS)  # decisions come first, however fast a server sends rules
    asyncio.run(_main())
    sys.stdout.flush()
    os._exit(0)  # at once: a thread may still write to a parent that is gone
