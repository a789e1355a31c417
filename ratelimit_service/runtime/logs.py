"""How the process logs: one line per event on standard error, as text or JSON."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

__all__ = ["configure"]

_OURS = "ratelimit_service"
_TEXT = "%(asctime)s %(levelname)s %(message)s"


class _JSONFormatter(logging.Formatter):
    """One JSON object a line, with envoyproxy/ratelimit's names."""

    def __init__(self, worker: int) -> None:
        super().__init__()
        self._worker = worker

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "@timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "@message": record.getMessage(),
            "level": record.levelname.lower(),
        }
        if self._worker:
            line["worker"] = str(self._worker)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def configure(level: str, form: str, worker: int = 0) -> None:
    """Sends the log to standard error; `level` is a `logging` name, `form` text or json.

    A worker's lines have its number. Of the libraries only warnings are logged and what is
    worse, whatever the level: what they do is told by our own lines.
    """
    handler = logging.StreamHandler()
    text = _TEXT.replace("%(message)s", f"worker {worker}: %(message)s") if worker else _TEXT
    handler.setFormatter(_JSONFormatter(worker) if form == "json" else logging.Formatter(text))
    ours = logging.getLogger(_OURS)
    ours.setLevel(level.upper())
    logging.basicConfig(level=max(logging.WARNING, ours.level), handlers=[handler], force=True)
