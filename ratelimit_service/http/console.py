"""The console's files: a page, its style and its scripts, as they lie in `console_page`.

They come from nowhere else, and the page may run and show nothing else: callers' values are text.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

__all__ = ["PAGE_HEADERS", "ConsoleFile", "console_files"]

_DIRECTORY = Path(__file__).with_name("console_page")

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'"
    ),
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class ConsoleFile(NamedTuple):
    """One file, as it is sent."""

    content: bytes
    content_type: str


def console_files() -> dict[str, ConsoleFile]:
    """Every file by its path; the page is at `/`."""
    files = {}
    for file in sorted(_DIRECTORY.iterdir()):
        path = "/" if file.name == "index.html" else f"/console/{file.name}"
        files[path] = ConsoleFile(file.read_bytes(), _TYPES[file.suffix])
    return files
