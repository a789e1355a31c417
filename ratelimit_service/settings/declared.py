"""Every setting of `ratelimit serve`: its type, its default and its help, in groups.

To add one, declare a field here; the flag (`--max-counters` of `max_counters`), the name in the
environment (`RATELIMIT_MAX_COUNTERS`), the help and the table in docs/settings.md follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ratelimit_service.model import Body, CountDenied, FailurePolicy, HeaderSet, Reset
from ratelimit_service.settings.setting import Group, Setting, declared_in
from ratelimit_service.settings.values import (
    ADDRESS,
    ADMIN_ADDRESS,
    ADMIN_ADDRESS_BY_DEFAULT,
    COUNT,
    COUNT_DENIED,
    DEFAULT_ADMIN,
    DURATION,
    FAILURE_POLICY,
    FILE,
    GRPC_ADDRESS,
    HEADER,
    INTERVAL,
    KEY_PREFIX,
    LOG_LEVEL,
    NAME,
    NAMES,
    OPTIONAL_ADDRESS,
    PAIRS,
    PATH,
    POSITIVE,
    RATIO,
    SAMPLE,
    SWITCH,
    TAGS,
    URL,
    URL_PATH,
    choice,
)

__all__ = ["Settings", "settings"]

_RULES = Group("Rules")
_XDS = Group("Rules over xDS")
_COUNTERS = Group("Counters")
_DECISIONS = Group("Decisions")
_ANSWERS = Group("Answers")
_GRPC = Group("gRPC")
_TLS = Group("TLS on the gRPC port")
_HTTP = Group("HTTP")
_ADMIN = Group("Admin listener")
_EXPORTS = Group("Debug port, and metrics elsewhere than at /metrics")
_OTEL = Group("OpenTelemetry")
_DECISION_LOG = Group("Decision log")
_PROCESS = Group("Processes and log")


_OVER_XDS = "xds://"


def _certificate(group: Group, port: str) -> str:
    """What names the certificate of a port."""
    text = f"A PEM file: the certificate of {port}, with its chain. Without it no TLS."
    return group.setting("", FILE, text)


def _key_of_certificate(group: Group) -> str:
    """What names the key that belongs to the certificate before it."""
    return group.setting("", FILE, "A PEM file: its key.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything `ratelimit serve` can be told. Durations are microseconds."""

    rules: str = _RULES.setting(
        "rules",
        PATH,
        "A rule file, or a directory whose files are all loaded; or another source of rules, as "
        "xds://HOST:PORT, a management server.",
    )
    strict_rules: bool = _RULES.setting(
        False, SWITCH, "Refuse to start with any problem in the rules."
    )
    start_without_rules: bool = _RULES.setting(
        False,
        SWITCH,
        "Serve before there are rules, in files or from a management server: the failure policy "
        "decides.",
    )

    healthy_with_rules: bool = _RULES.setting(
        False, SWITCH, "Be healthy only while at least one domain has rules."
    )

    xds_overlay: str = _XDS.setting(
        "", FILE, "A YAML file: keys of ours for rules that the server cannot give them."
    )
    xds_node_id: str = _XDS.setting("default", NAME, "As whom to ask the management server.")
    xds_node_metadata: str = _XDS.setting("", PAIRS, "What to tell it of us.")
    xds_headers: str = _XDS.setting("", PAIRS, "Headers of the call, as for its authentication.")
    xds_tls: bool = _XDS.setting(False, SWITCH, "Speak TLS with it, as with any file below.")
    xds_tls_ca: str = _XDS.setting(
        "", FILE, "A PEM file: the authorities that vouch for it; else those of the system."
    )
    xds_tls_cert: str = _XDS.setting("", FILE, "A PEM file: the certificate that it asks of us.")
    xds_tls_key: str = _key_of_certificate(_XDS)
    xds_tls_name: str = _XDS.setting(
        "", NAME, "What its certificate must be for, if not HOST: a DNS name or an IP address."
    )
    xds_max_message_bytes: int = _XDS.setting(
        67_108_864, COUNT, "The largest message that it may send; 0 for any size."
    )

    store: str = _COUNTERS.setting(
        "memory",
        URL,
        "Where counters live: memory, redis://HOST:PORT/DB, rediss://…, redis+unix:///PATH, "
        "redis+sentinel://HOST:PORT,…/NAME, redis+cluster://HOST:PORT,…, "
        "redis+ring://HOST:PORT,…/DB or file:SHARDS.yaml.",
    )
    second_store: str = _COUNTERS.setting(
        "", URL, "Where counters live whose window is a second, if not in the store."
    )
    key_prefix: str = _COUNTERS.setting(
        "",
        KEY_PREFIX,
        "What every key in Redis begins with: services with different ones do not meet there.",
    )
    store_timeout_us: int = _COUNTERS.setting(
        10_000,
        DURATION,
        "How long the store may take to answer a call before the failure policy does. A store's "
        "URL can name a time of its own, as in redis://HOST:PORT/0?timeout=300ms.",
    )
    local_cache_bytes: int = _COUNTERS.setting(
        8_388_608,
        COUNT,
        "The most memory for keys known to be over their limit in Redis; 0 for none.",
    )
    max_counters: int = _COUNTERS.setting(
        1_000_000, POSITIVE, "The most counters the memory store holds."
    )
    queue_length: int = _COUNTERS.setting(
        10_000,
        POSITIVE,
        "The most denied requests that the queue of a rule with on_limit: enqueue holds in Redis; "
        "then the oldest make room.",
    )

    failure_policy: FailurePolicy = _DECISIONS.setting(
        FailurePolicy.OPEN,
        FAILURE_POLICY,
        "What answers when the store does not: open (allow), closed (deny), error, or local "
        "(count in this process).",
    )
    count_denied: CountDenied | None = _DECISIONS.setting(
        None,
        COUNT_DENIED,
        "Which hits of denied requests count too: none, reported (those of descriptors that bring "
        "a hits_addend of their own), or all. Unset: reported where rules come over xDS, else "
        "none.",
    )
    reservations: bool = _DECISIONS.setting(
        False, SWITCH, "All limits take reservations that do not say how they take them."
    )
    max_reservation_ttl_us: int = _DECISIONS.setting(
        600_000_000, DURATION, "The longest that a reservation holds hits."
    )
    shadow_mode: bool = _DECISIONS.setting(False, SWITCH, "Deny nothing, whatever the rules say.")
    quota_mode: bool = _DECISIONS.setting(False, SWITCH, "Treat every rule as a quota.")
    near_limit_ratio: float = _DECISIONS.setting(
        0.8,
        RATIO,
        "The share of a limit above which hits count as near it.",
    )

    headers: str = _ANSWERS.setting(
        "none",
        choice("SET", *map(str, HeaderSet)),
        f"Which headers tell callers their limits: {', '.join(HeaderSet)}.",
    )
    denial_body: str = _ANSWERS.setting(
        "none",
        choice("KIND", *map(str, Body)),
        "What a denied caller reads: none, text, json or problem (RFC 9457).",
    )
    limit_response_headers: bool = _ANSWERS.setting(
        False,
        SWITCH,
        "Add limit, remaining and reset headers to responses: the same as --headers reference.",
    )
    limit_header: str = _ANSWERS.setting(
        "",
        HEADER,
        "The name of the header with the limit, in place of the set's own.",
    )
    remaining_header: str = _ANSWERS.setting(
        "",
        HEADER,
        "The name of the header with the remaining hits, in place of the set's own.",
    )
    reset_header: str = _ANSWERS.setting(
        "",
        HEADER,
        "The name of the header with the reset, in place of the set's own.",
    )
    reset_value: str = _ANSWERS.setting(
        "seconds",
        choice("FORM", *map(str, Reset)),
        "What the header with the reset says: seconds from now, or unix time.",
    )
    dynamic_metadata: bool = _ANSWERS.setting(
        False,
        SWITCH,
        "Return the request and the rules' metadata as Envoy dynamic metadata.",
    )
    decision_metadata: bool = _ANSWERS.setting(
        False,
        SWITCH,
        "Say in Envoy dynamic metadata which rule and limit decided, and by what.",
    )
    denial_quota: bool = _ANSWERS.setting(
        False,
        SWITCH,
        "Say in the protocol's quota field of a denial how long it holds, for clients that "
        "remember it.",
    )

    grpc: str = _GRPC.setting(
        "0.0.0.0:8081", GRPC_ADDRESS, "Where Envoy calls; unix:PATH for a Unix socket."
    )
    transport: str = _GRPC.setting(
        "h2",
        choice("NAME", "h2", "grpcio"),
        "What speaks gRPC: h2, our own and fast, or grpcio.",
    )
    no_reflection: bool = _GRPC.setting(
        False, SWITCH, "Do not tell gRPC callers what there is to call."
    )
    no_refunds: bool = _GRPC.setting(
        False,
        SWITCH,
        "Take no refunds (is_negative_hits). Slots of a concurrency limit are then given back only "
        "by their lease's end.",
    )
    no_reservations: bool = _GRPC.setting(
        False, SWITCH, "Reserve and settle nothing: these methods answer UNIMPLEMENTED."
    )
    max_connection_age_us: int = _GRPC.setting(
        0,
        DURATION,
        "How old a gRPC connection may get before its client is sent elsewhere; 0s is any age.",
    )
    max_connections: int = _GRPC.setting(
        10_000,
        COUNT,
        "The most gRPC connections; 0 is as many as files may be open. For h2.",
    )
    max_connections_per_peer: int = _GRPC.setting(
        2_500, COUNT, "The most gRPC connections from one address; 0 is no bound. For h2."
    )

    tls_cert: str = _certificate(_TLS, "the gRPC port")
    tls_key: str = _key_of_certificate(_TLS)
    tls_client_ca: str = _TLS.setting(
        "",
        FILE,
        "A PEM file: the authorities of which callers need a certificate.",
    )
    tls_client_san: str = _TLS.setting(
        "",
        NAME,
        "What a caller's certificate must be for: a DNS name, an IP address or a URI.",
    )

    http: str = _HTTP.setting(
        "0.0.0.0:8080", ADDRESS, "Where /healthcheck, /metrics, /json and /rlconfig are."
    )
    http_hosts: str = _HTTP.setting(
        "",
        NAMES,
        "Public names by which callers reach the HTTP port, beside addresses and names of a "
        "private network; * for any.",
    )
    no_json: bool = _HTTP.setting(False, SWITCH, "Make no decisions over HTTP: no /json.")
    no_public_config: bool = _HTTP.setting(
        False, SWITCH, "Show no rules there: no /rlconfig, which the admin listener has as well."
    )
    json_refunds: bool = _HTTP.setting(
        False, SWITCH, "Take refunds over HTTP too: isNegativeHits in /json."
    )

    http_tls_cert: str = _certificate(_HTTP, "the HTTP port")
    http_tls_key: str = _key_of_certificate(_HTTP)

    admin: str = _ADMIN.setting(
        DEFAULT_ADMIN,
        ADMIN_ADDRESS,
        "Where those who run the service see and change what it does; unix:PATH for a Unix "
        f"socket, none for nowhere. The default is {ADMIN_ADDRESS_BY_DEFAULT}; if that is taken, "
        "the service runs on without.",
    )
    admin_hosts: str = _ADMIN.setting(
        "",
        NAMES,
        "Names by which they reach it, beside addresses, localhost and this machine's own name; "
        "* for any.",
    )

    admin_token_file: str = _ADMIN.setting(
        "",
        FILE,
        "A file with lines 'read TOKEN' and 'write TOKEN': who may ask. Without it only callers on "
        "this machine may.",
    )
    admin_tls_cert: str = _certificate(_ADMIN, "the admin listener")
    admin_tls_key: str = _key_of_certificate(_ADMIN)
    admin_tls_client_ca: str = _ADMIN.setting(
        "",
        FILE,
        "A PEM file: the authorities of which callers need a certificate; without a token file "
        "it lets them in.",
    )

    overrides_file: str = _ADMIN.setting(
        "",
        FILE,
        "With counters in memory: a file in which overrides outlive the process.",
    )
    audit_log: str = _ADMIN.setting(
        "", FILE, "A file to which a line is added for each change that somebody makes there."
    )
    no_callers: bool = _ADMIN.setting(
        False,
        SWITCH,
        "Do not keep in mind which callers are over or near their limits (ratelimit top).",
    )

    debug: str = _EXPORTS.setting(
        "",
        OPTIONAL_ADDRESS,
        "A port with /rlconfig, /stats and /stats.json and nothing else; none if empty.",
    )
    reference_metrics: str = _EXPORTS.setting(
        "",
        OPTIONAL_ADDRESS,
        "A port with metrics for Prometheus by envoyproxy/ratelimit's names; none if empty.",
    )
    reference_metrics_path: str = _EXPORTS.setting(
        "/metrics", URL_PATH, "Where on that port they are."
    )
    statsd: str = _EXPORTS.setting(
        "",
        OPTIONAL_ADDRESS,
        "Where statsd is told, over UDP, by envoyproxy/ratelimit's names; nowhere if empty.",
    )
    statsd_format: str = _EXPORTS.setting(
        "statsd", choice("FORMAT", "statsd", "dogstatsd"), "statsd or dogstatsd."
    )
    statsd_interval_us: int = _EXPORTS.setting(10_000_000, INTERVAL, "How often.")
    statsd_tags: str = _EXPORTS.setting("", TAGS, "Tags of every line.")

    otel_traces: bool = _OTEL.setting(
        False, SWITCH, "Send a span of each call that is sampled, over OTLP."
    )
    otel_spans_per_second: int = _OTEL.setting(100, POSITIVE, "The most spans that are sent.")
    otel_sampling_ratio: float = _OTEL.setting(
        1.0,
        RATIO,
        "The share of calls to sample whose callers do not say whether to sample them.",
    )
    otel_values: bool = _OTEL.setting(
        False, SWITCH, "Tell the values of descriptors in spans, too, not their keys alone."
    )
    otel_metrics: bool = _OTEL.setting(False, SWITCH, "Send the metrics of /metrics over OTLP.")
    otel_metrics_interval_us: int = _OTEL.setting(60_000_000, INTERVAL, "How often.")
    otel_protocol: str = _OTEL.setting(
        "http", choice("PROTOCOL", "http", "grpc"), "http (OTLP over HTTP, in protobuf) or grpc."
    )
    otel_endpoint: str = _OTEL.setting(
        "",
        URL,
        "Where the collector is, http://HOST:PORT; empty: as the OTEL_EXPORTER_OTLP_… say, else "
        "on this host.",
    )
    otel_resource: str = _OTEL.setting(
        "", PAIRS, "What to tell of this service: service.name=NAME and more."
    )

    decision_log: str = _DECISION_LOG.setting(
        "",
        PATH,
        "Where decisions are written, as lines of JSON: a file, stdout or syslog.",
    )
    decision_log_sample: str = _DECISION_LOG.setting(
        "denied=1,allowed=1",
        SAMPLE,
        "Which part of the decisions: of those that deny, and of those that allow.",
    )
    decision_log_max_bytes: int = _DECISION_LOG.setting(
        104_857_600, POSITIVE, "The most that a file holds; then it is rotated."
    )
    decision_log_rotate_us: int = _DECISION_LOG.setting(
        86_400_000_000, INTERVAL, "After how long it is rotated at the latest."
    )
    decision_log_files: int = _DECISION_LOG.setting(
        5, COUNT, "How many rotated files are kept, PATH.1 and so on."
    )
    decision_log_key_file: str = _DECISION_LOG.setting(
        "",
        FILE,
        "A file with a secret key of 16 bytes or more: values of descriptors are hashed with it.",
    )

    workers: int = _PROCESS.setting(
        0,
        COUNT,
        "How many processes decide, if the store is in Redis; 0 is one for each usable CPU.",
    )
    grace_us: int = _PROCESS.setting(
        10_000_000,
        DURATION,
        "How long requests in flight may take to finish after SIGTERM.",
    )
    log_level: str = _PROCESS.setting("info", LOG_LEVEL, "debug, info, warning or error.")
    log_format: str = _PROCESS.setting("text", choice("FORMAT", "text", "json"), "text or json.")

    @property
    def denied_counted(self) -> CountDenied:
        """Which hits of denied requests count, also where nobody has said so."""
        if self.count_denied is not None:
            return self.count_denied
        return CountDenied.REPORTED if self.rules.startswith(_OVER_XDS) else CountDenied.NONE


def settings() -> Iterator[Setting]:
    """Every setting, in the order in which help and docs show them."""
    return declared_in(Settings)
