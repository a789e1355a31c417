// What somebody may want to do about the caller of a row: each choice fills the form that does it.

import { by, make, say } from "./dom.js";
import { typed } from "./words.js";

let chosen = {};

/** A button that asks what to do about a caller; nothing where its entries have no names. */
export function about(domain, entries) {
  if (!entries?.length || entries.some(([key]) => !key)) return "";
  const descriptor = typed(entries);
  const button = make("button", { type: "button", class: "about", "aria-haspopup": "dialog", "aria-label": `What to do about ${descriptor}` }, "…");
  button.addEventListener("click", () => {
    chosen = { domain, descriptor };
    say(by("about-caller"), `${domain} ${descriptor}`);
    by("about").returnValue = ""; // Escape leaves what was chosen before
    by("about").showModal();
  });
  return button;
}

by("about").addEventListener("close", () => {
  const what = by("about").returnValue;
  if (what === "explain" || what === "inspect") {
    fill("explain");
    by("explain-form").requestSubmit(by(`${what}-button`));
    show(by("explanation"));
  } else if (what === "reset") {
    fill("reset");
    show(by("reset-button"));
  } else if (what) {
    by("override-kind").value = what;
    by("override-kind").dispatchEvent(new Event("change"));
    fill("override");
    show(by("override-for"));
  }
});

function fill(form) {
  by(`${form}-domain`).value = chosen.domain;
  by(`${form}-descriptor`).value = chosen.descriptor;
}

function show(element) {
  element.focus({ preventScroll: true });
  element.scrollIntoView({ block: "center" });
}
