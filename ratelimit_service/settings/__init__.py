"""What can be set: by flag, by `RATELIMIT_…`, by envoyproxy/ratelimit's names, by an image.

The only package that reads the environment.
"""

from ratelimit_service.settings.addresses import redacted, split_address, unix_path
from ratelimit_service.settings.declared import Settings, settings
from ratelimit_service.settings.environment import (
    HANDOVER,
    defaults,
    from_environment,
    inherited,
    remarks,
)
from ratelimit_service.settings.reference import REFERENCE, Treatment, Variable
from ratelimit_service.settings.setting import Setting
from ratelimit_service.settings.translation import from_reference
from ratelimit_service.settings.values import (
    ADMIN_ADDRESS_BY_DEFAULT,
    DEFAULT_ADMIN,
    duration_text,
    parse_duration,
    split_pairs,
)

__all__ = [
    "ADMIN_ADDRESS_BY_DEFAULT",
    "DEFAULT_ADMIN",
    "HANDOVER",
    "REFERENCE",
    "Setting",
    "Settings",
    "Treatment",
    "Variable",
    "defaults",
    "duration_text",
    "from_environment",
    "from_reference",
    "inherited",
    "parse_duration",
    "redacted",
    "remarks",
    "settings",
    "split_address",
    "split_pairs",
    "unix_path",
]
