"""What `ratelimit serve` runs: a supervisor with workers."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Coroutine, Sequence
from typing import Any

from ratelimit_service.errors import SettingsError
from ratelimit_service.net.listening import check_possible
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.processes.low_priority import NICENESS
from ratelimit_service.rules.load import LoadPolicy, Rules
from ratelimit_service.rules.sources import source_of
from ratelimit_service.runtime import logs
from ratelimit_service.runtime.admin_port import check_tokens
from ratelimit_service.runtime.certificates import check_certificates
from ratelimit_service.runtime.cpus import usable_cpus
from ratelimit_service.runtime.process import raise_file_limit, run
from ratelimit_service.runtime.sole_worker import why_one_worker
from ratelimit_service.runtime.stores import open_store
from ratelimit_service.runtime.supervisor import supervise
from ratelimit_service.settings import Settings
from ratelimit_service.settings.environment import inherited
from ratelimit_service.telemetry.otlp import check_installed

__all__ = ["check", "serve", "workers"]

log = logging.getLogger(__name__)

_END_SECONDS = 1.0
"""How long threads may still work when all has ended."""


def serve(settings: Settings, remarks: Sequence[str] = ()) -> int:
    """Serves until a signal ends it; returns the exit code of the process, which it then ends soon.

    `remarks` are lines for the log, of settings that were given and have no effect.

    SIGTERM and SIGINT drain (a second one ends at once), SIGHUP reloads the rules, SIGUSR2
    replaces the workers. Raises RateLimitError for what the user must mend before anything can
    be served.
    """
    logs.configure(settings.log_level, settings.log_format)
    for line in remarks:
        log.warning("%s", line)
    check_installed(settings)
    raise_file_limit()
    return run(_ending(supervise(settings, workers(settings), inherited())))


async def _ending(serving: Coroutine[Any, Any, int]) -> int:
    """Serves, and then sees to it that the process ends.

    Else it would wait for threads that read from a disk that is away, or wait for a `--check`.
    """
    code = await serving
    late = threading.Timer(_END_SECONDS, os._exit, [code])
    late.daemon = True
    late.start()
    return code


def check(settings: Settings) -> Rules:
    """The rules that `serve` would start with; opens no port and connects to nothing.

    Raises RateLimitError if `serve` would fail. It does not see that a port is taken by others.
    """
    # A service may be deciding beside the check. A check that was started nicer stays so.
    niceness = max(os.getpriority(os.PRIO_PROCESS, 0), NICENESS)
    os.setpriority(os.PRIO_PROCESS, 0, niceness)
    workers(settings)
    check_installed(settings)
    check_certificates(settings)
    check_tokens(settings)
    for kind, address in (("gRPC", settings.grpc), ("Admin", settings.admin)):
        check_possible(address, kind)
    return run(_check(settings))


async def _check(settings: Settings) -> Rules:
    stats, health = Stats(), Health()
    await open_store(settings, stats, health).store.close()
    source = source_of(settings)
    rules = Rules(
        source, stats=stats, health=health, policy=LoadPolicy(strict=settings.strict_rules)
    )
    rules.load()
    return rules


def workers(settings: Settings) -> int:
    """How many workers the started process has: one at least.

    Raises SettingsError if there cannot be as many as were asked for.
    """
    why = why_one_worker(settings)
    if not why:
        return settings.workers or usable_cpus().number
    if settings.workers > 1:
        raise SettingsError(f"--workers {settings.workers} {why}")
    return 1
