// Which rule a descriptor meets, and why.

import { get } from "./api.js";
import { by, make } from "./dom.js";

async function explain(event) {
  event.preventDefault();
  const place = by("explanation");
  try {
    const descriptor = by("explain-descriptor").value;
    const said = await get("/explain", { domain: by("explain-domain").value, descriptor });
    place.replaceChildren(...told(said));
  } catch (error) {
    place.replaceChildren(make("p", { class: "error" }, error.message));
  }
}

function* told(said) {
  yield make("p", {}, make("b", {}, said.why));
  if (said.limits.some((limit) => !said.why.includes(limit))) yield make("p", {}, `${said.rule} at ${said.source}: ${said.limits.join("; ")}`);
  yield make("ol", {}, ...said.steps.map(step));
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
