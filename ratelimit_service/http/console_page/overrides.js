// Overrides: those in force, and the forms that add, end and reset.

import { change, get } from "./api.js";
import { by, make, say } from "./dom.js";
import { entriesOf, moment, overrideText, secondsOf, typed } from "./words.js";

const NUMBERS = { limit: "requests", grant: "hits" };
const MOST_INSPECTED = 10;
let writes = false;
let shown = "";

/** Shows forms to those who may change something. */
export function mayWrite(may) {
  writes = may;
  shown = "";
  by("override-form").hidden = by("reset-form").hidden = by("about-changes").hidden = !may;
}

/** Shows the overrides in force. */
export function showOverrides({ overrides, count }) {
  quietly(() => showRemaining(overrides));
  const text = JSON.stringify([overrides, count]);
  if (text === shown) return; // a button that has the focus keeps it
  shown = text;
  quietly(showChanges);
  by("override-rows").replaceChildren(...overrides.map(row));
  by("no-overrides").hidden = overrides.length > 0;
  by("more-overrides").hidden = count <= overrides.length;
  say(by("more-overrides"), `The newest ${overrides.length} of ${count} are shown.`);
}

function row(override) {
  const { id, kind, domain, entries, requests, hits, limit, until, reason, who } = override;
  const name = make("th", { scope: "row", class: "name" }, typed(entries));
  name.append(make("div", { class: "source" }, limit ? `${domain}, ${limit}` : domain));
  const what = requests !== undefined ? `${kind} ${requests}` : hits !== undefined ? `${kind} ${hits} hits` : kind;
  const end = until ? moment(until) : kind === "grant" ? "with the window" : "never";
  const cells = [what, end, reason ?? "", who ?? ""].map((cell) => make("td", {}, cell));
  if (hits !== undefined) cells[0].append(make("div", { class: "source", "data-grant": id }));
  const last = make("td");
  if (writes) {
    const button = make("button", { type: "button", "aria-label": `Remove ${kind} of ${typed(entries)}` }, "Remove");
    button.addEventListener("click", () => told(async () => {
      await change("DELETE", `/overrides/${encodeURIComponent(id)}`);
      return `${kind} of ${typed(entries)} is removed`;
    }));
    last.append(button);
  }
  return make("tr", {}, name, ...cells, last);
}

/** Shows what is left of grants to single callers; of those to many each caller has its own. */
async function showRemaining(overrides) {
  const grants = overrides.filter(({ kind, entries }) => kind === "grant" && !entries.some(([, value]) => value.includes("*")));
  for (const { id, domain, entries } of grants.slice(0, MOST_INSPECTED)) {
    const { counters } = await get("/inspect", { domain, descriptor: typed(entries) });
    const left = counters.flatMap((counter) => counter.grants ?? []).filter((grant) => grant.id === id && grant.remaining !== undefined);
    const place = document.querySelector(`[data-grant="${CSS.escape(id)}"]`);
    if (place) say(place, left.map(({ remaining }) => `${remaining} left`).join(", "));
  }
}

/** Shows the last changes, the newest first, if somebody has opened their list. */
async function showChanges() {
  if (!by("changes").open) return;
  const { audit } = await get("/audit", { most: 20 });
  by("change-list").replaceChildren(...(audit.length ? audit.map(changeItem) : [make("li", { class: "soft" }, "No change is known.")]));
}

function changeItem({ time, who, from, action, domain, descriptor, reason, before, after }) {
  const whom = descriptor ? ` ${domain} ${typed(descriptor)}` : "";
  const found = (after.length ? after : before).filter(({ kind }) => kind).map(overrideText);
  const what = found.length ? found.join("; ") : `${whom}${reason ? `: ${reason}` : ""}`;
  return make("li", {}, make("time", { datetime: time }, moment(time)), " ", make("b", {}, who), ` (${from}) ${action} `, what);
}

by("changes").addEventListener("toggle", () => quietly(showChanges));

/** What is only shown beside the rest may fail for a moment: the next time does it again. */
async function quietly(work) {
  try {
    await work();
  } catch {
    // said elsewhere
  }
}

/** Does something, and says what came of it. */
async function told(work) {
  const note = by("override-note");
  note.className = "";
  try {
    say(note, await work());
    showOverrides(await get("/overrides", { newest: 100 }));
  } catch (error) {
    note.className = "error";
    say(note, error.message);
  }
}

by("override-kind").addEventListener("change", () => {
  const named = NUMBERS[by("override-kind").value];
  by("override-number-field").hidden = !named;
  by("override-number").required = Boolean(named);
  say(by("override-number-label"), named === "hits" ? "Extra hits" : "Requests");
});

by("override-form").addEventListener("submit", (event) => {
  event.preventDefault();
  told(async () => {
    const kind = by("override-kind").value;
    const body = { kind, domain: by("override-domain").value, descriptor: entriesOf(by("override-descriptor").value) };
    if (NUMBERS[kind]) body[NUMBERS[kind]] = Number(by("override-number").value);
    if (by("override-for").value) body.for_seconds = secondsOf(by("override-for").value.trim());
    if (by("override-reason").value) body.reason = by("override-reason").value;
    const { notes } = await change("POST", "/overrides", body);
    by("override-form").reset();
    by("override-kind").dispatchEvent(new Event("change"));
    return [`${kind} of ${typed(body.descriptor)} is in force within a second`, ...notes].join("; ");
  });
});

by("reset-form").addEventListener("submit", (event) => {
  event.preventDefault();
  told(async () => {
    const descriptor = entriesOf(by("reset-descriptor").value);
    await change("POST", "/reset", { domain: by("reset-domain").value, descriptor });
    by("reset-form").reset();
    return `the counters of ${typed(descriptor)} start anew`;
  });
});
