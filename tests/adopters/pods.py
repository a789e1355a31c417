"""Pods as adopters of envoyproxy/ratelimit describe them: command, environment, mounts, user.

Taken from what Istio, Contour, Envoy Gateway and AI Gateway ship (2026). Kubernetes adds what it
adds to every pod: links to Services, of which one is named `ratelimit`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

RULES = """
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 2}
"""

SERVICE_LINKS = {
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "KUBERNETES_SERVICE_PORT": "443",
    "KUBERNETES_SERVICE_PORT_HTTPS": "443",
    "KUBERNETES_PORT": "tcp://10.96.0.1:443",
    "KUBERNETES_PORT_443_TCP": "tcp://10.96.0.1:443",
    "REDIS_SERVICE_HOST": "10.96.7.8",
    "REDIS_SERVICE_PORT": "6379",
    "REDIS_SERVICE_PORT_REDIS": "6379",
    "REDIS_PORT": "tcp://10.96.7.8:6379",
    "REDIS_PORT_6379_TCP": "tcp://10.96.7.8:6379",
    "REDIS_PORT_6379_TCP_PROTO": "tcp",
    "REDIS_PORT_6379_TCP_PORT": "6379",
    "REDIS_PORT_6379_TCP_ADDR": "10.96.7.8",
    "RATELIMIT_SERVICE_HOST": "10.96.7.9",
    "RATELIMIT_SERVICE_PORT": "8080",
    "RATELIMIT_SERVICE_PORT_HTTP_PORT": "8080",
    "RATELIMIT_SERVICE_PORT_GRPC_PORT": "8081",
    "RATELIMIT_PORT": "tcp://10.96.7.9:8080",
    "RATELIMIT_PORT_8080_TCP": "tcp://10.96.7.9:8080",
    "RATELIMIT_PORT_8080_TCP_PROTO": "tcp",
    "RATELIMIT_PORT_8080_TCP_PORT": "8080",
    "RATELIMIT_PORT_8080_TCP_ADDR": "10.96.7.9",
    "RATELIMIT_PORT_8081_TCP": "tcp://10.96.7.9:8081",
    "RATELIMIT_PORT_8081_TCP_PROTO": "tcp",
    "RATELIMIT_PORT_8081_TCP_PORT": "8081",
    "RATELIMIT_PORT_8081_TCP_ADDR": "10.96.7.9",
}

_FILES = {
    "LOG_LEVEL": "debug",
    "REDIS_SOCKET_TYPE": "tcp",
    "REDIS_URL": "redis:6379",
    "USE_STATSD": "false",
    "RUNTIME_ROOT": "/data",
    "RUNTIME_SUBDIRECTORY": "ratelimit",
    "RUNTIME_WATCH_ROOT": "false",
    "RUNTIME_IGNOREDOTFILES": "true",
}

_GATEWAY = {
    "RUNTIME_ROOT": "/data",
    "RUNTIME_SUBDIRECTORY": "ratelimit",
    "RUNTIME_IGNOREDOTFILES": "true",
    "RUNTIME_WATCH_ROOT": "false",
    "LOG_LEVEL": "info",
    "USE_STATSD": "false",
    "CONFIG_TYPE": "GRPC_XDS_SOTW",
    "FORCE_START_WITHOUT_INITIAL_CONFIG": "true",
    "REDIS_SOCKET_TYPE": "tcp",
    "REDIS_URL": "redis:6379",
    "USE_PROMETHEUS": "true",
    "PROMETHEUS_ADDR": ":19001",
    "PROMETHEUS_MAPPER_YAML": "/etc/statsd-exporter/conf.yaml",
}

_GATEWAY_TLS = {
    "GRPC_SERVER_USE_TLS": "true",
    "GRPC_SERVER_TLS_CERT": "/certs/tls.crt",
    "GRPC_SERVER_TLS_KEY": "/certs/tls.key",
    "GRPC_SERVER_TLS_CA_CERT": "/certs/ca.crt",
    "CONFIG_GRPC_XDS_SERVER_URL": "envoy-gateway:18001",
    "CONFIG_GRPC_XDS_NODE_ID": "envoy-ratelimit",
    "CONFIG_GRPC_XDS_SERVER_USE_TLS": "true",
    "CONFIG_GRPC_XDS_CLIENT_TLS_CERT": "/certs/tls.crt",
    "CONFIG_GRPC_XDS_CLIENT_TLS_KEY": "/certs/tls.key",
    "CONFIG_GRPC_XDS_SERVER_TLS_CACERT": "/certs/ca.crt",
}


@dataclass(frozen=True)
class Pod:
    """A container of somebody's manifest; `user` is what the manifest or the image says."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    user: int
    probes: tuple[str, ...] = ("/healthcheck",)
    grpc_port: int = 8081
    metrics_port: int = 8080
    mounts: tuple[str, ...] = field(default=("/data/ratelimit/config",))
    tls: bool = False


ISTIO = Pod(
    command=("/bin/ratelimit",),
    environment={**_FILES, "HOST": "::", "GRPC_HOST": "::"},
    user=65532,
    probes=(),
)
CONTOUR = Pod(command=("/bin/ratelimit",), environment=_FILES, user=65532)
ENVOY_GATEWAY = Pod(
    command=("/bin/ratelimit",),
    environment={**_GATEWAY, **_GATEWAY_TLS},
    user=65534,
    metrics_port=19001,
    mounts=("/certs", "/etc/statsd-exporter"),
    tls=True,
)
NUTANIX = Pod(
    command=("/bin/ratelimit",),
    environment={
        **_GATEWAY,
        **_GATEWAY_TLS,
        "REDIS_TYPE": "sentinel",
        "REDIS_URL": "main,redis:26379",
        "REDIS_PIPELINE_WINDOW": "150us",
    },
    user=65534,
    metrics_port=19001,
    mounts=("/certs", "/etc/statsd-exporter"),
    tls=True,
)
AI_GATEWAY = Pod(
    command=("/bin/ratelimit", "--quotaRateLimitServiceAddr=:8082"),
    environment={
        **_GATEWAY,
        "CONFIG_GRPC_XDS_SERVER_URL": "envoy-gateway:18002",
        "CONFIG_GRPC_XDS_NODE_ID": "envoy-ai-gateway-ratelimit",
        "CONFIG_GRPC_XDS_SERVER_USE_TLS": "false",
    },
    user=65532,
    metrics_port=19001,
    mounts=(),
)
