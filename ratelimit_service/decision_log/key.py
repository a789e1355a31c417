"""The secret key that values in the decision log are hashed with."""

from __future__ import annotations

from functools import partial
from typing import Final

from ratelimit_service.decision_log.line import HashValue, hashed_value
from ratelimit_service.errors import SettingsError
from ratelimit_service.files.whole_file import read_whole

__all__ = ["hash_of", "read_key"]

_LEAST_KEY: Final = 16


def read_key(path: str) -> bytes | None:
    """The key in a file; None if no file is named. Raises SettingsError."""
    if not path:
        return None
    try:
        key = read_whole(path).strip()
    except OSError as error:
        raise SettingsError(f"the key file {path} cannot be read: {error.strerror}") from error
    if len(key) < _LEAST_KEY:
        raise SettingsError(
            f"the key in {path} has {len(key)} bytes, and must have {_LEAST_KEY} or more: "
            "write one with openssl rand -hex 32"
        )
    return key


def hash_of(key: bytes | None) -> HashValue | None:
    """What hashes values with a key; None without one."""
    return None if key is None else partial(hashed_value, key)
