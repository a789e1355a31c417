"""The files with which a connection is encrypted, whatever it carries."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ratelimit_client.errors import LimiterError

__all__ = ["TLS"]


@dataclass(frozen=True, slots=True)
class TLS:
    """PEM files: the authorities that vouch for the service, and our own certificate and key."""

    ca: str | Path | None = None
    cert: str | Path | None = None
    key: str | Path | None = None

    def contents(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Authorities, key and certificate. Raises LimiterError for what cannot be read."""
        try:
            ca, key, cert = (
                Path(path).read_bytes() if path else None for path in (self.ca, self.key, self.cert)
            )
        except OSError as error:
            raise LimiterError(f"{error.filename} cannot be read: {error.strerror}") from error
        return ca, key, cert
