// Servers of the store, processes, and what is wrong.

import { by, duration, make, say } from "./dom.js";

/** What single processes tell: the service's health knows it a little later. */
let ofProcesses = {};

/** Shows what a message says of health, with what single processes tell. */
export function showHealth({ serving, phase, faults }) {
  const ill = Object.entries({ ...ofProcesses, ...faults });
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
  showShards(deciding);
  ofProcesses = Object.assign({}, ...deciding.map((each) => each.faults));
  const known = new Map(deciding.map((each) => [each.pid, each]));
  const workers = supervisor.workers.map((worker) => row(`worker ${worker.worker} (${worker.pid})`, worker.state, worker.version, worker.connections, known.get(worker.pid)));
  const first = supervisor.workers.length ? "supervisor" : "process";
  const state = supervisor.restarting ? "restarting" : supervisor.restart_error || "running";
  by("process-rows").replaceChildren(row(`${first} (${supervisor.pid})`, state, supervisor.version, "", known.get(supervisor.pid)), ...workers);
}

/** Shows the servers of the store, each as all processes see it together. */
function showShards(deciding) {
  const seen = new Map();
  for (const { shards } of deciding) {
    for (const each of shards ?? []) {
      const key = JSON.stringify([each.kind, each.name]);
      seen.set(key, [...(seen.get(key) ?? []), each]);
    }
  }
  by("shards").hidden = !seen.size;
  by("shard-rows").replaceChildren(...[...seen.values()].map(shardRow));
}

function shardRow(views) {
  const [{ name, kind }] = views;
  const there = views.filter(({ address }) => address);
  const open = views.filter((view) => view.breaker_open);
  const trips = views.map((view) => view.round_trip_us).filter((trip) => trip !== null);
  const sum = (field) => views.reduce((found, view) => found + view[field], 0);
  const title = make("th", { scope: "row", class: "name" }, name);
  const at = there.find(({ address }) => !address.startsWith(name))?.address;
  title.append(make("div", { class: "source" }, at ? `${kind}, now ${at}` : kind));
  return make(
    "tr",
    {},
    title,
    make("td", { class: there.length < views.length ? "bad" : "" }, share("connected", there, views) || "away"),
    make("td", { class: open.length ? "bad" : "" }, share("open", open, views) || "closed"),
    ...[duration(trips.length ? Math.max(...trips) : null), sum("under_way"), sum("waiting"), Math.max(...views.map(({ processes }) => processes))].map((cell) => make("td", { class: "number" }, cell)),
  );
}

/** The word, with the number of processes of which it is true if that is not all of them. */
function share(word, some, all) {
  if (some.length === all.length) return word;
  return some.length ? `${word} in ${some.length} of ${all.length} processes` : "";
}

function row(name, state, version, connections, known) {
  const faults = Object.entries(known?.faults ?? {}).map(([component, why]) => `${component}: ${why}`).join("; ");
  const cells = [state, version, connections, known?.counters ?? "", faults];
  return make("tr", {}, make("th", { scope: "row" }, name), ...cells.map((cell, place) => make("td", { class: place === 2 || place === 3 ? "number" : place === 4 ? "bad" : "" }, cell ?? "")));
}
