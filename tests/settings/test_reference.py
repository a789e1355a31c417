"""What becomes of envoyproxy/ratelimit's environment, and of names that nobody knows."""

from __future__ import annotations

import re

import pytest

from ratelimit_service.errors import SettingsError
from ratelimit_service.settings.environment import defaults, remarks
from ratelimit_service.settings.reference import REFERENCE, Treatment
from ratelimit_service.settings.translation import from_reference

READ_BY_THE_REFERENCE = re.findall(
    r"\w+",
    """
HOST PORT DEBUG_HOST DEBUG_PORT GRPC_UDS GRPC_HOST GRPC_PORT GRPC_MAX_CONNECTION_AGE
GRPC_MAX_CONNECTION_AGE_GRACE GRPC_SERVER_USE_TLS GRPC_SERVER_TLS_CERT GRPC_SERVER_TLS_KEY
GRPC_CLIENT_TLS_CACERT GRPC_CLIENT_TLS_SAN LOG_LEVEL LOG_FORMAT CONFIG_TYPE
FORCE_START_WITHOUT_INITIAL_CONFIG RUNTIME_ROOT RUNTIME_SUBDIRECTORY RUNTIME_APPDIRECTORY
RUNTIME_IGNOREDOTFILES RUNTIME_WATCH_ROOT MERGE_DOMAIN_CONFIG
HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED CONFIG_GRPC_XDS_NODE_ID CONFIG_GRPC_XDS_NODE_METADATA
CONFIG_GRPC_XDS_SERVER_URL CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL
CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS CONFIG_GRPC_XDS_SERVER_USE_TLS
CONFIG_GRPC_XDS_CLIENT_TLS_CERT CONFIG_GRPC_XDS_CLIENT_TLS_KEY CONFIG_GRPC_XDS_SERVER_TLS_CACERT
CONFIG_GRPC_XDS_SERVER_TLS_SAN XDS_CLIENT_BACKOFF_INITIAL_INTERVAL XDS_CLIENT_BACKOFF_MAX_INTERVAL
XDS_CLIENT_BACKOFF_RANDOM_FACTOR XDS_CLIENT_BACKOFF_JITTER XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES
USE_STATSD STATSD_HOST STATSD_PORT STATSD_PROTOCOL EXTRA_TAGS STATS_FLUSH_INTERVAL DISABLE_STATS
USE_DOG_STATSD USE_DOG_STATSD_MOGRIFIERS DOG_STATSD_MOGRIFIER_HITS_PATTERN USE_PROMETHEUS
PROMETHEUS_ADDR PROMETHEUS_PATH PROMETHEUS_MAPPER_YAML PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS
TRACING_ENABLED TRACING_SERVICE_NAME TRACING_SERVICE_NAMESPACE TRACING_SERVICE_INSTANCE_ID
TRACING_EXPORTER_PROTOCOL TRACING_SAMPLING_RATE OTEL_EXPORTER_OTLP_ENDPOINT
EXPIRATION_JITTER_MAX_SECONDS LOCAL_CACHE_SIZE_IN_BYTES NEAR_LIMIT_RATIO CACHE_KEY_PREFIX
BACKEND_TYPE
REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR SANITIZE_DESCRIPTOR_METRIC_DOTS
STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT SHADOW_MODE QUOTA_MODE
LIMIT_RESPONSE_HEADERS_ENABLED LIMIT_LIMIT_HEADER LIMIT_REMAINING_HEADER LIMIT_RESET_HEADER
RESPONSE_DYNAMIC_METADATA REDIS_PERSECOND MEMCACHE_HOST_PORT MEMCACHE_SRV MEMCACHE_SRV_REFRESH
MEMCACHE_MAX_IDLE_CONNS MEMCACHE_TLS MEMCACHE_TLS_CLIENT_CERT MEMCACHE_TLS_CLIENT_KEY
MEMCACHE_TLS_CACERT MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION
""",
)

OF_EACH_REDIS = re.findall(
    r"\w+",
    """
SOCKET_TYPE TYPE URL POOL_SIZE AUTH TLS TLS_CLIENT_CERT TLS_CLIENT_KEY TLS_CACERT
TLS_SKIP_HOSTNAME_VERIFICATION PIPELINE_WINDOW PIPELINE_LIMIT SENTINEL_AUTH
HEALTH_CHECK_ACTIVE_CONNECTION TIMEOUT POOL_ON_EMPTY_BEHAVIOR CLUSTER_PIPELINE_PARALLELISM
STARTUP_INITIAL_INTERVAL STARTUP_MAX_INTERVAL STARTUP_MAX_ELAPSED_TIME
""",
)

ALL = [
    *READ_BY_THE_REFERENCE,
    *(f"{prefix}{name}" for prefix in ("REDIS_", "REDIS_PERSECOND_") for name in OF_EACH_REDIS),
]

ALWAYS_SO = {
    "GRPC_SERVER_USE_TLS",  # says whether others count
    "REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR",
    "RUNTIME_IGNOREDOTFILES",
    "RUNTIME_WATCH_ROOT",
    "MERGE_DOMAIN_CONFIG",
    "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT",
}
"""What sets nothing, since the service always does what it asks for."""

SERVICE_LINKS = {
    "RATELIMIT_PORT": "tcp://10.0.0.1:8081",
    "RATELIMIT_SERVICE_HOST": "10.0.0.1",
    "RATELIMIT_SERVICE_PORT": "8081",
    "RATELIMIT_SERVICE_PORT_GRPC_API": "8081",
    "RATELIMIT_PORT_8081_TCP": "tcp://10.0.0.1:8081",
    "RATELIMIT_PORT_8081_TCP_PROTO": "tcp",
    "RATELIMIT_PORT_8081_TCP_PORT": "8081",
    "RATELIMIT_PORT_8081_TCP_ADDR": "10.0.0.1",
    "RATELIMIT_REDIS_PORT_6379_TCP": "tcp://10.0.0.2:6379",
    "RATELIMIT_REDIS_SERVICE_HOST": "10.0.0.2",
    "REDIS_PORT": "tcp://10.0.0.2:6379",
    "REDIS_PORT_6379_TCP": "tcp://10.0.0.2:6379",
    "REDIS_SERVICE_HOST": "10.0.0.2",
    "REDIS_SERVICE_PORT_CLIENT": "6379",
    "MEMCACHE_SERVICE_PORT": "11211",
}
"""Of Services named `ratelimit`, `ratelimit-redis`, `redis` and `memcache`."""


@pytest.mark.parametrize("name", ALL)
def test_every_variable_has_one_fate(name: str) -> None:
    """Every variable that the reference reads is in the table, once."""
    assert len([each for each in REFERENCE if each.is_for(name)]) == 1


@pytest.mark.parametrize("name", ALL)
def test_no_variable_is_ignored_in_silence(name: str) -> None:
    """A variable that is set takes effect, or is refused, or is named in one line."""
    (variable,) = [each for each in REFERENCE if each.is_for(name)]
    environment = dict.fromkeys(("USE_STATSD", "USE_PROMETHEUS", "TRACING_ENABLED"), "true")
    environment[name] = "no-such-value"

    if variable.treatment is Treatment.REFUSED:
        with pytest.raises(
            SettingsError, match=f"{name}=no-such-value is not supported: .*use|name"
        ):
            defaults(environment)
    elif variable.treatment is Treatment.IGNORED:
        (line,) = [line for line in remarks(environment) if line.startswith("ignored, since")]
        assert re.search(rf"\b{name}\b", line)
    else:
        assert variable.settings or name in ALWAYS_SO


@pytest.mark.parametrize("off", ["false", "0", "F"])
def test_a_switch_that_is_off_asks_for_nothing(off: str) -> None:
    """What is switched off is not spoken of, nor what would go with it."""
    environment = {
        "TRACING_ENABLED": off,
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317",
        "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION": off,
    }

    assert remarks(environment) == []


def test_authorities_that_the_reference_ignores_are_ignored() -> None:
    """GRPC_SERVER_TLS_CA_CERT is warned about: its setter's callers bring no certificate."""
    environment = {
        "GRPC_SERVER_USE_TLS": "true",
        "GRPC_SERVER_TLS_CERT": "/certs/tls.crt",
        "GRPC_SERVER_TLS_KEY": "/certs/tls.key",
        "GRPC_SERVER_TLS_CA_CERT": "/certs/ca.crt",
    }

    assert from_reference(environment) == {
        "tls_cert": "/certs/tls.crt",
        "tls_key": "/certs/tls.key",
    }
    assert "GRPC_SERVER_TLS_CA_CERT" in remarks(environment)[0]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("RATELIMIT_RULE", "RATELIMIT_RULES"),
        ("RATELIMIT_STOER", "RATELIMIT_STORE"),
        ("RATELIMIT_FAILURE_POLCY", "RATELIMIT_FAILURE_POLICY"),
        ("RATELIMIT_DEFAULT_RULE", "RATELIMIT_DEFAULT_RULES"),
        ("RATELIMIT_TLS_CERT_FILE", "RATELIMIT_TLS_CERT"),
        ("REDIS_URI", "REDIS_URL"),
        ("REDIS_PERSECOND_URI", "REDIS_PERSECOND_URL"),
        ("REDIS_SOCKETTYPE", "REDIS_SOCKET_TYPE"),
        ("LOCAL_CACHE_SIZE_BYTES", "LOCAL_CACHE_SIZE_IN_BYTES"),
        ("RUNTIME_SUB_DIRECTORY", "RUNTIME_SUBDIRECTORY"),
    ],
)
def test_misspelt_names_are_errors(name: str, meant: str) -> None:
    """A name close to one that counts, ours or the reference's, is refused; it says which."""
    with pytest.raises(SettingsError, match=rf"^{name} is no name .*did you mean {meant}\?$"):
        remarks({name: "x"})


def test_unknown_names_are_warned_about() -> None:
    """All other names that begin like ours are told in one line."""
    (line,) = remarks({"RATELIMIT_TEAM": "edge", "RATELIMIT_COLOUR": "blue", "OTHER": "x"})

    assert line.endswith("RATELIMIT_COLOUR, RATELIMIT_TEAM")


def test_unknown_names_of_the_reference_are_warned_about() -> None:
    """The same goes for names that begin like the reference's; gRPC's own are no matter of ours."""
    (line,) = remarks(
        {
            "REDIS_HOST": "redis",
            "USE_TLS": "true",
            "GRPC_VERBOSITY": "debug",
            "GRPC_ENABLE_FORK_SUPPORT": "1",
        }
    )

    assert line.endswith("do nothing: REDIS_HOST, USE_TLS")


def test_names_of_kubernetes_services_are_neither() -> None:
    """What Kubernetes says of Services named like us is no mistake and no value."""
    assert remarks(SERVICE_LINKS) == []
    assert defaults(SERVICE_LINKS) == {}


def test_service_links_in_the_place_of_a_port() -> None:
    """A Service named `grpc` does not say where we listen."""
    assert from_reference({"GRPC_PORT": "tcp://10.0.0.1:80", "PORT": "8088"}) == {
        "http": "0.0.0.0:8088"
    }
