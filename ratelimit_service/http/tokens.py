"""Tokens for the admin listener: read from a file, and compared.

A line is `ROLE TOKEN`, and may end with a name for the audit: `write 0f3c… alice`. Empty lines and
those that begin with # are none. What must not live here: what a role may do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ratelimit_service.errors import SettingsError
from ratelimit_service.files.whole_file import read_whole
from ratelimit_service.http.route import Role
from ratelimit_service.http.session import same

__all__ = ["Token", "read_tokens", "token_of"]

_LEAST_CHARACTERS = 16


class Token(NamedTuple):
    """What somebody shows to be let in. `text` is secret."""

    role: Role
    name: str
    text: str


def read_tokens(path: str) -> tuple[Token, ...]:
    """The tokens in a file. Raises SettingsError, which names no token."""
    try:
        lines = read_whole(path).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SettingsError(f"--admin-token-file {path} cannot be read: {why}") from error
    tokens = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        tokens.append(_token(words, f"{path}:{number}"))
    if not tokens:
        raise SettingsError(f"--admin-token-file {path} has no token: write `read TOKEN` lines")
    if len({token.text for token in tokens}) < len(tokens):
        raise SettingsError(f"--admin-token-file {path} has the same token twice")
    return tuple(tokens)


def _token(words: Sequence[str], where: str) -> Token:
    if len(words) not in {2, 3} or words[0] not in list(Role):
        raise SettingsError(
            f"{where}: a line is `read TOKEN` or `write TOKEN`, and a name may stand behind"
        )
    role, text, name = words[0], words[1], words[2] if len(words) == 3 else f"{words[0]} token"
    if len(text) < _LEAST_CHARACTERS or not (text.isascii() and text.isprintable()):
        raise SettingsError(
            f"{where}: a token has {_LEAST_CHARACTERS} printable ASCII characters or more: "
            "write one with openssl rand -hex 32"
        )
    return Token(Role(role), name, text)


def token_of(tokens: Sequence[Token], text: str) -> Token | None:
    """The token with this text, if there is one; how long it takes says nothing of them."""
    matching = [token for token in tokens if same(text, token.text)]
    return matching[0] if matching else None
