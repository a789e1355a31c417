"""What is wrong where JSON cannot be read, for the person who wrote it.

Python's reader says it for people who write in Python.
"""

from __future__ import annotations

import json
from typing import Final

__all__ = ["json_slip"]

_SAID: Final = (
    ("Expecting property name", "a name in double quotes must stand here"),
    ("Illegal trailing comma", "no comma may stand before the end of an object or a list"),
    ("Expecting ':'", "a colon must stand here, between a name and its value"),
    ("Expecting ','", "a comma must stand here, or the end of the object or list"),
    (
        "Expecting value",
        "a value must stand here: an object, a list, a text in double quotes, a number, true, "
        "false or null",
    ),
    ("Extra data", "nothing may stand behind the value"),
    ("Unterminated string", "the text that begins here has no double quote at its end"),
    ("Invalid control character", "a line end or tab in a text must be written as \\n or \\t"),
    ("Invalid \\u", "\\u must have four hexadecimal digits behind it"),
    ("Invalid \\", 'behind a backslash must stand one of " \\ / b f n r t u'),
)
"""How Python's words begin, and ours."""

_BYTE_ORDER_MARK: Final = "\ufeff"


def json_slip(error: ValueError | RecursionError, *, one_line: bool = False) -> str:
    """What Python's reader of JSON has found, in our words and with its place.

    Where the text is `one_line` of a file, whoever asks tells which.
    """
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    if isinstance(error, UnicodeError):
        return "it has text that is no UTF-8"
    if not isinstance(error, json.JSONDecodeError):
        return "a number has too many digits"
    what = next((ours for theirs, ours in _SAID if error.msg.startswith(theirs)), error.msg)
    if error.doc.startswith(_BYTE_ORDER_MARK) and not error.pos:
        what = "a byte order mark stands here: leave it out"
    position = f"column {error.colno}" if one_line else f"line {error.lineno}, column {error.colno}"
    return f"{position}: {what}"
