"""Every variable that envoyproxy/ratelimit reads, and what becomes of it here: one table.

`docs/migration.md` is generated from it. What must not live here: how values are turned into
ours (`translation`), and what a start says of them (`environment`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["REFERENCE", "Treatment", "Variable", "is_service_link", "set_in"]


class Treatment(StrEnum):
    """What becomes of a variable that is set."""

    HONOURED = "honoured"
    """It means the same here, or what it asks for is always so."""
    REFUSED = "refused"
    """The service does not start: to ignore it would let traffic through, or lose a limit."""
    IGNORED = "ignored"
    """One line of the log names it: it only tunes what the reference is made of."""


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable, or a family of them: a name that ends with `*`.

    `settings` are the fields of `Settings` that it sets. A refused one is taken with an `allowed`
    value (in small letters), else `text` says what to use instead. An ignored one is not spoken of
    unless the switch `only_with` is on.
    """

    section: str
    name: str
    treatment: Treatment
    text: str
    settings: tuple[str, ...] = ()
    allowed: frozenset[str] = frozenset()
    only_with: str = ""
    as_is: bool = False
    """Whether its value is the setting's, as it stands."""

    def is_for(self, name: str) -> bool:
        """Whether this is the entry of a variable."""
        if self.name.endswith("*"):
            return name.startswith(self.name.removesuffix("*"))
        return name == self.name


def _honoured(section: str, name: str, settings: str, text: str) -> Variable:
    return Variable(section, name, Treatment.HONOURED, text, tuple(settings.split()))


def _same(section: str, name: str, setting: str, text: str = "") -> Variable:
    return Variable(section, name, Treatment.HONOURED, text, (setting,), as_is=True)


def _ignored(section: str, name: str, text: str, only_with: str = "") -> Variable:
    return Variable(section, name, Treatment.IGNORED, text, only_with=only_with)


def _refused(section: str, name: str, text: str, *allowed: str) -> Variable:
    return Variable(section, name, Treatment.REFUSED, text, allowed=frozenset(allowed))


def _ports() -> Iterator[Variable]:
    section = "Ports"
    yield _honoured(section, "HOST", "http", "With `PORT`.")
    yield _honoured(section, "PORT", "http", "With `HOST`.")
    yield _honoured(section, "GRPC_HOST", "grpc", "With `GRPC_PORT`.")
    yield _honoured(section, "GRPC_PORT", "grpc", "With `GRPC_HOST`.")
    yield _honoured(section, "GRPC_UDS", "grpc", "A Unix socket's path, instead of the two above.")
    debug = "Unset, the port is opened where `RUNTIME_ROOT` or `CONFIG_TYPE` is set. No profiler."
    yield _honoured(section, "DEBUG_HOST", "debug", debug)
    yield _honoured(section, "DEBUG_PORT", "debug", debug)
    yield _same(
        section, "GRPC_MAX_CONNECTION_AGE", "max_connection_age_us", "Unset is any age, not 24h."
    )
    yield _ignored(
        section,
        "GRPC_MAX_CONNECTION_AGE_GRACE",
        "A connection that is too old ends when its last call does.",
    )
    yield _honoured(
        section,
        "GRPC_SERVER_USE_TLS",
        "",
        "`true` for the files below; without it they are not used.",
    )
    yield _same(section, "GRPC_SERVER_TLS_CERT", "tls_cert")
    yield _same(section, "GRPC_SERVER_TLS_KEY", "tls_key")
    yield _same(
        section,
        "GRPC_CLIENT_TLS_CACERT",
        "tls_client_ca",
        "None of the system's authorities count beside it.",
    )
    yield _same(section, "GRPC_CLIENT_TLS_SAN", "tls_client_san", "An address or a URI, too.")
    yield _ignored(
        section,
        "GRPC_SERVER_TLS_CA_CERT",
        "The reference reads no such name, so callers bring no certificate. To ask for one use "
        "`GRPC_CLIENT_TLS_CACERT`.",
    )
    yield _same(section, "LOG_LEVEL", "log_level", "Unset is `info`, not `warn`.")
    yield _same(section, "LOG_FORMAT", "log_format")


def _rules() -> Iterator[Variable]:
    section = "Rules"
    joined = "The three are joined; changes are always seen."
    yield _refused(
        section,
        "CONFIG_TYPE",
        "use FILE, or GRPC_XDS_SOTW for a management server",
        "file",
        "grpc_xds_sotw",
    )
    yield _honoured(section, "RUNTIME_ROOT", "rules", joined)
    yield _honoured(section, "RUNTIME_SUBDIRECTORY", "rules", joined)
    yield _honoured(section, "RUNTIME_APPDIRECTORY", "rules", joined)
    yield _honoured(
        section, "RUNTIME_IGNOREDOTFILES", "", "Names that begin with a dot are always ignored."
    )
    yield _honoured(section, "RUNTIME_WATCH_ROOT", "", "Both kinds of change are always seen.")
    yield _honoured(
        section, "MERGE_DOMAIN_CONFIG", "", "Several files may always have the same domain."
    )
    yield _same(
        section,
        "FORCE_START_WITHOUT_INITIAL_CONFIG",
        "start_without_rules",
        "Until rules come `--failure-policy` decides, and health is degraded.",
    )
    yield _same(
        section,
        "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
        "healthy_with_rules",
        "As there, files that cannot be read change nothing: what was good stays.",
    )
    xds = "CONFIG_GRPC_XDS_"
    yield _honoured(
        section, f"{xds}SERVER_URL", "rules", "With `CONFIG_TYPE=GRPC_XDS_SOTW`: `xds://…`."
    )
    yield _same(section, f"{xds}NODE_ID", "xds_node_id")
    yield _same(section, f"{xds}NODE_METADATA", "xds_node_metadata")
    yield _same(section, f"{xds}CLIENT_ADDITIONAL_HEADERS", "xds_headers")
    yield _same(
        section, f"{xds}SERVER_USE_TLS", "xds_tls", "Without it the files below are not used."
    )
    yield _same(section, f"{xds}CLIENT_TLS_CERT", "xds_tls_cert")
    yield _same(section, f"{xds}CLIENT_TLS_KEY", "xds_tls_key")
    yield _same(section, f"{xds}SERVER_TLS_CACERT", "xds_tls_ca")
    yield _same(section, f"{xds}SERVER_TLS_SAN", "xds_tls_name")
    yield _same(
        section, "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "xds_max_message_bytes", "Unset is 64 MiB."
    )
    backoff = "The pause before it connects again grows from 500 ms to 30 s."
    yield _ignored(section, f"{xds}SERVER_CONNECT_RETRY_INTERVAL", backoff)
    for name in ("INITIAL_INTERVAL", "MAX_INTERVAL", "RANDOM_FACTOR", "JITTER"):
        yield _ignored(section, f"XDS_CLIENT_BACKOFF_{name}", backoff)


def _counting() -> Iterator[Variable]:
    section = "Counting and answers"
    yield _refused(
        section,
        "BACKEND_TYPE",
        "use redis (REDIS_URL), or counters in this process (--store memory)",
        "redis",
    )
    yield _same(section, "CACHE_KEY_PREFIX", "key_prefix", "At most 64 characters, without braces.")
    yield _ignored(
        section, "EXPIRATION_JITTER_MAX_SECONDS", "A key lives a second longer than its window."
    )
    yield _same(section, "LOCAL_CACHE_SIZE_IN_BYTES", "local_cache_bytes", "Unset is 8 MiB, not 0.")
    yield _same(section, "NEAR_LIMIT_RATIO", "near_limit_ratio")
    yield _honoured(
        section,
        "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT",
        "",
        "A denied request charges nothing, except for what `--count-denied` says.",
    )
    yield _same(section, "SHADOW_MODE", "shadow_mode")
    yield _same(section, "QUOTA_MODE", "quota_mode")
    yield _same(section, "LIMIT_RESPONSE_HEADERS_ENABLED", "limit_response_headers")
    yield _same(section, "LIMIT_LIMIT_HEADER", "limit_header")
    yield _same(section, "LIMIT_REMAINING_HEADER", "remaining_header")
    yield _same(section, "LIMIT_RESET_HEADER", "reset_header")
    yield _same(section, "RESPONSE_DYNAMIC_METADATA", "dynamic_metadata")


def _redis() -> Iterator[Variable]:
    section = "Redis"
    yield _honoured(
        section,
        "REDIS_PERSECOND",
        "second_store",
        "`true` for a second store, at `REDIS_PERSECOND_URL`. Each name below has a twin that "
        "begins with `REDIS_PERSECOND_`; a `…_TLS_…` twin that is unset is as its first.",
    )
    for prefix, setting in (("REDIS_", "store"), ("REDIS_PERSECOND_", "second_store")):
        for name, text in (
            (
                "URL",
                "An address with `…_SOCKET_TYPE=tcp`, else a socket's path, or a URL. With "
                "Sentinel `NAME,HOST:PORT,…`, with Cluster `HOST:PORT,…`. Unset: no Redis.",
            ),
            ("SOCKET_TYPE", "`tcp` or `unix`; unset is `unix`, as there."),
            ("TYPE", "`single`, `sentinel` or `cluster`."),
            ("AUTH", "`password`, or `user:password`."),
            ("AUTH_FILE", "A file with that, instead of it. It is read before each connection."),
            ("SENTINEL_AUTH", "The same, for the Sentinels."),
            ("TLS", "`true` for TLS, to the Sentinels too."),
            ("TLS_CACERT", "Unset, the system's authorities are trusted."),
            ("TLS_CLIENT_CERT", ""),
            ("TLS_CLIENT_KEY", ""),
            ("TLS_SKIP_HOSTNAME_VERIFICATION", "The certificate is verified all the same."),
        ):
            yield _honoured(section, prefix + name, setting, text)
        for name, text in (
            ("POOL_SIZE", "Requests share one connection to each server."),
            ("POOL_ON_EMPTY_BEHAVIOR", "There is no pool."),
            ("PIPELINE_WINDOW", "What comes in one tick goes out as one batch."),
            ("PIPELINE_LIMIT", "Batches are bounded by the time that Redis needs for them."),
            ("CLUSTER_PIPELINE_PARALLELISM", "All nodes are always asked at once."),
            ("TIMEOUT", "See `--store-timeout`: how long the store may take to answer a call."),
            ("HEALTH_CHECK_ACTIVE_CONNECTION", "Health is degraded while Redis is away."),
            ("STARTUP_INITIAL_INTERVAL", "It starts without its Redis, and connects by itself."),
            ("STARTUP_MAX_INTERVAL", "It starts without its Redis, and connects by itself."),
            ("STARTUP_MAX_ELAPSED_TIME", "It starts without its Redis, and connects by itself."),
        ):
            yield _ignored(section, prefix + name, text)
    yield _honoured(
        section,
        "REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR",
        "",
        "A server that answers READONLY is always left, and its address asked for anew.",
    )
    yield _ignored(section, "MEMCACHE_*", "See `BACKEND_TYPE`.")


def _telemetry() -> Iterator[Variable]:
    section = "Metrics and traces"
    yield _honoured(section, "USE_STATSD", "statsd", "Unset is off.")
    for name in ("STATSD_HOST", "STATSD_PORT"):
        yield _honoured(section, name, "statsd", "With `USE_STATSD` or `USE_DOG_STATSD`.")
    yield _ignored(section, "STATSD_PROTOCOL", "It is UDP.", "USE_STATSD")
    yield _same(section, "STATS_FLUSH_INTERVAL", "statsd_interval_us")
    yield _same(section, "EXTRA_TAGS", "statsd_tags", "Of statsd only.")
    yield _honoured(
        section,
        "DISABLE_STATS",
        "statsd reference_metrics",
        "`true` for none of these; `/metrics` on the HTTP port stays.",
    )
    yield _honoured(section, "USE_DOG_STATSD", "statsd statsd_format", "Wins over `USE_STATSD`.")
    for name in ("USE_DOG_STATSD_MOGRIFIERS", "DOG_STATSD_MOGRIFIER_*"):
        yield _ignored(section, name, "Names are as they are.")
    yield _ignored(
        section, "SANITIZE_DESCRIPTOR_METRIC_DOTS", "Dots in keys and values stay in names."
    )
    yield _honoured(
        section, "USE_PROMETHEUS", "reference_metrics", "Ours are at `/metrics` on the HTTP port."
    )
    yield _honoured(section, "PROMETHEUS_ADDR", "reference_metrics", "With `USE_PROMETHEUS`.")
    yield _same(section, "PROMETHEUS_PATH", "reference_metrics_path")
    for name in ("PROMETHEUS_MAPPER_YAML", "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS"):
        yield _ignored(section, name, "Names and units are the reference's own.", "USE_PROMETHEUS")
    yield _honoured(section, "TRACING_ENABLED", "otel_traces", "See [Traces](traces.md).")
    named = "Unset, `RateLimit`, where `TRACING_ENABLED` is on and no `OTEL_…` says otherwise."
    yield _honoured(section, "TRACING_SERVICE_NAME", "otel_resource", named)
    yield _honoured(section, "TRACING_SERVICE_NAMESPACE", "otel_resource", "")
    yield _honoured(section, "TRACING_SERVICE_INSTANCE_ID", "otel_resource", "Unset, by chance.")
    yield _honoured(section, "TRACING_EXPORTER_PROTOCOL", "otel_protocol", "`http` or `grpc`.")
    yield _honoured(
        section,
        "TRACING_SAMPLING_RATE",
        "otel_sampling_ratio",
        "Of calls whose callers do not say; at most `--otel-spans-per-second`.",
    )


def _opentelemetry() -> Iterator[Variable]:
    section = "OpenTelemetry"
    by_library = "OpenTelemetry's library reads it, in the process that sends."
    yield _honoured(
        section, "OTEL_TRACES_EXPORTER", "otel_traces", "`otlp` is on; all else is off."
    )
    yield _honoured(
        section, "OTEL_METRICS_EXPORTER", "otel_metrics", "`otlp` is on; all else is off."
    )
    yield _honoured(section, "OTEL_SDK_DISABLED", "otel_traces otel_metrics", "`true` for neither.")
    yield _honoured(
        section,
        "OTEL_EXPORTER_OTLP_*",
        "otel_protocol otel_endpoint",
        f"Protocol: `http/protobuf` or `grpc`, for both signals. The others: {by_library}",
    )
    yield _honoured(
        section,
        "OTEL_TRACES_SAMPLER",
        "otel_sampling_ratio",
        "Callers that say whether their span is sampled are always heeded.",
    )
    yield _honoured(section, "OTEL_TRACES_SAMPLER_ARG", "otel_sampling_ratio", "With a ratio.")
    yield _honoured(section, "OTEL_METRIC_EXPORT_INTERVAL", "otel_metrics_interval_us", "In ms.")
    yield _honoured(section, "OTEL_PROPAGATORS", "", "Parents by W3C and by B3 are always read.")
    for name in (
        "OTEL_SERVICE_NAME",
        "OTEL_RESOURCE_ATTRIBUTES",
        "OTEL_BSP_*",
        "OTEL_SPAN_*",
        "OTEL_ATTRIBUTE_*",
    ):
        yield _honoured(section, name, "", by_library)


REFERENCE: tuple[Variable, ...] = (
    *_ports(),
    *_rules(),
    *_counting(),
    *_redis(),
    *_telemetry(),
    *_opentelemetry(),
)


_SERVICE_LINK = re.compile(r"(tcp|udp|sctp)://\S+:\d+")
_OF_A_SERVICE = re.compile(
    r"\w+_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)


def is_service_link(name: str, value: str) -> bool:
    """Whether Kubernetes has set a variable, to say where a Service is.

    A Service named `grpc` makes `GRPC_PORT=tcp://10.0.0.1:80` in every container beside it.
    """
    if name.endswith("_PORT") and _SERVICE_LINK.fullmatch(value):
        return True
    return _OF_A_SERVICE.fullmatch(name) is not None


def set_in(environ: Mapping[str, str]) -> Iterator[tuple[Variable, str, str]]:
    """The variables of the reference that are set, in the table's order, with name and value."""
    for variable in REFERENCE:
        for name, value in sorted(environ.items()):
            if value and variable.is_for(name) and not is_service_link(name, value):
                yield variable, name, value
