"""Where something stands, as text for people: in a file, and in a domain's tree (and back)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

from ratelimit_service.text.display import printable

__all__ = ["MatcherName", "Source", "matcher_name", "parse_path", "path_text"]

_PLAIN = re.compile(r"[\w*./:@+~-]+")
_MOST_IN_NAME = 3
"""Texts of a list that a matcher's name shows."""
_DIGEST_BYTES = 8


class Source(NamedTuple):
    """Where in the rule files something stands; line and column count from 1."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        file = printable(self.file)
        return f"{file}:{self.line}:{self.column}" if self.line else file


class MatcherName(str):
    """What stands for a matcher where an exact value would stand: `prefix(/api)`.

    Paths show it as it is, and a value that reads the same in quotes.
    """

    __slots__ = ()


def matcher_name(key: str, *texts: str) -> MatcherName:
    """The name of what the files write as `key: text`, or as `key: [text, text]`.

    It holds no `*`, as every wildcard does. Of a long list it has the first texts, how many more
    there are, and a digest of all.
    """
    shown = texts[:_MOST_IN_NAME]
    if "*" in (joined := "".join(shown)) or not _PLAIN.fullmatch(joined) or "" in shown:
        listed = [_within_name(text) for text in shown]
    else:  # as nearly always
        listed = list(shown)
    if len(texts) > _MOST_IN_NAME:
        whole = "".join(f"{len(text)}:{text}" for text in sorted(texts))
        digest = blake2b(whole.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES)
        listed.append(f"+{len(texts) - _MOST_IN_NAME}#{digest.hexdigest()}")
    return MatcherName(f"{key}({','.join(listed)})")


def _within_name(text: str) -> str:
    quoted = _quoted(text)
    return _in_quotes(text).replace("*", "\\u002a") if "*" in quoted else quoted


def path_text(entries: Sequence[tuple[str, str]]) -> str:
    """A node's place in its tree for people: `user=bob > path=/login > plan`.

    Text that would be ambiguous is quoted, so that no two nodes of a domain read the same.
    """
    return " > ".join(
        f"{_quoted(key)}={_quoted(value)}" if value else _quoted(key) for key, value in entries
    )


def _quoted(text: str) -> str:
    if isinstance(text, MatcherName) or _PLAIN.fullmatch(text):
        return text
    return _in_quotes(text)


def _in_quotes(text: str) -> str:
    return printable(json.dumps(text, ensure_ascii=False))


def parse_path(text: str) -> list[tuple[str, str]]:
    """The entries that `path_text` has written. What it had to escape stays escaped."""
    return [(_unquoted(key), _unquoted(value)) for key, _, value in _PART.findall(text) if key]


_WORD = r'((?:"(?:[^"\\]|\\.)*"|[^ ="])*)'
_PART = re.compile(rf"{_WORD}(=?){_WORD}(?: > |$)")


def _unquoted(text: str) -> str:
    if not text.startswith('"'):
        return text
    try:
        return str(json.loads(text))
    except ValueError:  # it holds what does not print, and is escaped otherwise than in JSON
        return text.strip('"')
