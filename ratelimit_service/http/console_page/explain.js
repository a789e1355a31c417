// Which rule a descriptor meets, and why.

import { get } from "./api.js";
import { by, make } from "./dom.js";
import { lasting, moment, overrideText } from "./words.js";

const MOST_HOLDS = 20;

let questions = 0;

/** Shows the answer to the latest question; one that comes after a later question is dropped. */
async function explain(event) {
  event.preventDefault();
  const question = ++questions;
  const answer = await answered(event.submitter?.value === "inspect");
  if (question === questions) by("explanation").replaceChildren(...answer);
}

async function answered(inspects) {
  const asked = { domain: by("explain-domain").value, descriptor: by("explain-descriptor").value };
  try {
    const said = await get(inspects ? "/inspect" : "/explain", asked);
    return [...(inspects ? standing(said) : told(said))];
  } catch (error) {
    return [make("p", { class: "error" }, error.message)];
  }
}

function* told(said) {
  yield make("p", {}, make("b", {}, said.why));
  if (said.limits.some((limit) => !said.why.includes(limit))) yield make("p", {}, `${said.rule} at ${said.source}: ${said.limits.join("; ")}`);
  yield make("ol", {}, ...said.steps.map(step));
}

/** How counters stand, as `ratelimit inspect` says it. */
function* standing({ why, rule, source, counters, overrides }) {
  yield make("p", {}, make("b", {}, counters.length ? `${rule} at ${source}` : why));
  yield make("ul", {}, ...counters.map(counterItem));
  yield make("ul", {}, ...overrides.map((each) => make("li", {}, `override ${overrideText(each)}`)));
}

function counterItem({ name, limit, unknown, count, remaining, over, ends, ends_seconds: seconds, by_override: deciders, rule_limit: ruled, grants, held_here: here, held, held_by: holders, holds }) {
  const told = unknown ?? `${count} used${heldText(here)}${held ? `, ${held} held${holders === undefined ? "" : ` by ${holders} ${holders === 1 ? "reservation" : "reservations"}`}` : ""}, ${over ? "none" : remaining} left${ends ? `; ends in ${lasting(seconds)}, at ${moment(ends)}` : ""}`;
  const item = make("li", {}, `${name ? `${name}: ` : ""}${limit}: ${told}`);
  const lines = (deciders ?? []).map(({ kind, id }) => `decided by ${kind} ${id}; the rule has ${ruled}`);
  for (const { id, hits, remaining: left, ends: end } of grants ?? []) lines.push(`grant ${id}: ${left ?? "an unknown number"} of ${hits} hits left, until ${moment(end)}`);
  const shown = (holds ?? []).slice(0, MOST_HOLDS);
  for (const { id, hits, ends_seconds: left } of shown) lines.push(`reservation ${id}: ${hits} held, ends in ${lasting(left)}`);
  if (holders > shown.length) lines.push(`and ${holders - shown.length} more`);
  item.append(make("ul", { class: "soft" }, ...lines.map((line) => make("li", {}, line))));
  return item;
}

/** Of a leased limit: how many of these hits are counted, and not spent. */
function heldText(held) {
  if (held === undefined) return "";
  return held === null ? " (exact: counters in memory are not leased)" : ` (${held} of them held by the process that was asked)`;
}

function step({ entry: [key, value], how, taken, source, passed_over: passed }) {
  const item = make("li", {}, `${value ? `${key}=${value}` : key}: ${how}${taken ? ` ${taken} at ${source}` : ""}`);
  if (passed.length) {
    const lines = passed.map((other) => make("li", {}, `passed over ${other.node} at ${other.source}: ${other.why}`));
    item.append(make("ul", { class: "soft" }, ...lines));
  }
  return item;
}

by("explain-form").addEventListener("submit", explain);
