"""Takes the pictures of the console, of a replay and of the playground anew, in a real Chromium.

    .venv/bin/python -m docs.screenshots [console] [replay] [playground]

It needs Chromium. Those of the console take a minute, and redis-server too: the service has two
workers, and counters in a ring of two servers. What callers ask for there is drawn by chance, so no
two pictures are alike. Those of a replay are always of the same log, and those of the
playground of the same hits.
"""

from __future__ import annotations

import math
import random
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from ratelimit_service.cli.service_client import Client
from ratelimit_service.model import Descriptor, Entry, Request
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
- {key: remote_address, rate_limit: {unit: hour, requests_per_unit: 2000}}
""",
}
USERS = ("alice", "bob", "carol", "dave", "<b>eve</b>")
CALLERS, SECONDS = 4, 60
AT_ONCE = "{behavior: 'instant'}"
WIDE, NARROW = (1200, 1240), (390, 844)
REPLAYED = """\
domain: api
descriptors:
- key: user
  rate_limit: {{unit: hour, requests_per_unit: {most}}}
  descriptors:
  - {{key: path, value: /login, rate_limit: {{unit: hour, requests_per_unit: 40}}}}
"""
OLD, NEW = 30, 15
RECORDED, USERS_RECORDED = 60_000, 900
PLAYGROUND = (1000, 1090)
REPLAY_WIDE, REPLAY_NARROW = (1000, 1450), (390, 1150)


def ask(client: Client) -> None:
    """One call, as its callers make them."""
    chance = random.random()
    user = Entry("user", random.choice(USERS))
    domain, entries = "api", (user,)
    if chance < 0.2:
        entries = (user, Entry("path", "/login"))
    elif chance < 0.3:
        entries = (Entry("plan", random.choice(("free", "gold"))),)
    elif chance < 0.5:
        entries, domain = (Entry("remote_address", f"192.0.2.{random.randrange(20)}"),), "edge"
    client.should_rate_limit(Request(domain, (Descriptor(entries),)), 5_000_000)


def keep_asking(port: int, enough: threading.Event) -> None:
    """A caller with a connection of its own; it also asks while pictures are taken."""
    with Client(f"127.0.0.1:{port}") as client:
        while not enough.wait(random.uniform(0.0, 0.04)):
            ask(client)


def override(port: int, *words: str) -> None:
    """An override, by its command."""
    command = [str(BIN / "ratelimit"), *words, "--admin", f"127.0.0.1:{port}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def recorded() -> str:
    """A day's requests as CSV: more by day than by night, most of them of few callers."""
    chance = random.Random(1)
    users = [f"user-{number}" for number in range(USERS_RECORDED)]
    users[3:3], users[6:6] = ["crawler-7"], ["batch-2"]
    weights = [1 / (rank + 3) for rank in range(len(users))]
    busy = [1.2 + math.sin((minute - 480) / 720 * math.pi) for minute in range(24 * 60)]
    minutes = sorted(chance.choices(range(24 * 60), busy, k=RECORDED))
    rows = ["time,domain,user,path"]
    for minute, user in zip(minutes, chance.choices(users, weights, k=RECORDED), strict=True):
        path = "/login" if chance.random() < 0.04 else ""
        rows.append(f"2026-01-01T{minute // 60:02}:{minute % 60:02}:00Z,api,{user},{path}")
    return "\n".join(rows)


def take_replay() -> None:
    """The pictures of a replay's report."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for file, most in (("old.yaml", OLD), ("new.yaml", NEW)):
            (directory / file).write_text(REPLAYED.format(most=most))
        (directory / "requests.csv").write_text(recorded())
        command = [str(BIN / "ratelimit"), "replay", "--rules", "new.yaml", "--against", "old.yaml"]
        command += ["--html", "report.html", "requests.csv"]
        # It tells by its exit status that something changes.
        subprocess.run(command, cwd=directory, stdout=subprocess.DEVNULL, check=False)
        browser = Chromium(directory)
        try:
            browser.picture(IMAGES / "replay.png")  # from now on there are no scroll bars
            browser.open(directory / "report.html", *REPLAY_NARROW, dark=True)
            browser.picture(IMAGES / "replay-phone.png")
            for image, size, dark in (
                ("replay.png", REPLAY_WIDE, False),
                ("replay-phone.png", REPLAY_NARROW, True),
            ):
                browser.open(directory / "report.html", *size, dark=dark)
                for _ in range(2):  # the first one hides the scroll bars
                    browser.picture(IMAGES / image)
        finally:
            browser.close()


def take_playground() -> None:
    """The picture of the playground, just after an edge of a window."""
    with tempfile.TemporaryDirectory() as name:
        browser = Chromium(Path(name))
        try:
            for _ in range(2):  # the first one hides the scroll bars
                browser.open(IMAGES.parent / "playground.html", *PLAYGROUND)
                for button in ("#edge", "#second", "#second"):
                    browser.press(button)
                browser.run("scrollTo(0, 0)")
                browser.picture(IMAGES / "playground.png")
        finally:
            browser.close()


def take_console() -> None:
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
        grpc_port, http_port, admin_port = free_port(), free_port(), free_port()
        ring = ",".join(f"127.0.0.1:{server.port}" for server in servers)
        command = ["env", "--chdir", name]  # so that rules have the short names of a checkout
        command += [str(BIN / "ratelimit"), "serve", "--rules", "rules", "--workers", "2"]
        command += ["--store", f"redis+ring://{ring}", "--store-timeout", "1s"]
        command += ["--grpc", f"127.0.0.1:{grpc_port}", "--http", f"127.0.0.1:{http_port}"]
        command += ["--admin", f"127.0.0.1:{admin_port}"]
        service = Process(command, directory / "log", family=True)
        service.spawn()
        try:
            service.wait_ready(lambda: listens(http_port) and listens(admin_port))
            address = "remote_address=192.0.2.7"
            override(admin_port, "grant", "edge", address, "--hits", "500", "--for", "1h")
            override(
                admin_port,
                *("ban", "api", "user=mallory", "--for", "2h", "--reason", "credential stuffing"),
            )
            take(directory, grpc_port, admin_port)
        finally:
            service.kill()
            for server in servers:
                server.kill()


def take(directory: Path, grpc_port: int, admin_port: int) -> None:
    """The pictures, after some time of calls."""
    browser = Chromium(directory, local=True)
    enough = threading.Event()
    callers = [
        threading.Thread(target=keep_asking, args=(grpc_port, enough)) for _ in range(CALLERS)
    ]
    try:
        browser.visit(f"http://127.0.0.1:{admin_port}/", *WIDE)
        for caller in callers:
            caller.start()
        enough.wait(SECONDS)
        browser.picture(IMAGES / "console.png")
        for part in ("callers", "health"):
            browser.run(f"document.querySelector('#{part}').scrollIntoView({AT_ONCE})")
            browser.picture(IMAGES / f"console-{part}.png")
        browser.resize(*NARROW, dark=True)
        browser.run(f"scrollTo({{top: 0, ...{AT_ONCE}}})")
        browser.picture(IMAGES / "console-phone.png")
    finally:
        enough.set()
        for caller in callers:
            if caller.ident is not None:
                caller.join()
        browser.close()


def main() -> None:
    """Those that are named, else all."""
    takes = {"console": take_console, "replay": take_replay, "playground": take_playground}
    for name, taken in takes.items():
        if name in sys.argv[1:] or not sys.argv[1:]:
            taken()


if __name__ == "__main__":
    main()
