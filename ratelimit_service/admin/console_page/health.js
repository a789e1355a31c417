// Processes, and what is wrong.

import { by, make, say } from "./dom.js";

/** Shows what a message says of health. */
export function showHealth({ serving, phase, faults }) {
  const ill = Object.entries(faults);
  const state = by("state");
  say(state, serving ? (ill.length ? "degraded" : "serving") : phase === "serving" ? "not serving" : phase);
  state.className = `pill ${serving && !ill.length ? "well" : "ill"}`;
  const lines = ill.map(([component, why]) => `${component}: ${why}`);
  const text = lines.join("\n");
  const list = by("fault-list");
  if (list.dataset.shown === text) return;
  list.dataset.shown = text;
  list.replaceChildren(...(lines.length ? lines : ["Nothing is degraded."]).map((line) => make("li", { class: lines.length ? "bad" : "soft" }, line)));
}

/** Shows the processes. */
export function showProcesses({ supervisor, deciding, store }) {
  say(by("store"), store);
  const known = new Map(deciding.map((each) => [each.pid, each]));
  const workers = supervisor.workers.map((worker) => row(`worker ${worker.worker} (${worker.pid})`, worker.state, worker.version, worker.connections, known.get(worker.pid)));
  const first = supervisor.workers.length ? "supervisor" : "process";
  const state = supervisor.restarting ? "restarting" : supervisor.restart_error || "running";
  by("process-rows").replaceChildren(row(`${first} (${supervisor.pid})`, state, supervisor.version, "", known.get(supervisor.pid)), ...workers);
}

function row(name, state, version, connections, known) {
  const faults = Object.entries(known?.faults ?? {}).map(([component, why]) => `${component}: ${why}`).join("; ");
  const cells = [state, version, connections, known?.counters ?? "", faults];
  return make("tr", {}, make("th", { scope: "row" }, name), ...cells.map((cell, place) => make("td", { class: place === 2 || place === 3 ? "number" : place === 4 ? "bad" : "" }, cell ?? "")));
}
