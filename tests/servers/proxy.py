"""A TCP proxy with faults, in a test's own loop or as a process.

`python -m tests.servers.proxy LISTEN TARGET` is told what to do by lines: `delay MS` holds back
everything for so long; `hold` lets nothing through, and closes nothing; `cut` passes half of
the next reply on and resets the connection; `clear` ends all of it.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import sys

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of no time: a socket that is closed resets its connection."""


class Proxy:
    """Passes bytes on to a port of this machine, and does what its attributes say."""

    def __init__(self, target: int) -> None:
        self.target = target
        """The port that new connections lead to."""
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()
        self.delay_seconds = 0.0
        self.hold = False
        self.cut = False
        self.trickle = False
        """Whether replies come a byte at a time, with pauses."""
        self.lose: re.Pattern[bytes] | None = None
        """A reply in which this is found gets lost, with its connection and all new ones."""
        self.instead = b""
        """What the client gets in place of that reply."""
        self.drop: re.Pattern[bytes] | None = None
        """What a client sends in which this is found gets lost, as a reply with `lose` does."""
        self.surplus = b""
        """What the client gets before the next reply, once."""
        self.last_reply = b""
        self.accepted = 0
        """How many connections have come."""
        self._refuse = False
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def refuse(self) -> bool:
        """Whether every connection is closed, and new ones as soon as they come."""
        return self._refuse

    @refuse.setter
    def refuse(self, refuse: bool) -> None:
        self._refuse = refuse
        if refuse:
            for writer in self._writers:
                writer.close()

    async def start(self, port: int = 0) -> int:
        """Listens; returns the port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for pump in list(self._pumps):
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    def clear(self) -> None:
        self.delay_seconds, self.hold, self.cut, self.trickle = 0.0, False, False, False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self._refuse:
            writer.close()
            return
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        for pump in (
            self._pump(reader, back, replies=False),
            self._pump(there, writer, replies=True),
        ):
            task = asyncio.create_task(pump)
            self._pumps.add(task)
            task.add_done_callback(self._pumps.discard)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, replies: bool
    ) -> None:
        """Passes on what comes, each piece after the delay, in order."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def read() -> None:
            try:
                while data := await reader.read(1 << 16):
                    queue.put_nowait((loop.time() + self.delay_seconds, data))
            except ConnectionError:
                pass
            queue.put_nowait((0.0, b""))

        reading = asyncio.create_task(read())
        self._writers.add(writer)
        try:
            while True:
                due, data = await queue.get()
                await asyncio.sleep(due - loop.time())
                while self.hold:
                    await asyncio.sleep(0.01)
                if replies and self.cut and data:
                    self.cut = False
                    writer.write(data[: len(data) // 2])
                    found: socket.socket = writer.get_extra_info("socket")
                    found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                    data = b""
                if replies and self.lose and self.lose.search(data):
                    writer.write(self.instead)
                    self.lose, self.refuse = None, True
                    return
                if not replies and self.drop and self.drop.search(data):
                    self.drop, self.refuse = None, True
                    return
                if not data:
                    return
                if replies:
                    self.last_reply = data
                    data, self.surplus = self.surplus + data, b""
                while replies and self.trickle and data:
                    writer.write(data[:1])
                    data = data[1:]
                    await asyncio.sleep(0.01)
                writer.write(data)
        finally:
            reading.cancel()
            writer.close()
            self._writers.discard(writer)


async def obey(proxy: Proxy, port: int) -> None:
    """Does what standard input says, until it ends."""
    await proxy.start(port)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
    )
    while words := (await lines.readline()).decode().split():
        if words[0] == "delay":
            proxy.delay_seconds = float(words[1]) / 1_000
        elif words[0] == "hold":
            proxy.hold = True
        elif words[0] == "cut":
            proxy.cut = True
        else:
            proxy.clear()


if __name__ == "__main__":
    asyncio.run(obey(Proxy(int(sys.argv[2])), int(sys.argv[1])))
