"""What asks others: a service, its admin listener, or a management server.

`sync` and `why` ask a service, `admin` its admin listener, and `xds` a management server for rules.
"""

from ratelimit_service.client.sync import Client, ClientTLS
from ratelimit_service.client.why import overrides_of, why_not_counted

__all__ = ["Client", "ClientTLS", "overrides_of", "why_not_counted"]
