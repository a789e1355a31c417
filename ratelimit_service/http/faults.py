"""What the log says of a request that HTTP's machinery could not handle.

What a caller can cause, by sending something else than HTTP or by hanging up, is no fault of
ours: it gets its answer and a line at debug level, escaped and cut. All else keeps its traceback.
"""

from __future__ import annotations

import logging

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

__all__ = ["faults_log"]

log = logging.getLogger(__name__)

_CALLERS = (HttpProcessingError, web.RequestPayloadError, ConnectionError)

_MOST_CHARACTERS = 200


def faults_log() -> logging.Logger:
    """The logger to be given to aiohttp's server."""
    ours = logging.getLogger(f"{__name__}.ours")
    ours.addFilter(_is_ours)
    return ours


def _is_ours(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if not isinstance(error, _CALLERS):
        return True
    text = str(error) or type(error).__name__
    log.debug("a request on the HTTP port cannot be read: %r", text[:_MOST_CHARACTERS])
    return False
