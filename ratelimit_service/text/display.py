"""Text of others, made fit for a terminal, a log and a header; numbers and times in words."""

from __future__ import annotations

import math
import re

__all__ = ["count", "in_seconds", "is_utf8", "lasting", "printable", "reason"]

_UNITS = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s"))
_FRACTION = re.compile(r"(?<=:\d\d)\.\d+")
_MARKS = re.compile(r"\[(Errno -?\d+|SSL)\] | \(_ssl\.c:\d+\)")


def printable(text: str) -> str:
    """The text with all that does not print escaped.

    Line ends, control and bidirectional characters would forge lines or hide words; lone
    surrogates, as in names of files that are no UTF-8, cannot be written at all.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def count(number: int, noun: str) -> str:
    """A number with its noun, which takes an s for more than one."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def in_seconds(moment: str) -> str:
    """A time of RFC 3339 without the fraction of its second."""
    return _FRACTION.sub("", moment)


def lasting(seconds: float) -> str:
    """A time to come in its two largest units, rounded up: `53 s`, `14 h 41 min`."""
    whole = math.ceil(seconds)
    for unit, name, small, part in _UNITS:
        if whole >= 2 * unit:
            parts = -(-whole // small)
            rest = parts % (unit // small)
            return f"{parts * small // unit} {name}" + (f" {rest} {part}" if rest else "")
    return f"{whole} s"


def is_utf8(text: str) -> bool:
    """Whether it can be written as UTF-8: what a shell or JSON hands over need not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def reason(error: BaseException) -> str:
    """What went wrong, in words: without the numbers and marks that systems put around it."""
    if isinstance(error, OSError):
        # TLS has these: a reason in capitals, and what is wrong with a certificate.
        texts = [getattr(error, name, "") for name in ("reason", "verify_message")]
        known = [text for text in texts if isinstance(text, str) and text]
        if known:
            words = [text.replace("_", " ").lower() if text.isupper() else text for text in known]
            return printable(": ".join(words))
        if error.strerror:
            return printable(_MARKS.sub("", error.strerror))
    return printable(_MARKS.sub("", str(error)) or type(error).__name__)
