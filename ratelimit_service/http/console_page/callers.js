// The callers that are over, near or busy.

import { about } from "./actions.js";
import { get } from "./api.js";
import { by, make, short } from "./dom.js";
import { typed } from "./words.js";

/** Shows the callers that all pages are told of, or asks for others if they were chosen here. */
export async function showCallers(told) {
  by("callers").hidden = Boolean(told.error); // they are not kept in mind, or nobody answers
  if (told.error) return;
  const order = by("caller-order").value;
  const window = by("caller-window").value;
  const same = order === told.order && window === told.window;
  const found = same ? told : await get("/counters", { order, window, limit: 15 });
  const rows = found.callers.map(row);
  const focused = document.activeElement.closest("#caller-rows tr")?.dataset.key;
  by("caller-rows").replaceChildren(...rows);
  rows.find(({ dataset }) => dataset.key === focused)?.querySelector("button")?.focus({ preventScroll: true });
  by("no-callers").hidden = rows.length > 0;
}

function row({ domain, rule, caller, key, limit, capacity, remaining, over, near, hits }) {
  const name = make("th", { scope: "row", class: "name" }, about(domain, caller), caller ? typed(caller) : key);
  name.append(make("div", { class: "source" }, `${domain}: ${rule}${limit ? `, ${limit}` : ""}`));
  const room = remaining === null ? "–" : `${short(remaining)} of ${short(capacity)}`;
  const cells = [short(hits), short(near), short(over), room];
  return make("tr", { "data-key": key }, name, ...cells.map((cell, place) => make("td", { class: place === 2 && over ? "number bad" : "number" }, cell)));
}

for (const id of ["caller-order", "caller-window"]) {
  by(id).addEventListener("change", () => showCallers({}).catch(() => {}));
}
