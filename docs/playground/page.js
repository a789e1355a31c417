// The page of docs/playground.html. What passes is looked up in answers.js; nothing is worked out here.
"use strict";

const SHOWN = 30; // seconds
const SVG = "http://www.w3.org/2000/svg";
const [PASSES, LEFT, WAIT, AFTER_HIT, AFTER_SECOND, AFTER_DONE] = [0, 1, 2, 3, 4, 5];

let now = 0;
const ways = WAYS.map((way) => ({ ...way, at: 0, hits: [] }));

function hit(way) {
  const state = way.states[way.at];
  way.hits.push({ at: now, passed: state[PASSES] === 1 });
  way.at = state[AFTER_HIT];
  return state;
}

function hitAll(times) {
  let passed = 0;
  for (let number = 0; number < times; number += 1) {
    passed = ways.filter((way) => hit(way)[PASSES] === 1).length;
  }
  say(times === 1 ? `${passed} of ${ways.length} let it pass.`
    : `${passed} of ${ways.length} let the last of ${times} hits pass.`);
}

function wait(seconds) {
  for (let second = 0; second < seconds; second += 1) {
    now += 1;
    for (const way of ways) way.at = way.states[way.at][AFTER_SECOND];
  }
  say(`${seconds} s later.`);
}

function aroundAnEdge() {
  wait(2 * WINDOW - 1 - (now % WINDOW));
  hitAll(LIMIT);
  wait(1);
  hitAll(LIMIT);
}

function steadily() {
  for (let second = 0; second < 2 * WINDOW; second += 1) {
    hitAll(1);
    wait(1);
  }
}

function done(way) {
  way.at = way.states[way.at][AFTER_DONE];
  say("One of those under way has ended.");
}

function startOver() {
  now = 0;
  for (const way of ways) {
    way.at = 0;
    way.hits = [];
  }
  say("Nothing has come yet.");
}

let words = "";
function say(text) {
  words = `At ${now} s. ${text}`;
}

function passedLately(way) {
  return way.hits.filter((each) => each.passed && each.at > now - WINDOW).length;
}

function mostEver(way) {
  const passed = way.hits.filter((each) => each.passed);
  return Math.max(0, ...passed.map((last) =>
    passed.filter((each) => each.at <= last.at && each.at > last.at - WINDOW).length));
}

function seconds(number) {
  return `${Math.round(number * 10) / 10} s`;
}

function make(name, attributes, text) {
  const drawn = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) drawn.setAttribute(key, value);
  if (text !== undefined) drawn.textContent = text;
  return drawn;
}

function draw(way, drawing) {
  const first = Math.max(0, now - SHOWN + 1);
  const parts = [make("path", { class: "floor", d: "M0 84.5H300" })];
  for (let second = first; second < first + SHOWN; second += 1) {
    const x = (second - first) * 10;
    if (second % WINDOW === 0) {
      parts.push(make("path", { class: "edge", d: `M${x} 0V84` }));
      parts.push(make("text", { x: x + 2, y: 97 }, `${second} s`));
    }
    way.hits.filter((each) => each.at === second).slice(0, 9).forEach((each, place) => {
      const top = 76 - place * 9;
      parts.push(make("rect", {
        class: each.passed ? "yes" : "no", x: x + 1.5, y: top, width: 7, height: 7,
      }));
    });
  }
  drawing.replaceChildren(...parts);
}

function card(way) {
  const section = document.createElement("section");
  section.className = "way";
  section.id = way.name;
  const add = (name, kind, text) => {
    const made = document.createElement(name);
    made.className = kind;
    made.textContent = text;
    section.append(made);
    return made;
  };
  add("h2", "", way.title);
  add("p", "says", way.says);
  const drawing = make("svg", { viewBox: "0 0 300 100", role: "img" });
  section.append(drawing);
  const left = add("p", "left", "");
  const lately = add("p", "lately", "");
  if (way.states[0].length > AFTER_DONE) {
    add("button", "", "One ends").addEventListener("click", () => { done(way); show(); });
  }
  return { section, drawing, left, lately };
}

const cards = new Map(ways.map((way) => [way, card(way)]));

function show() {
  for (const [way, { drawing, left, lately }] of cards) {
    const state = way.states[way.at];
    const most = mostEver(way);
    draw(way, drawing);
    drawing.setAttribute("aria-label",
      `${way.hits.filter((each) => each.passed).length} of ${way.hits.length} hits passed`);
    left.textContent = state[PASSES] === 1 ? `${state[LEFT]} left` : `none left for ${seconds(state[WAIT])}`;
    const held = way.states[0].length > AFTER_DONE;
    lately.textContent = held ? `${LIMIT - state[LEFT]} under way`
      : `${passedLately(way)} in the last ${WINDOW} s, at most ${most} of ${LIMIT}`;
    lately.classList.toggle("above", !held && most > LIMIT);
  }
  document.getElementById("said").textContent = words;
}

const PRESSED = {
  hit: () => hitAll(1),
  three: () => hitAll(LIMIT),
  second: () => wait(1),
  window: () => wait(WINDOW),
  edge: aroundAnEdge,
  steady: steadily,
  new: startOver,
};
for (const [name, press] of Object.entries(PRESSED)) {
  document.getElementById(name).addEventListener("click", () => { press(); show(); });
}
document.getElementById("ways").append(...[...cards.values()].map(({ section }) => section));
startOver();
show();
