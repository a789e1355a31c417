"""TLS on the gRPC port: which files, and what each transport makes of them."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import grpc

from ratelimit_service.errors import SettingsError
from ratelimit_service.settings import Settings

__all__ = ["TLS"]


_OF_SERVERS = ssl.PROTOCOL_TLS_SERVER


@dataclass(frozen=True, slots=True)
class TLS:
    """PEM files: the server's certificate (with its chain) and key, and whom clients must be.

    With `client_ca` a client needs a certificate of one of its authorities, and of no other; with
    `client_san` only one that is for this name.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None
    client_san: str = ""

    @classmethod
    def of(cls, settings: Settings) -> TLS | None:
        """What the settings ask for. Raises SettingsError for files that cannot be used."""
        given = (settings.tls_cert, settings.tls_key, settings.tls_client_ca)
        if not any((*given, settings.tls_client_san)):
            return None
        if not (settings.tls_cert and settings.tls_key):
            raise SettingsError("TLS needs both --tls-cert FILE and --tls-key FILE")
        if settings.tls_client_san and not settings.tls_client_ca:
            raise SettingsError(
                "--tls-client-san needs --tls-client-ca FILE: else no caller shows a certificate"
            )
        if settings.tls_client_san and settings.transport != "h2":
            raise SettingsError(
                "--tls-client-san needs --transport h2: grpcio cannot ask what certificates are for"
            )
        authorities = Path(settings.tls_client_ca) if settings.tls_client_ca else None
        tls = cls(
            Path(settings.tls_cert), Path(settings.tls_key), authorities, settings.tls_client_san
        )
        tls.context()  # grpcio would only say later, and to the client, that it cannot use them
        return tls

    def context(self) -> ssl.SSLContext:
        """For asyncio. HTTP/2 alone is offered (ALPN, RFC 7301). Raises SettingsError."""
        context = _Narrowed(self.client_san) if self.client_san else ssl.SSLContext(_OF_SERVERS)
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


class _Narrowed(ssl.SSLContext):
    """Of the clients whose certificates hold it takes those whose are for one name."""

    san: str

    def __new__(cls, san: str) -> _Narrowed:
        context = super().__new__(cls, _OF_SERVERS)
        context.san = san
        context.sslobject_class = _NarrowedConnection
        return context

    def __init__(self, _: str) -> None:
        super().__init__()


class _NarrowedConnection(ssl.SSLObject):
    """A connection whose handshake fails if the client's certificate is for somebody else."""

    def do_handshake(self) -> None:
        """Goes on with the handshake. Raises ssl.SSLError if it fails."""
        super().do_handshake()
        context = self.context
        assert isinstance(context, _Narrowed)  # noqa: S101 -- only that one makes these
        if not _is_for(self.getpeercert() or {}, context.san):
            raise ssl.SSLCertVerificationError(f"the certificate is not for {context.san!r}")


def _is_for(certificate: Mapping[str, object], name: str) -> bool:
    """Whether a name is among a certificate's subject alternative names (RFC 5280 4.2.1.6)."""
    listed = certificate.get("subjectAltName", ())
    assert isinstance(listed, tuple)  # noqa: S101 -- as Python's ssl has it
    return any(_is_same(kind, text, name) for kind, text in listed)


def _is_same(kind: str, text: str, name: str) -> bool:
    if kind == "URI":
        return text == name
    if kind == "IP Address":
        try:
            return ip_address(text.strip()) == ip_address(name)
        except ValueError:
            return False
    if kind != "DNS":
        return False
    mine, asked = (each.lower().rstrip(".").split(".") for each in (text, name))
    if mine[0] == "*" and len(mine) > 1:  # for one label (RFC 6125 6.4.3)
        return mine[1:] == asked[1:]
    return mine == asked
