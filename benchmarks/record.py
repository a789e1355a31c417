"""Records the header blocks of a real Envoy that traces, for `load.py`.

Run from the top: `.venv/bin/python -m benchmarks.record`. It needs what the tests need.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

from tests.servers.envoy import Envoy, shipped_config, traced
from tests.servers.recorder import Recorder

BLOCKS = Path(__file__).with_name("envoy-blocks.json")
CALLS = 200


async def main() -> None:
    recorded: list[bytes] = []
    server, port = await Recorder.serve(recorded)
    with tempfile.TemporaryDirectory() as directory:
        envoy = Envoy(traced(shipped_config()), Path(directory), {"ratelimit": port})
        await asyncio.to_thread(envoy.start)
        for _ in range(CALLS + 2):
            await asyncio.to_thread(envoy.get, "/", x_user="alice")
        envoy.kill()
    server.close()
    # The first two still speak of the table that Envoy is then told not to use.
    BLOCKS.write_text(json.dumps([block.hex() for block in recorded[2:]], indent=0) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
