"""TLS on the gRPC port: which files, and what each transport makes of them."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from ratelimit_service.errors import SettingsError
from ratelimit_service.settings import Settings

__all__ = ["TLS"]


@dataclass(frozen=True, slots=True)
class TLS:
    """PEM files: the server's certificate (with its chain) and key, and whom clients must be.

    With `client_ca` a client needs a certificate of one of its authorities, and of no other.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None

    @classmethod
    def of(cls, settings: Settings) -> TLS | None:
        """What the settings ask for. Raises SettingsError for files that cannot be used."""
        if not (settings.tls_cert or settings.tls_key or settings.tls_client_ca):
            return None
        if not (settings.tls_cert and settings.tls_key):
            raise SettingsError("TLS needs both --tls-cert FILE and --tls-key FILE")
        authorities = Path(settings.tls_client_ca) if settings.tls_client_ca else None
        tls = cls(Path(settings.tls_cert), Path(settings.tls_key), authorities)
        tls.context()  # grpcio would only say later, and to the client, that it cannot use them
        return tls

    def context(self) -> ssl.SSLContext:
        """For asyncio. HTTP/2 alone is offered (ALPN, RFC 7301). Raises SettingsError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["h2"])
        try:
            context.load_cert_chain(self.cert, self.key)
        except OSError as error:
            raise SettingsError(
                f"--tls-cert {self.cert} and --tls-key {self.key} cannot be used: {error}"
            ) from error
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except OSError as error:
                raise SettingsError(
                    f"--tls-client-ca {self.client_ca} cannot be used: {error}"
                ) from error
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def credentials(self) -> grpc.ServerCredentials:
        """For grpcio."""
        return grpc.ssl_server_credentials(
            [(self.key.read_bytes(), self.cert.read_bytes())],
            root_certificates=self.client_ca.read_bytes() if self.client_ca else None,
            require_client_auth=self.client_ca is not None,
        )
