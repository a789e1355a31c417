"""What starts beside others that decide gives way to them, and only while it starts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ratelimit_service.processes.low_priority import aside
from ratelimit_service.runtime.worker_process import worker_command

TOLD = "import os; print(os.getpriority(os.PRIO_PROCESS, 0))"


def niceness() -> int:
    """Of this thread."""
    return os.getpriority(os.PRIO_PROCESS, 0)


def started() -> int:
    """The niceness of a program that this thread starts."""
    done = subprocess.run([sys.executable, "-c", TOLD], capture_output=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no niceness of their own")
def test_only_the_thread_gives_way() -> None:
    """What is done aside is nice, and so is what it starts; who waits for it is not."""
    before = niceness()

    assert aside(niceness) == min(19, before + 10)
    assert aside(started) == min(19, before + 10)
    assert niceness() == before


def test_faults_are_raised_where_one_waits() -> None:
    """What goes wrong aside is told as if it had been done here."""
    with pytest.raises(ZeroDivisionError):
        aside(lambda: 1 // 0)


@pytest.mark.parametrize("beside", [False, True])
def test_a_worker_that_starts_beside_another(beside: bool) -> None:
    """It imports aside; the thread that will decide is as nice as ever."""
    code = worker_command(beside=beside)[-1]
    looked = f"""
import os, sys, threading
class Look:
    def find_spec(self, name, path=None, target=None):
        if name == "ratelimit_service.runtime.worker":
            print(os.getpriority(os.PRIO_PROCESS, 0))
sys.meta_path.insert(0, Look())
sys.argv[1:] = []
try:
    {code}
except ValueError:  # it was given no sockets
    pass
print(os.getpriority(os.PRIO_PROCESS, 0))
"""
    command = [sys.executable, "-c", looked]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    importing, deciding = map(int, result.stdout.split())

    assert deciding == niceness()
    assert importing == (min(19, niceness() + 10) if beside else niceness())
