"""Signals that come while one program image takes the place of another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from textwrap import dedent

import pytest

from tests.waiting import PATIENCE_SECONDS

NEXT = dedent(
    """
    import asyncio, sys
    from ratelimit_service.runtime.signals import Signals, end_requested

    async def nothing(): ...

    async def main():
        noted, signals = end_requested(int(sys.argv[1])), Signals(nothing, nothing)
        for _ in range(5):  # a signal is seen by the loop's second round at the earliest
            await asyncio.sleep(0)
        print("told to end" if noted or signals.end_requested else "not told to end")

    asyncio.run(main())
    """
)
"""The next program image."""

THIS = dedent(
    f"""
    import asyncio, os, signal, sys, threading
    from ratelimit_service.runtime.signals import Signals, hold_signals

    async def nothing(): ...

    async def main():
        signals = Signals(nothing, nothing)
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        noted = hold_signals()
        await asyncio.sleep(0)
        os.kill(os.getpid(), int(sys.argv[1]))
        while signal.sigpending():  # until the other thread has got it
            pass
        os.set_inheritable(noted, True)
        os.execv(sys.executable, [sys.executable, "-c", {NEXT!r}, str(noted)])

    asyncio.run(main())
    """
)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_signal_to_another_thread(name: str) -> None:
    """A signal to end that comes just before the next image takes over is known to that one."""
    assert came(signal.Signals[name]) == "told to end\n"


def test_other_signals_are_no_wish_to_end() -> None:
    """The next image reads the rules anyway: nothing is left to do for a reload."""
    assert came(signal.SIGHUP) == "not told to end\n"


def came(number: signal.Signals) -> str:
    """What the next image says after this signal has come to the one before it."""
    done = subprocess.run(
        [sys.executable, "-c", THIS, str(int(number))],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=PATIENCE_SECONDS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return done.stdout


STARTING = dedent(
    """
    import os, signal, sys
    import ratelimit_service.runtime.app as app
    from ratelimit_service.cli import main

    def serve(settings, remarks):
        for number in (signal.SIGHUP, signal.SIGUSR2):
            os.kill(os.getpid(), number)
        print(*sorted(each.name for each in signal.sigpending()))
        return 0

    app.serve = serve
    sys.argv = ["ratelimit", "serve"]
    main()
    """
)
"""A service to which others speak before it hears them."""


def test_a_reload_while_it_starts_does_not_end_it() -> None:
    """A signal that comes before there is a handler for it waits for that."""
    done = subprocess.run(
        [sys.executable, "-c", STARTING],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=PATIENCE_SECONDS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )

    assert done.stdout == "SIGHUP SIGUSR2\n"
