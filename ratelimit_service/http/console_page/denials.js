// The last denials, each with its reason.

import { about } from "./actions.js";
import { by, make } from "./dom.js";
import { clock, lasting, moment } from "./words.js";

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
  const time = make("time", { datetime: said.time }, clock(said.time));
  const asked = said.descriptors?.[said.descriptor] ?? said.descriptors?.[0];
  const words = asked ? asked.entries.map(([key, value]) => (value ? `${key}=${value}` : key)).join(", ") : "a request";
  return make("li", {}, about(said.domain, asked?.entries), time, make("b", {}, `${said.domain ?? ""} ${words}`), " ", make("span", { class: "soft" }, why(said)));
}

/** The reason as a sentence. */
function why(said) {
  const parts = [];
  if (said.by === "count" && said.limit) {
    parts.push(`${limitText(said.limit)} are used up${said.limit.reservations ? " or held" : ""}`);
  } else if (said.reserve?.too_large) parts.push(`one reservation may not hold ${said.reserve.hits} of ${limitText(said.limit)}`);
  else if (said.by === "local_cache") parts.push("over its limit, remembered");
  else if (said.by === "policy") parts.push(byPolicy(said));
  else if (said.by === "nothing") parts.push("refused before it was counted");
  if (said.code !== "OVER_LIMIT") parts.push(said.code);
  if (said.rule) parts.push(`rule ${said.rule}${said.source ? ` (${said.source})` : ""}`);
  if (said.reset_seconds) parts.push(`${lasting(said.reset_seconds)} to wait`);
  for (const { kind, until, who, reason } of said.overrides ?? []) {
    const end = until ? ` until ${moment(until)}` : "";
    parts.push(`override ${kind}${end}${who ? ` by ${who}` : ""}${reason ? `: ${reason}` : ""}`);
  }
  if (said.caller) parts.push(`asked by ${said.caller}`);
  return parts.join("; ");
}

function limitText({ requests_per_unit: requests, unit, unit_multiplier: times }) {
  return `${requests} per ${times ? `${times} ${unit}s` : unit}`;
}

/** What a failure policy has done, and why it was asked. */
function byPolicy(said) {
  const silent = `${said.store?.startsWith("redis") ? "Redis" : "the store"} gave no answer in time`;
  if (said.used !== undefined) return `${silent}; the share that this process counts by itself is used up`;
  return `${silent}; the rule's policy is ${said.code === "OVER_LIMIT" ? "closed" : "error"}`;
}
