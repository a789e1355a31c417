"""What can be set: by flag, by `RATELIMIT_…`, by envoyproxy/ratelimit's names, by an image.

The only package that reads the environment. Who starts a process imports `environment`, `reference`
and `translation`. They are not named here, since a worker is handed its settings.
"""

from ratelimit_service.settings.declared import Settings, settings
from ratelimit_service.settings.setting import Setting
from ratelimit_service.settings.values import (
    ADMIN_ADDRESS_BY_DEFAULT,
    DEFAULT_ADMIN,
    split_pairs,
)
from ratelimit_service.text.addresses import redacted, split_address, unix_path
from ratelimit_service.text.durations import duration_text, parse_duration

__all__ = [
    "ADMIN_ADDRESS_BY_DEFAULT",
    "DEFAULT_ADMIN",
    "Setting",
    "Settings",
    "duration_text",
    "parse_duration",
    "redacted",
    "settings",
    "split_address",
    "split_pairs",
    "unix_path",
]
