"""Commands, run as a user does, and what they leave."""

from __future__ import annotations

import os
import subprocess

from tests.cli.inside import inside
from tests.servers.service import COMMAND
from tests.waiting import PATIENCE_SECONDS

RULES = """domain: demo
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 2, name: per-user}}
  - {key: free, rate_limit: {unlimited: true}}
  - key: vip
    rate_limit: {unit: year, requests_per_unit: 9, replaces: [{name: per-user}]}
  - {key: at_once, rate_limit: {unit: minute, requests_per_unit: 1, algorithm: concurrency}}
  - key: burst
    rate_limit: {unit: hour, requests_per_unit: 3, burst: 9, algorithm: token_bucket}
"""


class Ran:
    """What a run of a command has left that serves nobody, in this process."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        result = inside(*arguments, environment={**os.environ, **environment})
        self.code, self.out, self.err = result


class RanApart(Ran):
    """The same in a process of its own."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        done = subprocess.run(
            [COMMAND, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
            env={**os.environ, **environment},
        )
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr
