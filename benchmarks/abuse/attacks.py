"""The attacker: runs one attack. All of it is bytes; nothing waits for leave.

Run by the driver as a process of its own (`python -m benchmarks.abuse.attacks NAME ...`), which is
told when to begin and to end; prints one line of JSON: how its connections ended, and what else it
found.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
import time
from pathlib import Path

import uvloop

# Each of these puts its attacks into the table.
from benchmarks.abuse import at_once, on_grpc, on_grpc_tls, on_http, on_streams  # noqa: F401
from benchmarks.abuse.attack import ATTACKS
from benchmarks.abuse.wire import Aim, told_when

__all__ = ["ATTACKS"]


async def act(name: str, aim: Aim) -> dict[str, object]:
    await asyncio.sleep(max(0.0, aim.begins - time.perf_counter()))
    async with aim:
        try:
            async with asyncio.timeout(max(1.0, aim.left + 6)):
                await ATTACKS[name].act(aim)
        except TimeoutError:
            aim.findings.append("stopped: the service was too slow for it")
        return aim.report()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=ATTACKS)
    parser.add_argument("grpc_port", type=int)
    parser.add_argument("http_port", type=int)
    parser.add_argument(
        "--authority", type=Path, help="A file of whom to trust: the port speaks TLS."
    )
    arguments = parser.parse_args()
    context = None
    if arguments.authority:
        context = ssl.create_default_context(cafile=arguments.authority)
        context.set_alpn_protocols(["h2"])
    begins, ends = told_when()
    aim = Aim(arguments.grpc_port, arguments.http_port, begins, ends, context, arguments.authority)
    print(json.dumps(uvloop.run(act(arguments.name, aim))))


if __name__ == "__main__":
    main()
