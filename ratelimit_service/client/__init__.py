"""What asks the service: so far what `ratelimit hit` needs."""

from ratelimit_service.client.sync import Client, ClientTLS

__all__ = ["Client", "ClientTLS"]
