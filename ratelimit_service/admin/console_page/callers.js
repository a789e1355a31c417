// The callers that are over, near or busy.

import { get } from "./api.js";
import { by, make, short } from "./dom.js";
import { typed } from "./words.js";

/** Asks for the callers, and shows them. */
export async function showCallers() {
  const order = by("caller-order").value;
  const window = by("caller-window").value;
  let found;
  try {
    found = await get("/counters", { order, window, limit: 15 });
  } catch (error) {
    by("callers").hidden = error.status === 404; // they are not kept in mind
    if (!by("callers").hidden) throw error;
    return;
  }
  by("callers").hidden = false;
  const rows = found.callers.map(row);
  by("caller-rows").replaceChildren(...rows);
  by("no-callers").hidden = rows.length > 0;
}

function row({ domain, rule, caller, key, limit, capacity, remaining, over, near, hits }) {
  const name = make("th", { scope: "row", class: "name" }, caller ? typed(caller) : key);
  name.append(make("div", { class: "source" }, `${domain}: ${rule}${limit ? `, ${limit}` : ""}`));
  const room = remaining === null ? "–" : `${short(remaining)} of ${short(capacity)}`;
  const cells = [short(hits), short(near), short(over), room];
  return make("tr", {}, name, ...cells.map((cell, place) => make("td", { class: place === 2 && over ? "number bad" : "number" }, cell)));
}

for (const id of ["caller-order", "caller-window"]) {
  by(id).addEventListener("change", () => showCallers().catch(() => {}));
}
