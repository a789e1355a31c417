// The rules as a tree, with what each of them counts just now.

import { by, draw, make, say, short } from "./dom.js";

const rows = new Map();
let live = new Map();

const name = (domain, rule) => JSON.stringify([domain, rule]);

/** Puts the tree up, and what is wrong with it. */
export function showTree(tree) {
  const body = by("rule-rows");
  body.replaceChildren();
  rows.clear();
  for (const { domain, rules } of tree.domains) {
    body.append(make("tr", { class: "domain" }, make("th", { scope: "rowgroup", colspan: 5 }, domain)));
    for (const rule of rules) addRule(body, domain, rule);
  }
  by("domains").replaceChildren(...tree.domains.map(({ domain }) => make("option", { value: domain })));
  by("rules-more").hidden = !tree.more;
  filter();
  showUse(live);
  const problems = tree.problems.filter((problem) => !problem.hint);
  const lost = tree.unserved.map((domain) => make("li", { class: "bad" }, `${domain} is not served: its rules never loaded`));
  const told = problems.map(({ text, tolerated }) => make("li", { class: tolerated ? "warning" : "bad" }, text));
  by("problem-list").replaceChildren(...lost, ...told);
  by("problems").hidden = !(lost.length || told.length);
}

function addRule(body, domain, rule) {
  const depth = Math.min(rule.way.length - 1, 4);
  const marks = [rule.shadow ? "shadow mode" : "", rule.quota ? "quota mode" : "", rule.queue ? "queues what it denies" : ""].filter(Boolean);
  const title = make("th", { scope: "row", class: `name depth${depth}` }, rule.rule);
  title.append(make("div", { class: "source" }, [rule.source, ...marks].join(", ")));
  const limits = rule.limits.length ? rule.limits.join("; ") : "unlimited";
  const hits = make("td", { class: "number" }, "0");
  const over = make("td", { class: "number" }, "0");
  const bars = [draw("rect", { class: "hits", height: 10 }), draw("rect", { class: "over", height: 10 })];
  const back = draw("rect", { class: "back", width: 100, height: 10 });
  const bar = draw("svg", { class: "bar", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" }, back, ...bars);
  const row = make("tr", {}, title, make("td", {}, limits), hits, over, make("td", {}, bar));
  body.append(row);
  rows.set(name(domain, rule.rule), { row, hits, over, bars, text: `${domain} ${rule.rule} ${rule.source}`.toLowerCase() });
}

/** Shows hits and denials a second, by rule. */
export function showUse(use) {
  live = use;
  const most = Math.max(1, ...[...use.values()].map(({ hits }) => hits));
  for (const [key, { hits, over, bars }] of rows) {
    const now = use.get(key) || { hits: 0, over: 0 };
    say(hits, short(now.hits));
    say(over, short(now.over));
    over.classList.toggle("bad", now.over > 0);
    bars[0].setAttribute("width", (100 * now.hits) / most);
    bars[1].setAttribute("width", (100 * now.over) / most);
  }
}

/** What rules have counted, out of a message. */
export function useOf({ rules, seconds }) {
  return new Map(rules.map(([domain, rule, hits, over]) => [name(domain, rule), { hits: hits / seconds, over: over / seconds }]));
}

function filter() {
  const wanted = by("rule-filter").value.toLowerCase();
  for (const { row, text } of rows.values()) row.hidden = !text.includes(wanted);
}

by("rule-filter").addEventListener("input", filter);
