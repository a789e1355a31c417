// The last denials, each with its reason.

import { by, make } from "./dom.js";
import { lasting } from "./words.js";

const MOST = 100;
let paused = false;

by("pause").addEventListener("click", () => {
  paused = !paused;
  by("pause").setAttribute("aria-pressed", String(paused));
  by("pause").textContent = paused ? "Go on" : "Pause";
});

/** Puts denials, which are lines of the decision log, above those before. */
export function showDenials(lines) {
  if (paused || !lines.length) return;
  const list = by("denial-list");
  for (const line of lines) list.prepend(item(JSON.parse(line)));
  while (list.children.length > MOST) list.lastChild.remove();
}

function item(said) {
  const time = make("time", { datetime: said.time }, new Date(said.time).toLocaleTimeString());
  const asked = said.descriptors?.[said.descriptor] ?? said.descriptors?.[0];
  const words = asked ? asked.entries.map(([key, value]) => (value ? `${key}=${value}` : key)).join(", ") : "a request";
  return make("li", {}, time, make("b", {}, `${said.domain ?? ""} ${words}`), " ", make("span", { class: "soft" }, why(said)));
}

/** The reason as a sentence. */
function why(said) {
  const parts = [];
  if (said.by === "count" && said.limit) {
    const { requests_per_unit: requests, unit, unit_multiplier: times } = said.limit;
    parts.push(`${requests} per ${times ? `${times} ${unit}s` : unit} are used up`);
  } else if (said.by !== "count" && said.by !== "override") parts.push(`by ${said.by}`);
  if (said.code !== "OVER_LIMIT") parts.push(said.code);
  if (said.rule) parts.push(`rule ${said.rule}${said.source ? ` (${said.source})` : ""}`);
  if (said.reset_seconds) parts.push(`${lasting(said.reset_seconds)} to wait`);
  for (const { kind, until, reason } of said.overrides ?? []) {
    const end = until ? ` until ${new Date(until).toLocaleString()}` : "";
    parts.push(`override ${kind}${end}${reason ? `: ${reason}` : ""}`);
  }
  if (said.caller) parts.push(`asked by ${said.caller}`);
  if (said.times > 1) parts.push(`${said.times} times`);
  return parts.join("; ");
}
