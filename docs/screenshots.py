"""Takes the pictures of docs/console.md anew, of a real service in a real Chromium.

    .venv/bin/python -m docs.screenshots

It takes a minute, and needs Chromium and redis-server. The service has two workers, and counters in
a ring of two servers. What callers ask for is drawn by chance, so no two pictures are alike.
"""

from __future__ import annotations

import http.client
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.servers.chromium import Chromium
from tests.servers.process import Process, free_port, listens
from tests.servers.redis import RedisServer

IMAGES = Path(__file__).parent / "images"
BIN = Path(sys.executable).parent
RULES = {
    "api.yaml": """\
domain: api
descriptors:
- key: user
  rate_limit: {unit: second, requests_per_unit: 5}
  descriptors:
  - {key: path, value: /login, rate_limit: {unit: minute, requests_per_unit: 3}}
- {key: plan, value: free, rate_limit: {unit: second, requests_per_unit: 20}}
- {key: plan, value: gold, shadow_mode: true, rate_limit: {unit: second, requests_per_unit: 500}}
""",
    "edge.yaml": """\
domain: edge
descriptors:
- {key: remote_address, rate_limit: {unit: minute, requests_per_unit: 600}}
""",
}
USERS = ("alice", "bob", "carol", "dave", "<b>eve</b>")
SECONDS = 40
AT_ONCE = "{behavior: 'instant'}"
WIDE, NARROW = (1200, 1240), (390, 844)


def ask(connection: http.client.HTTPConnection) -> None:
    """One call, as its callers make them."""
    chance = random.random()
    user = {"key": "user", "value": random.choice(USERS)}
    domain, entries = "api", [user]
    if chance < 0.2:
        entries = [user, {"key": "path", "value": "/login"}]
    elif chance < 0.3:
        entries = [{"key": "plan", "value": random.choice(("free", "gold"))}]
    elif chance < 0.5:
        address = f"192.0.2.{random.randrange(20)}"
        domain, entries = "edge", [{"key": "remote_address", "value": address}]
    body = json.dumps({"domain": domain, "descriptors": [{"entries": entries}]})
    connection.request("POST", "/json", body, {"Content-Type": "application/json"})
    connection.getresponse().read()


def steer(port: int, *words: str) -> None:
    """An override, by its command."""
    command = [str(BIN / "ratelimit"), *words, "--admin", f"127.0.0.1:{port}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    """Starts everything, asks for a while with the page open, and takes the pictures."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        servers = []
        for number in range(2):
            (directory / str(number)).mkdir()
            servers.append(RedisServer(directory / str(number)))
            servers[-1].start()
        for file, text in RULES.items():
            (directory / "rules" / file).parent.mkdir(exist_ok=True)
            (directory / "rules" / file).write_text(text)
        http_port, admin_port = free_port(), free_port()
        ring = ",".join(f"127.0.0.1:{server.port}" for server in servers)
        command = ["env", "--chdir", name]  # so that rules have the short names of a checkout
        command += [str(BIN / "ratelimit"), "serve", "--rules", "rules", "--workers", "2"]
        command += ["--store", f"redis+ring://{ring}", "--store-timeout", "1s"]
        command += ["--grpc", "127.0.0.1:0", "--http", f"127.0.0.1:{http_port}"]
        command += ["--admin", f"127.0.0.1:{admin_port}"]
        service = Process(command, directory / "log", family=True)
        service.spawn()
        try:
            service.wait_ready(lambda: listens(http_port) and listens(admin_port))
            steer(admin_port, "grant", "api", "user=alice", "--hits", "50", "--for", "1h")
            steer(
                admin_port,
                *("ban", "api", "user=mallory", "--for", "2h", "--reason", "credential stuffing"),
            )
            take(directory, http_port, admin_port)
        finally:
            service.kill()
            for server in servers:
                server.kill()


def take(directory: Path, http_port: int, admin_port: int) -> None:
    """The pictures, after some time of calls."""
    browser = Chromium(directory, local=True)
    try:
        browser.visit(f"http://127.0.0.1:{admin_port}/", *WIDE)
        calls = http.client.HTTPConnection("127.0.0.1", http_port)
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            ask(calls)
            time.sleep(random.uniform(0.0, 0.04))
        calls.close()
        browser.picture(IMAGES / "console.png")
        for part in ("callers", "health"):
            browser.run(f"document.querySelector('#{part}').scrollIntoView({AT_ONCE})")
            browser.picture(IMAGES / f"console-{part}.png")
        browser.resize(*NARROW, dark=True)
        browser.run(f"scrollTo({{top: 0, ...{AT_ONCE}}})")
        browser.picture(IMAGES / "console-phone.png")
    finally:
        browser.close()


if __name__ == "__main__":
    main()
