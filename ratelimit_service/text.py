"""Text of others, made fit for a terminal, a log and a header; and numbers with their nouns."""

from __future__ import annotations

__all__ = ["count", "printable"]


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
