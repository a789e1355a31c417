"""A real Chromium without a window, that opens files of ours and is told what to do.

It is spoken to over a pipe, in the DevTools protocol: JSON messages that end with a NUL.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import PATIENCE_SECONDS

__all__ = ["Chromium", "chromium_command"]


def chromium_command() -> str:
    """Its path. Skips the test where there is none, and fails it where CI is set."""
    for name in ("chromium", "chromium-browser"):
        if found := shutil.which(name):
            return found
    message = "chromium is missing: sh tests/get-chromium.sh"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


def _high(pipe: tuple[int, int]) -> tuple[int, int]:
    """The same with numbers that are in nobody's way; closed in children."""
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in pipe]
    for end in pipe:
        os.close(end)
    return high[0], high[1]


class Chromium:
    """One page, without a network; with `local` it reaches this machine's loopback interface."""

    def __init__(self, directory: Path, *, local: bool = False) -> None:
        self.faults: list[str] = []
        """What went wrong in pages: errors of scripts, and everything that the console said."""
        self._last = 0
        self._rest = b""
        self._session = ""
        self._loaded = False
        # The pipes are its descriptors 3 and 4. Nothing but files and loopback can be reached.
        command = [chromium_command(), "--headless", "--no-sandbox", "--disable-gpu"]
        command += ["--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-pipe"]
        command += [f"--user-data-dir={directory / 'chromium'}", "--proxy-server=127.0.0.1:9"]
        if not local:
            command += ["--proxy-bypass-list=<-loopback>"]
        (read, to), (from_, write) = _high(os.pipe()), _high(os.pipe())
        self._pid = os.posix_spawn(
            command[0],
            command,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, read, 3),
                (os.POSIX_SPAWN_DUP2, write, 4),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ],
        )
        os.close(read)
        os.close(write)
        self._to, self._from = os.fdopen(to, "wb", 0), os.fdopen(from_, "rb", 0)
        # A browser that hangs is ended, and so is the wait for its answer.
        self._watch = threading.Timer(PATIENCE_SECONDS, os.kill, (self._pid, signal.SIGKILL))
        self._watch.start()
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self._ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._ask(f"{domain}.enable")

    def open(self, page: Path, width: int = 1200, height: int = 900, *, dark: bool = False) -> None:
        """Opens a file, and waits until it is there with its scripts."""
        self.visit(page.resolve().as_uri(), width, height, dark=dark)

    def visit(self, url: str, width: int = 1200, height: int = 900, *, dark: bool = False) -> None:
        """The same of a page at an address."""
        self.resize(width, height, dark=dark)
        self._loaded = False
        self._ask("Page.navigate", url=url)
        while not self._loaded:
            self._message()

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """Shows the page on another screen."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._ask("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", features=[scheme])

    def run(self, script: str) -> Any:
        """The value of a script in the page, which may be a promise."""
        done = self._ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def press(self, selector: str) -> None:
        """Presses a thing in the page with the mouse, where it is seen."""
        x, y = self.run(
            f"(() => {{ const thing = document.querySelector({json.dumps(selector)});"
            "thing.scrollIntoView({block: 'center'}); const box = thing.getBoundingClientRect();"
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            pressed = {"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1}
            self._ask("Input.dispatchMouseEvent", **pressed)

    def type(self, text: str) -> None:
        """Presses keys; a tab and a return do what they do."""
        for key in text:
            named = {"\t": ("Tab", 9), "\r": ("Enter", 13)}.get(key, (key, 0))
            pressed = {"key": named[0], "windowsVirtualKeyCode": named[1]}
            if key != "\t":
                pressed["text"] = key
            for kind in ("keyDown", "keyUp"):
                self._ask("Input.dispatchKeyEvent", type=kind, **pressed)

    def picture(self, path: Path) -> None:
        """Writes what is seen of the page into a PNG file, without scroll bars."""
        self._ask("Emulation.setScrollbarsHidden", hidden=True)
        path.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot")["data"]))

    def close(self) -> None:
        """Ends it."""
        self._watch.cancel()
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._from.close()
        self._to.close()

    def _ask(self, method: str, **parameters: object) -> dict[str, Any]:
        self._last += 1
        message: dict[str, object] = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._to.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self._last:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = self._from.read(1 << 16)
            assert more, "chromium has ended"
            self._rest += more
        text, self._rest = self._rest.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        self._loaded |= message.get("method") == "Page.loadEventFired"
        if message.get("method") in (
            "Runtime.exceptionThrown",
            "Runtime.consoleAPICalled",
            "Log.entryAdded",
        ):
            self.faults.append(text.decode())
        return message
