"""What the reference's TRACING_* and the standard OTEL_* variables say, as values of our settings.

All other variables of OpenTelemetry are read by its own library, in the process that sends.
"""

from __future__ import annotations

from collections.abc import Mapping

from ratelimit_service.errors import SettingsError
from ratelimit_service.settings.values import INTERVAL, RATIO, checked, is_on, split_pairs

__all__ = ["otel_of"]

_OF_SERVICE = {
    "TRACING_SERVICE_NAME": "service.name",
    "TRACING_SERVICE_NAMESPACE": "service.namespace",
    "TRACING_SERVICE_INSTANCE_ID": "service.instance.id",
}

_PROTOCOLS = {"http/protobuf": "http", "http": "http", "grpc": "grpc"}


def otel_of(environ: Mapping[str, str]) -> dict[str, str]:
    """By field name. Raises SettingsError for values that cannot be used."""
    values: dict[str, str] = {}
    if is_on(environ, "OTEL_SDK_DISABLED"):
        return values
    exporter = environ.get("OTEL_TRACES_EXPORTER", "").lower()
    if exporter == "otlp" or (exporter != "none" and is_on(environ, "TRACING_ENABLED")):
        values["otel_traces"] = "true"
    if environ.get("OTEL_METRICS_EXPORTER", "").lower() == "otlp":
        values["otel_metrics"] = "true"
    if not values:
        return values  # both are off, so nobody reads the variables below
    if ratio := _ratio(environ):
        values["otel_sampling_ratio"] = ratio
    if protocol := _protocol(environ):
        values["otel_protocol"] = protocol
    if interval := environ.get("OTEL_METRIC_EXPORT_INTERVAL"):
        text = f"{interval}ms"
        values["otel_metrics_interval_us"] = checked(
            "OTEL_METRIC_EXPORT_INTERVAL", text, INTERVAL.parse
        )
    if resource := _resource(environ):
        values["otel_resource"] = resource
    return values


def _ratio(environ: Mapping[str, str]) -> str:
    if text := environ.get("TRACING_SAMPLING_RATE"):
        return checked("TRACING_SAMPLING_RATE", text, RATIO.parse)
    sampler = environ.get("OTEL_TRACES_SAMPLER", "").removeprefix("parentbased_")
    if sampler == "traceidratio":
        name = "OTEL_TRACES_SAMPLER_ARG"
        return checked(name, environ.get(name, "1"), RATIO.parse)
    return {"always_on": "1", "always_off": "0"}.get(sampler, "")


def _protocol(environ: Mapping[str, str]) -> str:
    for name in ("TRACING_EXPORTER_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if text := environ.get(name):
            if text.lower() not in _PROTOCOLS:
                raise SettingsError(f"{name}: {text!r} is unknown: use http/protobuf or grpc")
            return _PROTOCOLS[text.lower()]
    return ""


def _resource(environ: Mapping[str, str]) -> str:
    """Names and values. Where the reference stands, traces have the name that it gives them."""
    pairs = {key: environ[name] for name, key in _OF_SERVICE.items() if name in environ}
    named = "OTEL_SERVICE_NAME" in environ or "service.name=" in environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    if is_on(environ, "TRACING_ENABLED") and not named:
        pairs.setdefault("service.name", "RateLimit")
    text = ",".join(f"{key}={value}" for key, value in pairs.items())
    return checked("TRACING_SERVICE_…", text, split_pairs)
