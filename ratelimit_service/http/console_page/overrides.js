// Overrides: those in force, and the forms that add, end and reset.

import { change, get } from "./api.js";
import { by, make, say } from "./dom.js";
import { entriesOf, secondsOf, typed } from "./words.js";

const NUMBERS = { limit: "requests", grant: "hits" };
let writes = false;
let shown = "";

/** Shows forms to those who may change something. */
export function mayWrite(may) {
  writes = may;
  shown = "";
  by("override-form").hidden = by("reset-form").hidden = !may;
}

/** Shows the overrides in force. */
export function showOverrides({ overrides, count }) {
  const text = JSON.stringify([overrides, count]);
  if (text === shown) return; // a button that has the focus keeps it
  shown = text;
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
  const end = until ? new Date(until).toLocaleString() : kind === "grant" ? "with the window" : "never";
  const cells = [what, end, reason ?? "", who ?? ""].map((cell) => make("td", {}, cell));
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
