"""TLS on the ports: which files, and what each transport makes of them."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from ratelimit_service.errors import SettingsError
from ratelimit_service.files.renewed import Renewed
from ratelimit_service.files.whole_file import read_whole
from ratelimit_service.net.pem import load_pair
from ratelimit_service.observability.health import Health
from ratelimit_service.observability.stats import Stats
from ratelimit_service.settings import Settings
from ratelimit_service.text.display import reason

__all__ = ["TLS", "TLSFiles"]


_OF_SERVERS = ssl.PROTOCOL_TLS_SERVER


@dataclass(frozen=True, slots=True)
class TLS:
    """What was in the PEM files: the server's certificate (with its chain) and key.

    With `client_ca` a client needs a certificate of one of its authorities, and of no other; with
    `client_san` only one that is for this name. `protocols` are offered (ALPN, RFC 7301).
    """

    cert: bytes
    key: bytes = field(repr=False)
    client_ca: bytes | None = None
    client_san: str = ""
    protocols: tuple[str, ...] = ("h2",)

    def context(self) -> ssl.SSLContext:
        """For asyncio. Raises OSError or ValueError for what cannot be used."""
        context = _Narrowed(self.client_san) if self.client_san else ssl.SSLContext(_OF_SERVERS)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.protocols:
            context.set_alpn_protocols(self.protocols)
        load_pair(context, self.cert, self.key)
        if self.client_ca is not None:
            context.load_verify_locations(cadata=self.client_ca.decode("ascii", "ignore"))
            context.verify_mode = ssl.CERT_REQUIRED
        return context


@dataclass(frozen=True, slots=True)
class TLSFiles:
    """The PEM files of a port, and the flags that name them."""

    cert: Path
    key: Path
    client_ca: Path | None = None
    client_san: str = ""
    flags: str = "--tls"
    protocols: tuple[str, ...] = ("h2",)

    @classmethod
    def of_grpc(cls, settings: Settings) -> TLSFiles | None:
        """What the settings ask for on the gRPC port. Raises SettingsError if that is not whole."""
        files = cls._named(
            "TLS",
            "--tls",
            settings.tls_cert,
            settings.tls_key,
            settings.tls_client_ca,
            settings.tls_client_san,
            ("h2",),
        )
        if settings.tls_client_san and not settings.tls_client_ca:
            raise SettingsError(
                "--tls-client-san needs --tls-client-ca FILE: else no caller shows a certificate"
            )
        if settings.tls_client_san and settings.transport != "h2":
            raise SettingsError(
                "--tls-client-san needs --transport h2: grpcio cannot ask what certificates are for"
            )
        return files

    @classmethod
    def of_http(cls, settings: Settings) -> TLSFiles | None:
        """The same of the HTTP port."""
        return cls._named(
            "TLS on the HTTP port", "--http-tls", settings.http_tls_cert, settings.http_tls_key
        )

    @classmethod
    def of_admin(cls, settings: Settings) -> TLSFiles | None:
        """The same of the admin listener."""
        return cls._named(
            "TLS on the admin listener",
            "--admin-tls",
            settings.admin_tls_cert,
            settings.admin_tls_key,
            settings.admin_tls_client_ca,
        )

    @classmethod
    def _named(
        cls,
        what: str,
        flags: str,
        cert: str,
        key: str,
        client_ca: str = "",
        client_san: str = "",
        protocols: tuple[str, ...] = ("http/1.1",),
    ) -> TLSFiles | None:
        """The files of these names; None if there is none. Raises SettingsError without a pair."""
        if not (cert or key or client_ca or client_san):
            return None
        if not (cert and key):
            raise SettingsError(f"{what} needs both {flags}-cert FILE and {flags}-key FILE")
        authorities = Path(client_ca) if client_ca else None
        return cls(Path(cert), Path(key), authorities, client_san, flags, protocols)

    def read(self) -> TLS:
        """What the files say now. Raises SettingsError if it cannot be used."""
        cert, key = self._content("-cert", self.cert), self._content("-key", self.key)
        pair = f"{self.flags}-cert {self.cert} and {self.flags}-key {self.key}"
        try:
            tls = TLS(cert, key, None, self.client_san, self.protocols)
            tls.context()  # otherwise grpcio would find out later, and tell only the client
        except (OSError, ValueError) as error:
            raise SettingsError(f"{pair} cannot be used: {reason(error)}") from error
        if self.client_ca is None:
            return tls
        authorities = self._content("-client-ca", self.client_ca)
        try:
            tls = TLS(cert, key, authorities, self.client_san, self.protocols)
            tls.context()
        except (OSError, ValueError) as error:
            named = f"{self.flags}-client-ca {self.client_ca}"
            raise SettingsError(f"{named} cannot be used: {reason(error)}") from error
        return tls

    def _content(self, flag: str, file: Path) -> bytes:
        try:
            return read_whole(file)
        except OSError as error:
            raise SettingsError(
                f"{self.flags}{flag} {file} cannot be read: {reason(error)}"
            ) from error

    def renewed(self, component: str, health: Health, stats: Stats) -> Renewed[TLS]:
        """What they say, now and whenever they change. Raises SettingsError as `read`."""
        files = [file for file in (self.cert, self.key, self.client_ca) if file is not None]
        return Renewed(component, files, self.read, health, stats.tls_reloads)


class _Narrowed(ssl.SSLContext):
    """A context that takes only clients whose certificates are valid and are for one name."""

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
    pattern_labels, labels = (each.lower().rstrip(".").split(".") for each in (text, name))
    if pattern_labels[0] == "*" and len(pattern_labels) > 1:  # for one label (RFC 6125 6.4.3)
        return pattern_labels[1:] == labels[1:]
    return pattern_labels == labels
