"""What can be set: one field, with its default, its text for people and how its text is read.

The only module that knows the environment's names. The command line makes a flag of every
field (`max_counters` is `--max-counters`, else `RATELIMIT_MAX_COUNTERS`); below these count
envoyproxy/ratelimit's own names (`from_reference`), so that this service can stand in for it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

from ratelimit_service.errors import SettingsError
from ratelimit_service.model import FailurePolicy

__all__ = [
    "HANDOVER",
    "Setting",
    "Settings",
    "from_reference",
    "inherited",
    "parse_duration",
    "redacted",
    "settings",
    "split_address",
    "unix_path",
]

HANDOVER = "RATELIMIT_HANDOVER"
"""Where a process that replaces its program tells the next one what it has left; no setting."""

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(us|µs|ms|s|m|h)")
_UNITS_US = {
    "us": 1,
    "µs": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
}
_LOG_LEVELS = {
    "trace": "debug",
    "debug": "debug",
    "info": "info",
    "warn": "warning",
    "warning": "warning",
    "error": "error",
    "fatal": "critical",
    "panic": "critical",
}


def parse_duration(text: str) -> int:
    """Microseconds of a duration such as `10ms`, `1.5s` or `1m30s`."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise SettingsError(f"{text!r} is no duration: write a number and us, ms, s, m or h: 10ms")
    return round(sum(float(number) * _UNITS_US[unit] for number, unit in parts))


def split_address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`; an IPv6 host stands in brackets."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise SettingsError(f"{text!r} is no address: write HOST:PORT, as in 0.0.0.0:8081")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise SettingsError(f"{text!r}: write an IPv6 host in brackets, as in [::]:8081")
    return host.strip("[]"), int(port)


def unix_path(address: str) -> str | None:
    """The path of `unix:PATH`, None for any other address. Raises SettingsError without a path."""
    kind, _, path = address.partition(":")
    if kind != "unix":
        return None
    if not path:
        raise SettingsError(f"{address!r} names no socket: write unix:/run/ratelimit.sock")
    return path.removeprefix("//")


def redacted(url: str) -> str:
    """A store URL fit for a log: without its passwords, also where they are not encoded."""
    scheme, slashes, rest = url.partition("://")
    head, mark, query = rest.partition("?")
    login, at, place = head.rpartition("@")
    if not at and "@" in query and "=" not in query.partition("@")[0]:  # it is in the password
        login, at, place = rest.rpartition("@")
        place, mark, query = place.partition("?")
    user, colon, _ = login.partition(":")
    options = "&".join(map(_without_password, query.split("&")))
    return f"{scheme}{slashes}{user}{colon and ':***'}{at}{place}{mark}{options}"


def _without_password(option: str) -> str:
    name, equals, _ = option.partition("=")
    return f"{name}=***" if equals and unquote(name).endswith("password") else option


def _address(text: str) -> str:
    split_address(text)
    return text


def _grpc_address(text: str) -> str:
    if unix_path(text) is None:
        split_address(text)
    return text


def _policy(text: str) -> FailurePolicy:
    return FailurePolicy(_choice(*FailurePolicy)(text))


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in allowed:
            raise SettingsError(f"{text!r} is unknown: use {' or '.join(allowed)}")
        return text.lower()

    return parse


def _log_level(text: str) -> str:
    return _LOG_LEVELS[_choice(*_LOG_LEVELS)(text)]


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise SettingsError(f"{text!r} is no number from 1 upwards")
    return int(text)


def _number(text: str) -> int:
    if not text.isdecimal():
        raise SettingsError(f"{text!r} is no number from 0 upwards")
    return int(text)


def _ratio(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0.0 <= ratio <= 1.0:
        raise SettingsError(f"{text!r} is no number from 0 to 1")
    return ratio


def _header_name(text: str) -> str:
    if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", text):
        raise SettingsError(f"{text!r} is no header name: use letters, digits and -")
    return text


def _switch(text: str) -> bool:
    """A boolean as Go's ParseBool reads it, which is how the reference's users write it."""
    if text in {"1", "t", "T", "true", "TRUE", "True"}:
        return True
    if text in {"0", "f", "F", "false", "FALSE", "False"}:
        return False
    raise SettingsError(f"{text!r} is neither true nor false")


class Setting(NamedTuple):
    """How a field is shown and read; `reference` is envoyproxy/ratelimit's name for the same.

    `name` is the field's; a `metavar` of "" marks a switch.
    """

    name: str
    default: object
    help: str
    metavar: str
    parse: Callable[[str], object]
    reference: str

    @property
    def flag(self) -> str:
        """The flag on the command line."""
        return "--" + self.name.removesuffix("_us").replace("_", "-")

    @property
    def default_text(self) -> str:
        """The default as it would be typed."""
        if isinstance(self.default, int) and self.name.endswith("_us"):
            milliseconds = self.default // 1_000
            return f"{milliseconds}ms" if milliseconds % 1_000 else f"{milliseconds // 1_000}s"
        return str(self.default)

    @property
    def environment(self) -> str:
        """The name in the environment."""
        return "RATELIMIT_" + self.name.removesuffix("_us").upper()


def _described(
    text: str, metavar: str, parse: Callable[[str], object], reference: str = ""
) -> dict[str, object]:
    return {"help": text, "metavar": metavar, "parse": parse, "reference": reference}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything `ratelimit serve` can be told. Durations are microseconds."""

    rules: Path = field(
        default=Path("rules"),
        metadata=_described(
            "A rule file, or a directory whose files are all loaded.", "PATH", Path
        ),
    )
    store: str = field(
        default="memory",
        metadata=_described(
            "Where counters live: memory, redis://HOST:PORT/DB, rediss://…, redis+unix:///PATH, "
            "redis+sentinel://HOST:PORT,…/NAME, redis+cluster://HOST:PORT,…, "
            "redis+ring://HOST:PORT,…/DB or file:SHARDS.yaml.",
            "URL",
            str,
        ),
    )
    second_store: str = field(
        default="",
        metadata=_described(
            "Where counters live whose window is a second, if not in the store.", "URL", str
        ),
    )
    local_cache_bytes: int = field(
        default=8_388_608,
        metadata=_described(
            "The most memory for keys known to be over their limit in Redis; 0 for none.",
            "N",
            _number,
            "LOCAL_CACHE_SIZE_IN_BYTES",
        ),
    )
    grpc: str = field(
        default="0.0.0.0:8081",
        metadata=_described(
            "Where Envoy calls; unix:PATH for a Unix socket.", "HOST:PORT", _grpc_address
        ),
    )
    http: str = field(
        default="0.0.0.0:8080",
        metadata=_described(
            "Where /healthcheck, /metrics, /json and /rlconfig are.", "HOST:PORT", _address
        ),
    )
    http_hosts: str = field(
        default="",
        metadata=_described(
            "Public names by which callers reach the HTTP port, beside addresses and names of a "
            "private network; * for any.",
            "NAME,…",
            str,
        ),
    )
    no_json: bool = field(
        default=False,
        metadata=_described("Make no decisions over HTTP: no /json.", "", _switch),
    )
    json_refunds: bool = field(
        default=False,
        metadata=_described("Take refunds over HTTP too: isNegativeHits in /json.", "", _switch),
    )
    no_reflection: bool = field(
        default=False,
        metadata=_described("Do not tell gRPC callers what there is to call.", "", _switch),
    )
    workers: int = field(
        default=0,
        metadata=_described(
            "How many processes decide, if the store is in Redis; 0 is one for each core.",
            "N",
            _number,
        ),
    )
    store_timeout_us: int = field(
        default=10_000,
        metadata=_described(
            "How long a request waits for the store before the failure policy answers.",
            "DURATION",
            parse_duration,
        ),
    )
    failure_policy: FailurePolicy = field(
        default=FailurePolicy.OPEN,
        metadata=_described(
            "What answers when the store does not: open (allow), closed (deny), error, or local "
            "(count in this process).",
            "POLICY",
            _policy,
        ),
    )
    count_denied: bool = field(
        default=False,
        metadata=_described("Count hits of denied requests too, in every rule.", "", _switch),
    )
    shadow_mode: bool = field(
        default=False,
        metadata=_described("Deny nothing, whatever the rules say.", "", _switch, "SHADOW_MODE"),
    )
    quota_mode: bool = field(
        default=False,
        metadata=_described("Treat every rule as a quota.", "", _switch, "QUOTA_MODE"),
    )
    max_counters: int = field(
        default=1_000_000,
        metadata=_described("The most counters the memory store holds.", "N", _positive),
    )
    strict_rules: bool = field(
        default=False,
        metadata=_described("Refuse to start with any problem in the rules.", "", _switch),
    )
    near_limit_ratio: float = field(
        default=0.8,
        metadata=_described(
            "The share of a limit above which hits count as near it.",
            "RATIO",
            _ratio,
            "NEAR_LIMIT_RATIO",
        ),
    )
    limit_response_headers: bool = field(
        default=False,
        metadata=_described(
            "Add limit, remaining and reset headers to responses.",
            "",
            _switch,
            "LIMIT_RESPONSE_HEADERS_ENABLED",
        ),
    )
    limit_header: str = field(
        default="RateLimit-Limit",
        metadata=_described(
            "The name of the header with the limit.", "NAME", _header_name, "LIMIT_LIMIT_HEADER"
        ),
    )
    remaining_header: str = field(
        default="RateLimit-Remaining",
        metadata=_described(
            "The name of the header with the remaining hits.",
            "NAME",
            _header_name,
            "LIMIT_REMAINING_HEADER",
        ),
    )
    reset_header: str = field(
        default="RateLimit-Reset",
        metadata=_described(
            "The name of the header with the seconds until the reset.",
            "NAME",
            _header_name,
            "LIMIT_RESET_HEADER",
        ),
    )
    dynamic_metadata: bool = field(
        default=False,
        metadata=_described(
            "Return the request and the rules' metadata as Envoy dynamic metadata.",
            "",
            _switch,
            "RESPONSE_DYNAMIC_METADATA",
        ),
    )
    transport: str = field(
        default="h2",
        metadata=_described(
            "What speaks gRPC: h2, our own and fast, or grpcio.", "NAME", _choice("h2", "grpcio")
        ),
    )
    max_connection_age_us: int = field(
        default=0,
        metadata=_described(
            "How old a gRPC connection may get before its client is sent elsewhere; 0s is any age.",
            "DURATION",
            parse_duration,
            "GRPC_MAX_CONNECTION_AGE",
        ),
    )
    max_connections: int = field(
        default=10_000,
        metadata=_described(
            "The most gRPC connections; 0 is as many as files may be open. For h2.",
            "N",
            _number,
        ),
    )
    max_connections_per_peer: int = field(
        default=2_500,
        metadata=_described(
            "The most gRPC connections from one address; 0 is no bound. For h2.", "N", _number
        ),
    )
    tls_cert: str = field(
        default="",
        metadata=_described(
            "A PEM file: the certificate of the gRPC port, with its chain. Without it no TLS.",
            "FILE",
            str,
            "GRPC_SERVER_TLS_CERT",
        ),
    )
    tls_key: str = field(
        default="",
        metadata=_described("A PEM file: its key.", "FILE", str, "GRPC_SERVER_TLS_KEY"),
    )
    tls_client_ca: str = field(
        default="",
        metadata=_described(
            "A PEM file: the authorities of which callers need a certificate.",
            "FILE",
            str,
            "GRPC_CLIENT_TLS_CACERT",
        ),
    )
    tls_client_san: str = field(
        default="",
        metadata=_described(
            "What a caller's certificate must be for: a DNS name, an IP address or a URI.",
            "NAME",
            str,
            "GRPC_CLIENT_TLS_SAN",
        ),
    )
    grace_us: int = field(
        default=10_000_000,
        metadata=_described(
            "How long requests in flight may take to finish after SIGTERM.",
            "DURATION",
            parse_duration,
        ),
    )
    log_level: str = field(
        default="info",
        metadata=_described("debug, info, warning or error.", "LEVEL", _log_level, "LOG_LEVEL"),
    )
    log_format: str = field(
        default="text",
        metadata=_described("text or json.", "FORMAT", _choice("text", "json"), "LOG_FORMAT"),
    )


def settings() -> Iterator[Setting]:
    """Every setting, in the order in which help and docs show them."""
    for each in fields(Settings):
        assert each.default is not MISSING  # noqa: S101 -- every field above has one
        yield Setting(each.name, each.default, **each.metadata)


def inherited() -> int | None:
    """The descriptor of what a former program of this process has left; told once."""
    left = os.environ.pop(HANDOVER, "")
    return int(left) if left else None


def from_reference(environ: Mapping[str, str]) -> dict[str, str]:
    """The values that envoyproxy/ratelimit's environment names stand for, by field name.

    Raises SettingsError for what this service cannot stand in for.
    """
    found = {}
    for each in settings():
        if text := environ.get(each.reference):
            found[each.name] = _checked(each.reference, text, each.parse)
    if not _switch(
        _checked("GRPC_SERVER_USE_TLS", environ.get("GRPC_SERVER_USE_TLS") or "false", _switch)
    ):
        for name in ("tls_cert", "tls_key", "tls_client_ca", "tls_client_san"):
            found.pop(name, None)
    if path := environ.get("GRPC_UDS"):
        found["grpc"] = f"unix:{path}"
    if any(environ.get(name) for name in _RUNTIME):
        found["rules"] = str(
            Path(*(environ.get(name, default) for name, default in _RUNTIME.items()))
        )
    for name, host, port in (("http", "HOST", "PORT"), ("grpc", "GRPC_HOST", "GRPC_PORT")):
        if name not in found and (environ.get(host) or environ.get(port)):
            default_host, default_port = split_address(str(getattr(Settings(), name)))
            place = environ.get(host) or default_host
            place = f"[{place}]" if ":" in place else place
            text = f"{place}:{environ.get(port) or default_port}"
            found[name] = _checked(f"{host} and {port}", text, split_address)
    backend = environ.get("BACKEND_TYPE") or "redis"
    if backend != "redis":
        raise SettingsError(
            f"BACKEND_TYPE={backend} is not supported: use redis, or --store memory"
        )
    if environ.get("REDIS_URL"):
        found["store"] = _reference_store(environ, "REDIS_")
        per_second = environ.get("REDIS_PERSECOND") or "false"
        if _switch(_checked("REDIS_PERSECOND", per_second, _switch)) and environ.get(
            "REDIS_PERSECOND_URL"
        ):
            found["second_store"] = _reference_store(environ, "REDIS_PERSECOND_")
    return found


def _checked(name: str, text: str, parse: Callable[[str], object]) -> str:
    """The text, if it can be read; else the error names the variable."""
    try:
        parse(text)
    except SettingsError as error:
        raise SettingsError(f"{name}: {error}") from error
    return text


_RUNTIME = {
    "RUNTIME_ROOT": "/srv/runtime_data/current",
    "RUNTIME_SUBDIRECTORY": "",
    "RUNTIME_APPDIRECTORY": "config",
}


def _reference_store(environ: Mapping[str, str], prefix: str) -> str:
    kind = (environ.get(f"{prefix}TYPE") or "single").lower()
    if kind not in {"single", "sentinel", "cluster"}:
        raise SettingsError(f"{prefix}TYPE={kind} is unknown: use single, sentinel or cluster")
    url = environ[f"{prefix}URL"]
    auth = environ.get(f"{prefix}AUTH", "")
    user, _, password = auth.partition(":") if ":" in auth else ("", "", auth)
    login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if password else ""
    tls = _switch(_checked(f"{prefix}TLS", environ.get(f"{prefix}TLS") or "false", _switch))
    if kind != "single":
        if tls:
            raise SettingsError(
                f"{prefix}TLS with {prefix}TYPE={kind} does not say which authorities to trust: "
                "write --store redis+…://…?ssl_ca_certs=FILE"
            )
        first, _, others = url.partition(",")
        hosts = f"{others}/{first}" if kind == "sentinel" else url
        return f"redis+{kind}://{login}{hosts}"
    if url.startswith(("redis://", "rediss://")):
        scheme, _, place = url.partition("://")
        login = "" if "@" in place else login
        return f"{'rediss' if tls else scheme}://{login}{place}"
    if environ.get(f"{prefix}SOCKET_TYPE", "unix") == "unix":
        return f"redis+unix://{login}{url}"
    return f"{'rediss' if tls else 'redis'}://{login}{url}"
