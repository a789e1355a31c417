"""How values of envoyproxy/ratelimit's variables are turned into values of our settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from posixpath import normpath

from ratelimit_service.errors import SettingsError
from ratelimit_service.settings.declared import Settings, settings
from ratelimit_service.settings.otel_reference import otel_of
from ratelimit_service.settings.redis_reference import second_store_of, store_of
from ratelimit_service.settings.reference import REFERENCE, Treatment, is_service_link, set_in
from ratelimit_service.settings.values import checked, is_on
from ratelimit_service.text.addresses import split_address

__all__ = ["from_reference"]

_TLS = ("tls_cert", "tls_key", "tls_client_ca", "tls_client_san")

_XDS_TLS = ("xds_tls_ca", "xds_tls_cert", "xds_tls_key", "xds_tls_name")

_RUNTIME = {
    "RUNTIME_ROOT": "/srv/runtime_data/current",
    "RUNTIME_SUBDIRECTORY": "",
    "RUNTIME_APPDIRECTORY": "config",
}


_ANY_HOST = "0.0.0.0"  # noqa: S104 -- what the reference means by no host

_DEBUG = ("DEBUG_HOST", "DEBUG_PORT", "RUNTIME_ROOT", "CONFIG_TYPE")
"""What opens the debug port, or shows that the service is in the reference's place."""


def from_reference(environ: Mapping[str, str]) -> dict[str, str]:
    """The values that envoyproxy/ratelimit's environment names stand for, by field name.

    Raises SettingsError for what this service cannot stand in for.
    """
    environ = {
        name: stripped
        for name, value in environ.items()
        if (stripped := value if name.endswith("AUTH") else value.strip())
        and not is_service_link(name, value)
    }
    _refuse(environ)
    parsers = {setting.name: setting.parse for setting in settings()}
    values = {
        variable.settings[0]: checked(
            variable.name, environ[variable.name], parsers[variable.settings[0]]
        )
        for variable in REFERENCE
        if variable.as_is and variable.name in environ
    }
    if not is_on(environ, "GRPC_SERVER_USE_TLS"):
        for name in _TLS:
            values.pop(name, None)
    if not is_on(environ, "CONFIG_GRPC_XDS_SERVER_USE_TLS"):
        for name in _XDS_TLS:
            values.pop(name, None)
    values |= _addresses(environ)
    values |= _metrics(environ)
    values |= otel_of(environ)
    if any(name in environ for name in _RUNTIME):
        parts = (environ.get(name, default) for name, default in _RUNTIME.items())
        values["rules"] = normpath(re.sub("/+", "/", "/".join(filter(None, parts))))
    if environ.get("CONFIG_TYPE", "").lower() == "grpc_xds_sotw":
        server = environ.get("CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000")
        values["rules"] = f"xds://{checked('CONFIG_GRPC_XDS_SERVER_URL', server, split_address)}"
    if store := store_of(environ):
        values["store"] = store
        if second := second_store_of(environ):
            values["second_store"] = second
    return values


def _refuse(environ: Mapping[str, str]) -> None:
    for variable, name, value in set_in(environ):
        if variable.treatment is Treatment.REFUSED and value.lower() not in variable.allowed:
            raise SettingsError(f"{name}={value} is not supported: {variable.text}")


def _addresses(environ: Mapping[str, str]) -> dict[str, str]:
    values = {}
    for name, host, port in (("http", "HOST", "PORT"), ("grpc", "GRPC_HOST", "GRPC_PORT")):
        if host in environ or port in environ:
            values[name] = _address(environ, host, port, str(getattr(Settings(), name)))
    if path := environ.get("GRPC_UDS"):
        values["grpc"] = f"unix:{path}"
    if any(environ.get(name) for name in _DEBUG):
        values["debug"] = _address(environ, "DEBUG_HOST", "DEBUG_PORT", "0.0.0.0:6070")
    return values


def _metrics(environ: Mapping[str, str]) -> dict[str, str]:
    values: dict[str, str] = {}
    if is_on(environ, "DISABLE_STATS"):
        return values
    dog = is_on(environ, "USE_DOG_STATSD")
    if dog or is_on(environ, "USE_STATSD"):
        values["statsd"] = _address(environ, "STATSD_HOST", "STATSD_PORT", "localhost:8125")
    if dog:
        values["statsd_format"] = "dogstatsd"
    if is_on(environ, "USE_PROMETHEUS"):
        text = environ.get("PROMETHEUS_ADDR") or ":9090"
        text = _ANY_HOST + text if text.startswith(":") else text
        values["reference_metrics"] = checked("PROMETHEUS_ADDR", text, split_address)
    return values


def _address(environ: Mapping[str, str], host: str, port: str, default: str) -> str:
    """An address whose parts are variables of their own."""
    default_host, default_port = split_address(default)
    address = environ.get(host) or default_host
    address = f"[{address}]" if ":" in address else address
    text = f"{address}:{environ.get(port) or default_port}"
    return checked(f"{host} and {port}", text, split_address)
