"""What is wrong where YAML cannot be read, for the person who wrote it.

YAML tells where it could not go on, which is often behind the mistake, and in words of its own.
"""

from __future__ import annotations

import re
from itertools import islice

import yaml

__all__ = ["lines_of", "slip"]

_LINE_END = re.compile("\\r\\n|[\\n\\r\\x85\\u2028\\u2029]")

_ENCLOSES = re.compile("flow|quoted")
"""YAML's words for what has a sign at its beginning and one at its end."""

_SCANNED = re.compile("alias|anchor|tag|directive")
"""YAML's words for what begins with a sign with which a text can begin only in quotes."""

_LEVEL = "lines of one level begin at the same column"

_SAID = (
    ("did not find expected node content", "a value must stand here"),
    ("did not find expected key", f"a key must stand here: {_LEVEL}"),
    ("did not find expected '-'", f"a - must stand here: {_LEVEL}"),
    ("did not find expected ',' or ']'", "a comma must stand here, or the ] of this list"),
    ("did not find expected ',' or '}'", "a comma must stand here, or the } of this mapping"),
    ("did not find expected <document start>", f"nothing may stand here: {_LEVEL}"),
    ("did not find expected comment", "only a comment or the end of the line may stand here"),
    ("did not find expected alphabetic", "a name of letters, digits, - and _ must stand here"),
    ("did not find expected hexdecimal", "behind \\x, \\u and \\U must stand hexadecimal digits"),
    ("mapping values are not allowed", f"no key may stand here: a line has one, and {_LEVEL}"),
    ("block sequence entries are not allowed", "a list must begin on a line of its own"),
    ("could not find expected ':'", "behind a key must stand a colon and a space"),
    ("found unexpected end of stream", "the file ends before it"),
    ("found unexpected document", "a line --- or ... ends the document before it"),
    ("found character that cannot start", "no value may begin with this character"),
    ("found undefined alias", "no anchor (&) has this name"),
    ("found unknown escape", "this is no escape: write two backslashes for one"),
)
"""How YAML's words begin, and ours."""

_SIGNS = "*&!%@`"

_WORD = re.compile(r"([^\s,\[\]{}'\\]{2,60})[ \t]*(?:[,\]}]|[ \t]#|$)", re.MULTILINE)
"""A text of one word, with nothing behind it but what ends it."""

_NO_SPACE = re.compile(r"[ \t]*(?:- +)*([\w.-]+):(?!.*:(?:\s|$))([^\s/:][^\s,}]*)")
"""A line that lacks the space between a key and its value, and so is one text."""


def lines_of(text: str) -> list[str]:
    """The lines of a file, as YAML counts them."""
    return _LINE_END.split(text)


def slip(error: yaml.MarkedYAMLError, text: str) -> tuple[int, str]:
    """The place of the character that is wrong, as far as that can be told, and what is wrong.

    At the end of a text that is where began what does not end: there is what has to be mended.
    """
    last = max(len(text.rstrip()) - 1, 0)
    at = error.problem_mark.index if error.problem_mark else last
    what = str(error.problem or error.context)
    words = next((ours for theirs, ours in _SAID if what.startswith(theirs)), what)
    if text[at : at + 1] == "\t":  # which editors show as spaces
        return at, "a tab: YAML wants spaces"
    began = error.context_mark.index if error.context_mark else at
    if fault := _unquoted(text, began if _SCANNED.search(error.context or "") else at, words):
        return fault
    if fault := _no_space(text, began if "expected ':'" in what else at, what):
        return fault
    if at <= last:
        return at, words
    if began < at and _ENCLOSES.search(error.context or ""):
        return began, f"what begins here does not end: {words}"
    return last, words


def _unquoted(text: str, at: int, what: str) -> tuple[int, str] | None:
    """A text that stands without quotes, and begins with a sign of YAML's."""
    sign = text[at : at + 1]
    if not sign or sign not in _SIGNS:
        return None
    word = _WORD.match(text, at)
    example = f", as '{word[1]}'" if word else ""
    return at, f"{what}: a text that begins with {sign} must stand in quotes{example}"


def _no_space(text: str, at: int, what: str) -> tuple[int, str] | None:
    """A colon without a space behind it.

    What YAML wonders about is what comes next, since the line with the colon is a text.
    """
    *begins, here = [0, *(each.end() for each in _LINE_END.finditer(text, 0, at))]
    if "expected ':'" in what:
        candidates = [(here, lines_of(text[here:])[0])]
    elif "mapping values" in what or "document start" in what:
        ends = [*begins, here][1:]
        above = (
            (begin, lines_of(text[begin:end])[0])
            for begin, end in zip(reversed(begins), reversed(ends), strict=True)
        )
        lines = (each for each in above if each[1].partition("#")[0].strip())
        candidates = list(islice(lines, 1))
    else:
        return None
    for begin, line in candidates:
        if parts := _NO_SPACE.match(line):
            value = "…" if parts[2][0] in "[{" else parts[2]
            message = f"a colon wants a space behind it, as '{parts[1]}: {value}'"
            return begin + parts.end(1), message
    return None
