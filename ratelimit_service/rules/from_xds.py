"""Rules from a management server (xDS): the client's process as its parent sees it.

The client (`xds/client.py`) is a program of its own, so that grpc is in no process that starts
others, and that nothing of what a server sends is decoded beside decisions. It sends each resource
as `resource` keeps it, and is told what became of them.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

from ratelimit_service.errors import RulesError, SettingsError
from ratelimit_service.eventloop.slices import SLICE, pause
from ratelimit_service.files.scratch import scratch
from ratelimit_service.files.whole_file import read_whole
from ratelimit_service.processes.pipes import ChildProcess, end, read_frame, start
from ratelimit_service.rules.build import Language
from ratelimit_service.rules.files import read_rule_files
from ratelimit_service.rules.overlay import parse_overlay
from ratelimit_service.rules.problem import Problem
from ratelimit_service.rules.source import FileProblems, LastGoodFiles, RuleSource, SourceContent
from ratelimit_service.settings import Settings, split_address, split_pairs
from ratelimit_service.text.display import printable, reason

__all__ = ["FromXds"]

log = logging.getLogger(__name__)

_CLIENT = "ratelimit_service.xds.client"
_RESOURCE: Language = "resource"
_OVERLAY: Language = "overlay"

_AGAIN_SECONDS = 1.0
"""How long to wait before a client that has ended is started again."""

_AWAY_SECONDS = 30.0
"""How long a server may be silent on a new stream, or away, before its rules are said to be old."""

_FETCH_SECONDS = 15.0
"""How long a server that is asked only once has to send its rules, from when the client asks."""

_START_SECONDS = 5.0
"""How long the client may take until it asks, where nobody waits for longer."""

_LOOK_SECONDS = 5.0
"""How often the overlay is looked at."""

_MAX_REPORTED = 150
_MOST_CHARACTERS = 1_000
"""So many problems are told to the server, and so much of each. The client reads them as a line of
JSON, which has no more than 2 MiB; a character has up to twelve bytes there."""


class FromXds(RuleSource):
    """The rules that one management server sends: the state of the world, over ADS."""

    leaves = True
    changes_often = True

    def __init__(self, settings: Settings) -> None:
        """Raises SettingsError for what cannot be used."""
        self.location = settings.rules
        address = settings.rules.partition("://")[2]
        split_address(address)
        self._overlay_file = settings.xds_overlay
        self._task = _task(settings, address)
        self._received: _Received | None = None
        """None before the server has sent anything."""
        self._read: tuple[SourceContent, int] | None = None
        """What was read last, and its stamp."""
        self._client_input: IO[bytes] | None = None
        self._process: ChildProcess | None = None
        self._fault = ""
        self._away = ""
        """Why nothing came from the server, when the client last said so."""

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Raises SettingsError for an address or files that cannot be used."""
        return cls(settings)

    def first(self, former: LastGoodFiles | None) -> SourceContent | None:
        """What a former program was sent, if there was one. Raises RulesError for the overlay."""
        overlay = self._read_overlay()
        for name, data in overlay.files.items():
            for problem in parse_overlay(name, data)[1]:
                if problem.fatal(strict=False):
                    raise RulesError(f"--xds-overlay {problem}")
        for name, why in overlay.unread.items():
            raise RulesError(f"--xds-overlay {name} cannot be read: {why}")
        if former is None:
            return None
        self._received = _Received({name: text.encode() for name, text in former.items()}, {}, 0)
        return self.read()

    def read(self) -> SourceContent:
        """What was received last. Raises RulesError if that is nothing yet."""
        received = self._received
        if received is None:
            raise RulesError(f"no rules have come from {self.location} yet")
        overlay = self._read_overlay()
        content = SourceContent(
            received.files | overlay.files,
            received.unread | overlay.unread,
            dict.fromkeys(received.files, _RESOURCE) | dict.fromkeys(overlay.files, _OVERLAY),
        )
        self._read = content, received.stamp
        return content

    def fetch(self) -> SourceContent:
        """Asks the server. Raises RulesError if nothing has come in time."""
        self.first(None)
        self._task["away_seconds"] = _FETCH_SECONDS
        return asyncio.run(self._fetched())

    async def _fetched(self) -> SourceContent:
        try:
            most = _START_SECONDS + _FETCH_SECONDS
            async with asyncio.timeout(most), aclosing(self.changes()) as changes:
                async for _ in changes:
                    if self._received is not None:
                        return self.read()
                    if self._away:
                        break
        except TimeoutError:
            pass
        why = self._away or self._fault or "it has not answered yet"
        raise RulesError(
            f"{self.location} has sent nothing within {_FETCH_SECONDS:g} s: {why}; check its "
            f"address, and whether it knows the node {self._task['node']!r}"
        )

    async def changes(self) -> AsyncGenerator[str, None]:
        """Yields when the server has sent something or is away, and to look at the overlay."""
        while True:
            try:
                async with self._client() as stream, aclosing(self._messages(stream)) as faults:
                    async for fault in faults:
                        self._fault = fault
                        yield fault
            except (OSError, _ClientError) as error:
                self._fault = f"the client of {self.location} ended: {error}"
                yield self._fault
            await asyncio.sleep(_AGAIN_SECONDS)

    def end(self) -> None:
        """Ends the client."""
        if self._process is not None:
            end(self._process)

    def judged(self, content: SourceContent, verdict: FileProblems) -> None:
        """Lets the client tell the server; what is wrong with the overlay is not its business."""
        if self._read is None or self._client_input is None:
            return
        latest, stamp = self._read
        if latest is not content:
            return
        problems = [
            problem
            for name, each in verdict.items()
            for problem in each
            if (name or problem.source.file).startswith(self.location)
        ]
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, self._send_verdict, self._client_input, stamp, problems)

    def _send_verdict(self, client: IO[bytes], stamp: int, problems: list[Problem]) -> None:
        """In a thread, since they may be many, and the pipe full."""
        texts = [str(each)[:_MOST_CHARACTERS] for each in sorted(problems)[:_MAX_REPORTED]]
        if len(problems) > len(texts):
            texts.append(f"{len(problems)} problems in all")
        try:
            _send(client, {"stamp": stamp, "problems": texts})
        except (OSError, ValueError):  # it has ended, and its pipe may be closed
            log.debug("the client of %s is gone: another is started", self.location)

    def _read_overlay(self) -> SourceContent:
        if not self._overlay_file:
            return SourceContent({}, {})
        try:
            return read_rule_files(Path(self._overlay_file))
        except RulesError as error:
            return SourceContent({}, {self._overlay_file: str(error)})

    # The client's process

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[asyncio.StreamReader]:
        """A client that has its task; what it says. Raises _ClientError when it ends."""
        stderr = await asyncio.to_thread(scratch)
        process = await asyncio.to_thread(start, _CLIENT, stderr, {"GRPC_VERBOSITY": "NONE"})
        self._process = process
        try:
            assert process.stdin is not None  # noqa: S101 -- it is a pipe
            stream = asyncio.StreamReader()
            reading, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(stream), process.stdout
            )
            self._client_input = process.stdin
            _send(process.stdin, self._task)
            try:
                yield stream
            except asyncio.IncompleteReadError as error:
                raise _ClientError(
                    await asyncio.to_thread(_exit_reason, process, stderr)
                ) from error
            finally:
                self._client_input = None
                reading.close()
        finally:
            self._process = None
            await asyncio.to_thread(end, process)
            stderr.close()

    async def _messages(self, stream: asyncio.StreamReader) -> AsyncGenerator[str, None]:
        look = _LOOK_SECONDS if self._overlay_file else None
        while True:
            hearing = asyncio.ensure_future(self._message(stream))
            try:
                while not (await asyncio.wait([hearing], timeout=look))[0]:
                    if self._received is not None:
                        yield self._fault
                if (fault := hearing.result()) is not None:
                    yield fault
            finally:
                hearing.cancel()

    async def _message(self, stream: asyncio.StreamReader) -> str | None:
        """Takes in what the client says; what is to be yielded, if anything."""
        head = json.loads(await read_frame(stream))
        if head["kind"] == "away":
            self._away = printable(head["why"])
            seconds = self._task["away_seconds"]
            fault = f"nothing has come from {self.location} for {seconds:g} s: {self._away}"
            stays = "; what it has sent before stays in force" if self._received else ""
            return fault + stays
        if head["kind"] == "log":
            log.log(head["level"], "%s", printable(head["text"]))
            return None
        files = self._received.files if self._received else {}
        unread = self._received.unread if self._received else {}
        if head["kind"] == "snapshot":
            files, unread = {}, {}
            for number in range(head["resources"]):
                name = (await read_frame(stream)).decode()
                files[f"{self.location}/{name}"] = await read_frame(stream)
                if number % SLICE == 0:
                    await pause()  # what has come already is read without waiting
            log.info(
                "%s has sent version %s: resources %d",
                self.location,
                printable(head["version"]),
                len(files),
            )
            if head["unread"]:
                unread[self.location] = head["unread"]
        self._received = _Received(files, unread, head["stamp"])
        return ""


class _Received(NamedTuple):
    """What the server has sent last. The client knows it by its stamp."""

    files: dict[str, bytes]
    unread: dict[str, str]
    stamp: int


class _ClientError(Exception):
    """The client has ended; the text says why."""


def _task(settings: Settings, address: str) -> dict[str, Any]:
    """What the client is to do, as JSON has it. Raises SettingsError for files of no use."""
    files = {"ca": settings.xds_tls_ca, "cert": settings.xds_tls_cert, "key": settings.xds_tls_key}
    for name, file in files.items():
        try:
            if file:
                read_whole(file)  # the client reads it: whoever names it wrongly is told at once
        except OSError as error:
            raise SettingsError(
                f"--xds-tls-{name} {file} cannot be read: {reason(error)}"
            ) from error
    if bool(settings.xds_tls_cert) != bool(settings.xds_tls_key):
        raise SettingsError("a client certificate takes --xds-tls-cert FILE and --xds-tls-key FILE")
    if "/" in settings.xds_tls_name:
        raise SettingsError(
            f"--xds-tls-name {settings.xds_tls_name}: write a DNS name or an IP address; "
            "other names cannot be asked for"
        )
    tls = settings.xds_tls or settings.xds_tls_name or any(files.values())
    return {
        "address": address,
        "away_seconds": _AWAY_SECONDS,
        "node": settings.xds_node_id,
        "metadata": split_pairs(settings.xds_node_metadata),
        "headers": split_pairs(settings.xds_headers),
        "tls": {**files, "name": settings.xds_tls_name} if tls else None,
        "max_message_bytes": settings.xds_max_message_bytes or -1,
    }


def _send(pipe: IO[bytes], value: object) -> None:
    pipe.write(json.dumps(value).encode() + b"\n")
    pipe.flush()


def _exit_reason(process: ChildProcess, stderr: IO[bytes]) -> str:
    code = process.wait()
    stderr.seek(0)
    lines = stderr.read().decode("utf-8", "replace").strip().splitlines()
    return printable(lines[-1]) if lines else f"exit code {code}"
