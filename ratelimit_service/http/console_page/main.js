// The console: begins the session, and hands what the service tells to the parts of the page.

import { get, session } from "./api.js";
import { Chart } from "./chart.js";
import { by, duration, say, short } from "./dom.js";
import { showCallers } from "./callers.js";
import { showDenials } from "./denials.js";
import { showHealth, showProcesses } from "./health.js";
import { mayWrite, showOverrides } from "./overrides.js";
import { showTree, showUse, useOf } from "./rules.js";
import "./explain.js";

const decisions = new Chart(by("decisions-chart"), ["ok", "over"], short);
const latency = new Chart(by("latency-chart"), ["ok"], (us) => duration(Math.round(us)));
let source = null;
const AWAY = "no answer, trying again";
let rules = -1;
let beginning = 0;
let version = "";

function point(message) {
  const { ok, over, seconds, p99_us: p99 } = message;
  decisions.add([ok / seconds, over / seconds]);
  latency.add([p99]);
}

function show(message) {
  const { ok, over, refused, seconds, p50_us: p50, p99_us: p99 } = message;
  const { hits, hits_by_policy: policy } = message;
  say(by("ok"), short(ok / seconds));
  say(by("over"), short(over / seconds));
  say(by("refused"), short(refused / seconds));
  say(by("p50"), duration(p50));
  say(by("p99"), duration(p99));
  say(by("policy"), hits ? `${((100 * policy) / hits).toFixed(policy && policy < hits ? 1 : 0)} %` : "–");
  decisions.show();
  latency.show();
  const told = `Decisions a second: ${short(ok / seconds)} allowed, ${short(over / seconds)} denied`;
  by("decisions-chart").setAttribute("aria-label", told);
  by("latency-chart").setAttribute("aria-label", `99 % of the answers take ${duration(p99)} at most`);
  showUse(useOf(message));
  showHealth(message);
  showDenials(message.denials ?? []);
  if (message.rules_number !== rules) {
    rules = message.rules_number;
    quietly(async () => showTree(await get("/tree")));
  }
}

/** Does what may fail for a moment, as while the service restarts: the next time does it again. */
async function quietly(work) {
  try {
    await work();
  } catch (error) {
    if (error.status === 401) begin();
  }
}

function watch() {
  source?.close();
  source = new EventSource("/events");
  source.addEventListener("past", (event) => {
    by("content").classList.remove("stale");
    decisions.points.length = latency.points.length = 0;
    JSON.parse(event.data).forEach(point);
    rules = -1;
  });
  source.addEventListener("now", (event) => {
    const message = JSON.parse(event.data);
    point(message);
    show(message);
  });
  source.addEventListener("state", (event) => {
    const { processes, overrides, callers } = JSON.parse(event.data);
    if (!processes.error) {
      version ||= processes.supervisor.version;
      by("newer").hidden = version === processes.supervisor.version;
      showProcesses(processes);
    }
    if (!overrides.error) showOverrides(overrides);
    quietly(() => showCallers(callers));
  });
  source.onerror = () => {
    by("content").classList.add("stale");
    say(by("state"), AWAY);
    by("state").className = "pill";
    if (source.readyState === EventSource.CLOSED) beginLater();
  };
}

/** Begins anew after a while, once however many ask for it. */
function beginLater() {
  clearTimeout(beginning);
  beginning = setTimeout(begin, 2000);
}

/** Shows the console, or asks for a token. */
async function begin(token) {
  try {
    const { name, role } = await session(token);
    say(by("who"), role === "write" ? name : `${name}, reading`);
    mayWrite(role === "write");
  } catch (error) {
    if (error.status !== 401) {
      say(by("state"), error.status ? error.message : AWAY);
      beginLater();
      return;
    }
    by("content").hidden = true;
    by("login").hidden = false;
    say(by("state"), "asks for a token");
    say(by("login-error"), token === undefined ? "" : error.message);
    by("token").focus();
    return;
  }
  by("login").hidden = true;
  by("content").hidden = false;
  quietly(async () => showTree(await get("/tree")));
  watch();
}

by("login-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const field = by("token");
  begin(field.value);
  field.value = "";
});

document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    source?.close();
    source = null;
  } else if (!source && !by("content").hidden) watch();
});

begin();
