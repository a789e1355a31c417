"""Text of others, made fit for a terminal, a log and a header; and numbers with their nouns."""

from __future__ import annotations

import re

__all__ = ["count", "printable", "reason"]

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


def reason(error: BaseException) -> str:
    """What went wrong, in words: without the numbers and marks that systems put around it."""
    if isinstance(error, OSError):
        # TLS has these: a reason in capitals, and what is wrong with a certificate.
        found = [getattr(error, name, "") for name in ("reason", "verify_message")]
        told = [each for each in found if isinstance(each, str) and each]
        if told:
            words = [each.replace("_", " ").lower() if each.isupper() else each for each in told]
            return printable(": ".join(words))
        if error.strerror:
            return printable(_MARKS.sub("", error.strerror))
    return printable(_MARKS.sub("", str(error)) or type(error).__name__)
