"""What users type, and what becomes of it."""

from __future__ import annotations

import pytest

from ratelimit_service.errors import SettingsError
from ratelimit_service.settings import Settings, parse_duration, redacted, settings, split_address
from ratelimit_service.settings.environment import defaults
from ratelimit_service.settings.translation import from_reference


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("10ms", 10_000),
        ("1s", 1_000_000),
        ("500us", 500),
        ("1.5s", 1_500_000),
        ("1m30s", 90_000_000),
        ("2h", 7_200_000_000),
    ],
)
def test_durations(text: str, us: int) -> None:
    """Durations are numbers with units, as Go writes them."""
    assert parse_duration(text) == us


@pytest.mark.parametrize("text", ["", "10", "ms", "10 ms", "-1s", "1y", "1sx"])
def test_no_durations(text: str) -> None:
    """A duration without a unit, or with another, is refused with what is allowed."""
    with pytest.raises(SettingsError, match="write a number and us, ms, s, m, h, d or w"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["15000w", "9" * 400 + "s", "150200000m"])
def test_durations_that_are_too_long(text: str) -> None:
    """A duration of more than 285 years is refused, also if it is more than a float can hold."""
    with pytest.raises(SettingsError, match="is too long: write at most 285 years"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "address"),
    [("0.0.0.0:8081", ("0.0.0.0", 8081)), ("[::]:0", ("::", 0)), ("host:1", ("host", 1))],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    """An address is host and port; IPv6 hosts stand in brackets."""
    assert split_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "8081", ":8081", "host:", "host:x", "::1:80", "h:65536", "http://h:80"]
)
def test_no_addresses(text: str) -> None:
    """Anything else is refused."""
    with pytest.raises(SettingsError):
        split_address(text)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("memory", "memory"),
        ("redis://h:1/0", "redis://h:1/0"),
        ("redis://user:secret@h:1/0", "redis://***@h:1/0"),
        ("redis://:se@cret@h:1/0", "redis://***@h:1/0"),
        ("redis://user@h:1/0", "redis://user@h:1/0"),
        ("redis://user:se/cr#et@h:1/0", "redis://***@h:1/0"),
        ("redis://user:sec?ret@h:1/0?db=1", "redis://***@h:1/0?db=1"),
        ("redis://h/0?p%61ssword=secret", "redis://h/0?p%61ssword=***"),
        ("redis://h/0?password_file=/run/a@b", "redis://h/0?password_file=/run/a@b"),
        (
            "redis+sentinel://h/n?sentinel_password=secret&db=1",
            "redis+sentinel://h/n?sentinel_password=***&db=1",
        ),
    ],
)
def test_redacted(url: str, shown: str) -> None:
    """A store URL is shown without its login: a user may be half of a password."""
    assert redacted(url) == shown


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, {}),
        ({"RUNTIME_ROOT": "/data"}, {"rules": "/data/config", "debug": "0.0.0.0:6070"}),
        (
            {"RUNTIME_ROOT": "/data", "RUNTIME_SUBDIRECTORY": "ratelimit"},
            {"rules": "/data/ratelimit/config", "debug": "0.0.0.0:6070"},
        ),
        (
            {
                "RUNTIME_ROOT": "/data/",
                "RUNTIME_SUBDIRECTORY": "/limits//",
                "RUNTIME_APPDIRECTORY": "/config/",
            },
            {"rules": "/data/limits/config", "debug": "0.0.0.0:6070"},
        ),
        (
            {"RUNTIME_SUBDIRECTORY": "r", "RUNTIME_APPDIRECTORY": "c"},
            {"rules": "/srv/runtime_data/current/r/c"},
        ),
        ({"DEBUG_HOST": "::"}, {"debug": "[::]:6070"}),
        ({"DEBUG_PORT": "1", "CONFIG_TYPE": "FILE"}, {"debug": "0.0.0.0:1"}),
        ({"USE_STATSD": "false", "STATSD_HOST": "h", "USE_PROMETHEUS": "0"}, {}),
        ({"USE_STATSD": "true"}, {"statsd": "localhost:8125"}),
        (
            {
                "USE_DOG_STATSD": "true",
                "STATSD_HOST": "h",
                "STATSD_PORT": "1",
                "STATS_FLUSH_INTERVAL": "5s",
                "EXTRA_TAGS": "a:b",
            },
            {
                "statsd": "h:1",
                "statsd_format": "dogstatsd",
                "statsd_interval_us": "5s",
                "statsd_tags": "a:b",
            },
        ),
        (
            {"USE_PROMETHEUS": "true", "PROMETHEUS_ADDR": ":19001", "PROMETHEUS_PATH": "/m"},
            {"reference_metrics": "0.0.0.0:19001", "reference_metrics_path": "/m"},
        ),
        ({"USE_PROMETHEUS": "true"}, {"reference_metrics": "0.0.0.0:9090"}),
        ({"USE_PROMETHEUS": "true", "USE_STATSD": "1", "DISABLE_STATS": "1"}, {}),
        ({"PORT": "80"}, {"http": "0.0.0.0:80"}),
        ({"HOST": "::", "GRPC_HOST": "::"}, {"http": "[::]:8080", "grpc": "[::]:8081"}),
        ({"GRPC_PORT": "1"}, {"grpc": "0.0.0.0:1"}),
        ({"REDIS_SOCKET_TYPE": "tcp", "REDIS_URL": "r:6379"}, {"store": "redis://r:6379"}),
        ({"REDIS_URL": "/run/redis.sock"}, {"store": "redis+unix:///run/redis.sock"}),
        ({"REDIS_URL": "/run/r:6379"}, {"store": "redis+unix:///run/r:6379"}),
        (
            {
                "REDIS_SOCKET_TYPE": "TCP",
                "REDIS_URL": "r:1",
                "REDIS_AUTH": "u:p:@",
                "REDIS_TLS": "true",
            },
            {"store": "rediss://u:p%3A%40@r:1"},
        ),
        (
            {"REDIS_SOCKET_TYPE": "tcp", "REDIS_URL": "redis://u:p@r:1/2", "REDIS_AUTH": "x"},
            {"store": "redis://u:p@r:1/2"},
        ),
        (
            {"REDIS_TYPE": "CLUSTER", "REDIS_URL": "a:1,b:2", "REDIS_AUTH": "x"},
            {"store": "redis+cluster://:x@a:1,b:2"},
        ),
        (
            {"REDIS_URL": "/r.sock", "REDIS_AUTH_FILE": "/run/a b"},
            {"store": "redis+unix:///r.sock?password_file=%2Frun%2Fa+b"},
        ),
        (
            {"REDIS_TYPE": "cluster", "REDIS_URL": "a:1", "REDIS_AUTH_FILE": "f", "REDIS_TLS": "1"},
            {"store": "rediss+cluster://a:1?password_file=f"},
        ),
        (
            {
                "REDIS_SOCKET_TYPE": "tcp",
                "REDIS_URL": "r:1",
                "REDIS_AUTH": "x",
                "REDIS_PERSECOND": "true",
                "REDIS_PERSECOND_URL": "rediss://s:2",
                "REDIS_PERSECOND_AUTH_FILE": "f",
            },
            {"store": "redis://:x@r:1", "second_store": "rediss://s:2?password_file=f"},
        ),
        (
            {"REDIS_TYPE": "SENTINEL", "REDIS_URL": "main,a:1,b:2"},
            {"store": "redis+sentinel://a:1,b:2/main"},
        ),
        (
            {
                "REDIS_SOCKET_TYPE": "tcp",
                "REDIS_URL": "r:1",
                "REDIS_PERSECOND": "true",
                "REDIS_PERSECOND_SOCKET_TYPE": "tcp",
                "REDIS_PERSECOND_URL": "s:2",
            },
            {"store": "redis://r:1", "second_store": "redis://s:2"},
        ),
        (
            {"REDIS_TYPE": "cluster", "REDIS_URL": "a:1,b:2", "REDIS_TLS": "true"},
            {"store": "rediss+cluster://a:1,b:2"},
        ),
        (
            {
                "REDIS_TYPE": "SENTINEL",
                "REDIS_URL": "main,a:1,b:2",
                "REDIS_AUTH": "x",
                "REDIS_SENTINEL_AUTH": "u:p&q",
                "REDIS_TLS": "true",
                "REDIS_TLS_CACERT": "/ca.pem",
                "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION": "true",
            },
            {
                "store": "rediss+sentinel://:x@a:1,b:2/main?ssl_ca_certs=%2Fca.pem"
                "&ssl_check_hostname=false&sentinel_username=u&sentinel_password=p%26q"
            },
        ),
        (
            {
                "REDIS_SOCKET_TYPE": "tcp",
                "REDIS_URL": "r:1",
                "REDIS_TLS": "true",
                "REDIS_TLS_CACERT": "ca",
                "REDIS_TLS_CLIENT_CERT": "c",
                "REDIS_TLS_CLIENT_KEY": "k",
                "REDIS_PERSECOND": "true",
                "REDIS_PERSECOND_TYPE": "cluster",
                "REDIS_PERSECOND_URL": "s:2",
                "REDIS_PERSECOND_TLS": "true",
                "REDIS_PERSECOND_TLS_CACERT": "ca2",
            },
            {
                "store": "rediss://r:1?ssl_ca_certs=ca&ssl_certfile=c&ssl_keyfile=k",
                "second_store": "rediss+cluster://s:2?ssl_ca_certs=ca2&ssl_certfile=c&ssl_keyfile=k",
            },
        ),
        ({"REDIS_TLS_CACERT": "ca", "REDIS_URL": "/s"}, {"store": "redis+unix:///s"}),
        (
            {"REDIS_SOCKET_TYPE": "tcp", "REDIS_URL": " r:6379\n", "REDIS_AUTH": "x y\r\n"},
            {"store": "redis://:x%20y@r:6379"},
        ),
        (
            {"REDIS_TYPE": "sentinel", "REDIS_URL": "main , a:1,\n b:2"},
            {"store": "redis+sentinel://a:1,b:2/main"},
        ),
        ({"CACHE_KEY_PREFIX": "edge:"}, {"key_prefix": "edge:"}),
        ({"LOG_LEVEL": "WARN", "SHADOW_MODE": "1"}, {"log_level": "WARN", "shadow_mode": "1"}),
        (
            {"LIMIT_RESPONSE_HEADERS_ENABLED": "t", "LIMIT_RESET_HEADER": "X-Reset"},
            {"limit_response_headers": "t", "reset_header": "X-Reset"},
        ),
    ],
)
def test_reference_environment(environment: dict[str, str], expected: dict[str, str]) -> None:
    """envoyproxy/ratelimit's names stand for our settings."""
    assert from_reference(environment) == expected


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"PORT": "http"}, "HOST and PORT: '0.0.0.0:http' is no address"),
        ({"NEAR_LIMIT_RATIO": "80"}, "NEAR_LIMIT_RATIO: '80' is no number from 0 to 1"),
        ({"QUOTA_MODE": "maybe"}, "QUOTA_MODE: 'maybe' is neither true nor false"),
        ({"LOG_LEVEL": "loud"}, "LOG_LEVEL: 'loud' is unknown: use trace or debug or info"),
        (
            {"REDIS_URL": "r:1", "REDIS_SOCKET_TYPE": "udp"},
            "REDIS_SOCKET_TYPE=udp is unknown: use tcp or unix",
        ),
        ({"REDIS_TYPE": "RING", "REDIS_URL": "r"}, "REDIS_TYPE=ring is unknown: use single"),
        ({"REDIS_URL": "r:6379"}, "if it is HOST:PORT, set REDIS_SOCKET_TYPE=tcp"),
        (
            {"REDIS_URL": "/r", "REDIS_PERSECOND": "true", "REDIS_PERSECOND_URL": "r:6379"},
            "REDIS_PERSECOND_URL is taken for the path of a Unix socket: if it is HOST:PORT, set "
            "REDIS_PERSECOND_SOCKET_TYPE=tcp",
        ),
        (
            {"REDIS_URL": "r:1", "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION": "x", "REDIS_TLS": "1"},
            "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION: 'x' is neither true nor false",
        ),
        ({"CACHE_KEY_PREFIX": "{a}"}, "CACHE_KEY_PREFIX: '{a}' is no key prefix"),
        ({"BACKEND_TYPE": "memcache"}, "BACKEND_TYPE=memcache is not supported"),
        ({"LIMIT_LIMIT_HEADER": "a b"}, "LIMIT_LIMIT_HEADER: 'a b' is no header name"),
    ],
)
def test_reference_environment_that_cannot_be_used(
    environment: dict[str, str], message: str
) -> None:
    """A value that cannot be used is refused by the name of its variable."""
    with pytest.raises(SettingsError) as refused:
        from_reference(environment)

    assert message in str(refused.value)


def test_every_default_can_be_typed() -> None:
    """A setting's default is what its parser makes of the default's text."""
    for each in settings():
        assert each.parse(
            each.default_text.lower() if each.metavar == "" else each.default_text
        ) == getattr(Settings(), each.name)


def test_defaults_of_an_image_rank_lowest() -> None:
    """RATELIMIT_DEFAULT_… holds only where the reference's environment says nothing either."""
    image = {"RATELIMIT_DEFAULT_RULES": "/etc/rules", "RATELIMIT_DEFAULT_LOG_LEVEL": "error"}

    assert defaults(image) == {"rules": "/etc/rules", "log_level": "error"}
    assert defaults({**image, "RUNTIME_ROOT": "/data"})["rules"] == "/data/config"


def test_defaults_of_an_image_that_cannot_be_used() -> None:
    """A default of an image is read as strictly as any value, and named."""
    with pytest.raises(SettingsError, match="RATELIMIT_DEFAULT_GRACE: '1' is no duration"):
        defaults({"RATELIMIT_DEFAULT_GRACE": "1"})


def test_names_are_taken_once() -> None:
    """No two settings share a flag or a name in the environment."""
    all_settings = list(settings())
    names = [
        name
        for each in all_settings
        for name in (each.flag, each.environment, each.default_environment)
    ]

    assert len(names) == len(set(names)) == 3 * len(all_settings)
