"""How the process logs: one line per event on standard error, as text or JSON.

Callers choose some of the words in it, and can cause lines as fast as they like. So characters that
do not print are escaped, and each place in our code may write only so many lines.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from ratelimit_service.eventloop.clock import elapsed_us
from ratelimit_service.text.display import printable

__all__ = ["configure"]

_OURS = "ratelimit_service"

_BURST = 1_000
_EACH_US = 100_000
"""How many lines one place in the code may write at once, and how soon each further one comes."""


class _TextFormatter(logging.Formatter):
    """Time, level and message on a line; a traceback's lines are indented below it."""

    def __init__(self, worker: int) -> None:
        super().__init__()
        self._worker = f"worker {worker}: " if worker else ""

    def format(self, record: logging.LogRecord) -> str:
        lines = [
            f"{self.formatTime(record)} {record.levelname} {self._worker}{_message(record)}",
            *(f"  {printable(line)}" for line in _traceback(self, record).split("\n") if line),
        ]
        return "\n".join(lines)


class _JSONFormatter(logging.Formatter):
    """One JSON object a line, with envoyproxy/ratelimit's names, and what else an event tells."""

    def __init__(self, worker: int) -> None:
        super().__init__()
        self._worker = worker

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "@timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "@message": _message(record),
            "level": record.levelname.lower(),
        }
        if self._worker:
            line["worker"] = str(self._worker)
        line |= {name: value for name, value in _fields(record).items() if name not in line}
        if exception := _traceback(self, record):
            line["exception"] = exception
        return json.dumps(line)


def _message(record: logging.LogRecord) -> str:
    left_out: int = getattr(record, "left_out", 0)
    more = f" ({left_out} more like this were left out)" if left_out else ""
    return printable(record.getMessage()) + more


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """What an event tells beside its sentence: who logs it gives `extra={"fields": …}`."""
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, dict) else {}


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return formatter.formatException(record.exc_info) if record.exc_info else ""


class _Bounded(logging.Filter):
    """Leaves out what one place in the code writes too often; the next line says how much."""

    def __init__(self) -> None:
        super().__init__()
        self._free_at_us: dict[tuple[str, int], int] = {}
        """When each place will have its whole burst again."""
        self._left_out: dict[tuple[str, int], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write a line. Debug lines are all written: whoever asks for them wants all."""
        if record.levelno < logging.INFO:
            return True
        line = record.pathname, record.lineno
        now_us = elapsed_us()
        free_at_us = max(now_us, self._free_at_us.get(line, now_us)) + _EACH_US
        if free_at_us > now_us + _BURST * _EACH_US:
            self._left_out[line] = self._left_out.get(line, 0) + 1
            return False
        self._free_at_us[line] = free_at_us
        record.left_out = self._left_out.pop(line, 0)
        return True


def configure(level: str, form: str, worker: int = 0) -> None:
    """Sends the log to standard error; `level` is a `logging` name, `form` text or json.

    A worker's lines have its number. Of the libraries only warnings
    and worse are logged, at any level: our own lines say what they do.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_JSONFormatter(worker) if form == "json" else _TextFormatter(worker))
    handler.addFilter(_Bounded())
    ours = logging.getLogger(_OURS)
    ours.setLevel(level.upper())
    logging.basicConfig(level=max(logging.WARNING, ours.level), handlers=[handler], force=True)
