"""How the process logs: one line per event on standard error, as text or JSON."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

__all__ = ["configure"]

_TEXT = "%(asctime)s %(levelname)s %(message)s"


class _JSONFormatter(logging.Formatter):
    """One JSON object a line, with envoyproxy/ratelimit's names."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "@timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "@message": record.getMessage(),
            "level": record.levelname.lower(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def configure(level: str, form: str) -> None:
    """Sends the log to standard error; `level` is a `logging` name, `form` text or json."""
    handler = logging.StreamHandler()
    handler.setFormatter(_JSONFormatter() if form == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
