"""What asks the service: so far what `ratelimit hit` needs."""

from ratelimit_service.client.sync import Client, ClientTLS
from ratelimit_service.client.why import overrides_of, why_not_counted

__all__ = ["Client", "ClientTLS", "overrides_of", "why_not_counted"]
