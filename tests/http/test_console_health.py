"""What the console says of health, by its own script on a page that only keeps text."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from tests.conftest import need

PAGE = Path(__file__).parents[2] / "ratelimit_service" / "http" / "console_page"

SCRIPT = """
const found = new Map();
const element = () => ({
  dataset: {}, children: [], textContent: "",
  setAttribute() {}, append(...more) { this.children.push(...more); },
  replaceChildren(...more) { this.children = more; },
});
globalThis.Node = class {};
globalThis.document = {
  createElement: element,
  getElementById: (id) => found.get(id) ?? (found.set(id, element()), found.get(id)),
};
const { showHealth, showProcesses } = await import("./health.js");
const listed = () => found.get("fault-list").children.map((line) => line.children.join(""));
const well = { serving: true, phase: "serving", faults: {} };
const processes = (faults) => showProcesses({
  supervisor: { pid: 1, version: "1", connections: 0, workers: [] },
  deciding: [{ pid: 1, faults, shards: [] }], store: "redis",
});
const told = [];
processes({});
showHealth(well);
told.push(listed());
processes({ store: "is away" });
showHealth(well);
told.push(listed());
processes({});
showHealth(well);
told.push(listed());
console.log(JSON.stringify(told));
"""


def test_a_fault_of_one_process_is_told(tmp_path: Path) -> None:
    """The page does not say that nothing is degraded while a process below has a fault."""
    need("node", "apt install nodejs")
    shutil.copytree(PAGE, tmp_path / "page")
    (tmp_path / "page" / "package.json").write_text('{"type": "module"}')
    (tmp_path / "page" / "script.js").write_text(SCRIPT)

    ran = subprocess.run(
        ["node", str(tmp_path / "page" / "script.js")], capture_output=True, text=True, check=False
    )

    assert ran.returncode == 0, ran.stderr
    nothing = ["Nothing is degraded."]
    assert json.loads(ran.stdout) == [nothing, ["store: is away"], nothing]
