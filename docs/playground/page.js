// The page of docs/playground.html. What passes is worked out in algorithms.js.
"use strict";

const SHOWN = 30; // seconds
const AHEAD = 10; // of which so many are still to come
const MARKS = 9; // that fit above one second
const BEAT_MS = 500; // of a second while the stream runs
const STREAMS = [
  { text: "a hit every 4 s", every: 4, hits: 1 },
  { text: "a hit every 2 s", every: 2, hits: 1 },
  { text: "1 hit a second", every: 1, hits: 1 },
  { text: "2 hits a second", every: 1, hits: 2 },
  { text: "4 hits a second", every: 1, hits: 4 },
];
const SVG = "http://www.w3.org/2000/svg";

const settings = { limit: 3, window: 10, burst: 3 };
let stream = STREAMS[2];
let running = 0;
let now = 0;
const ways = WAYS.map((way) => ({ ...way, state: way.fresh(), hits: [] }));

function hit(way, state, at) {
  const passes = way.left(state, at, settings) > 0;
  if (passes) way.add(state, at, settings);
  return passes;
}

function hitAll(times) {
  let passed = 0;
  for (let number = 0; number < times; number += 1) {
    passed = 0;
    for (const way of ways) {
      const passes = hit(way, way.state, now);
      way.hits.push({ at: now, passed: passes });
      passed += passes;
    }
  }
  say(times === 1 ? `${passed} of ${ways.length} let it pass.`
    : `${passed} of ${ways.length} let the last of ${times} hits pass.`);
}

function wait(seconds) {
  now += seconds;
  say(`${seconds} s later.`);
}

function aroundAnEdge() {
  wait(2 * settings.window - 1 - (now % settings.window));
  hitAll(settings.limit);
  wait(1);
  hitAll(settings.limit);
}

function streamFor(seconds) {
  for (let second = 0; second < seconds; second += 1) {
    if (now % stream.every === 0) hitAll(stream.hits);
    now += 1;
  }
  say(`${seconds} s with ${stream.text}.`);
}

function play() {
  if (running) {
    pause();
    return;
  }
  running = setInterval(() => { streamFor(1); show(); }, BEAT_MS);
  streamFor(1);
}

function pause() {
  clearInterval(running);
  running = 0;
}

function startOver() {
  pause();
  now = 0;
  for (const way of ways) {
    way.state = way.fresh();
    way.hits = [];
  }
  say("Nothing has come yet.");
}

let words = "";
function say(text) {
  words = `At ${now} s. ${text}`;
}

function passedLately(way) {
  return way.hits.filter((each) => each.passed && each.at > now - settings.window).length;
}

function mostEver(way) {
  const passed = way.hits.filter((each) => each.passed);
  return Math.max(0, ...passed.map((last) =>
    passed.filter((each) => each.at <= last.at && each.at > last.at - settings.window).length));
}

// What would pass from now on if hits came all the time: [second, hits] where any do.
function goesOn(way) {
  const state = structuredClone(way.state);
  const found = [];
  for (let second = now; second <= now + 2 * settings.window; second += 1) {
    let passed = 0;
    while (hit(way, state, second)) passed += 1;
    if (passed) found.push([second, passed]);
  }
  return found;
}

function told(found) {
  const shown = found.slice(0, 3).map(([second, hits]) =>
    `${hits} ${second === now ? "now" : `at ${second} s`}`);
  return `next to pass: ${shown.join(", ")}`;
}

function make(name, attributes, text) {
  const drawn = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) drawn.setAttribute(key, value);
  if (text !== undefined) drawn.textContent = text;
  return drawn;
}

function draw(way, drawing, found) {
  const first = Math.max(0, now - SHOWN + AHEAD);
  const parts = [make("path", { class: "floor", d: "M0 84.5H300" })];
  const mark = (kind, second, place) => parts.push(make("rect", {
    class: kind, x: (second - first) * 10 + 1.5, y: 76 - place * 9, width: 7, height: 7,
  }));
  for (let second = first; second < first + SHOWN; second += 1) {
    const x = (second - first) * 10;
    if (second % settings.window === 0) {
      parts.push(make("path", { class: "edge", d: `M${x} 0V84` }));
      if (x <= 270) parts.push(make("text", { x: x + 2, y: 97 }, `${second} s`));
    }
  }
  for (let second = first; second <= now; second += 1) {
    way.hits.filter((each) => each.at === second).slice(0, MARKS)
      .forEach((each, place) => mark(each.passed ? "yes" : "no", second, place));
  }
  for (const [second, hits] of found) {
    if (second === now || second >= first + SHOWN) continue;
    for (let place = 0; place < Math.min(hits, MARKS); place += 1) mark("next", second, place);
  }
  parts.push(make("path", { class: "now", d: `M${(now - first) * 10 + 10} 0V84` }));
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
  const title = add("h2", "", "");
  add("p", "says", way.says);
  const drawing = make("svg", { viewBox: "0 0 300 100", role: "img" });
  section.append(drawing);
  const next = add("p", "next", "");
  const lately = add("p", "lately", "");
  if (way.end) {
    add("button", "", "One ends").addEventListener("click", () => {
      way.end(way.state);
      say("One of those under way has ended.");
      show();
    });
  }
  return { section, title, drawing, next, lately };
}

const cards = new Map(ways.map((way) => [way, card(way)]));

function show() {
  for (const [way, { title, drawing, next, lately }] of cards) {
    const found = goesOn(way);
    const most = mostEver(way);
    title.textContent = way.title(settings);
    draw(way, drawing, found);
    drawing.setAttribute("aria-label",
      `${way.hits.filter((each) => each.passed).length} of ${way.hits.length} hits passed`);
    next.textContent = told(found);
    lately.textContent = way.end
      ? `${settings.limit - way.left(way.state, now, settings)} under way`
      : `${passedLately(way)} in the last ${settings.window} s, at most ${most} of ${settings.limit}`;
    lately.classList.toggle("above", !way.end && most > settings.limit);
  }
  document.getElementById("said").textContent = words;
  document.getElementById("window-passes").textContent = `Wait ${settings.window} s`;
  document.getElementById("play").textContent = running ? "Stop the stream" : "Start the stream";
  for (const [name, text] of Object.entries({
    limit: `${settings.limit} hits`, window: `${settings.window} s`,
    burst: `${settings.burst} hits`, stream: stream.text,
  })) document.querySelector(`output[for=${name}]`).textContent = text;
}

const PRESSED = {
  hit: () => hitAll(1),
  three: () => hitAll(3),
  second: () => wait(1),
  "window-passes": () => wait(settings.window),
  edge: aroundAnEdge,
  play,
  steady: () => streamFor(20),
  new: startOver,
};
for (const [name, press] of Object.entries(PRESSED)) {
  document.getElementById(name).addEventListener("click", () => { press(); show(); });
}
for (const name of Object.keys(settings)) {
  document.getElementById(name).addEventListener("input", (event) => {
    settings[name] = Number(event.target.value);
    startOver();
    show();
  });
}
document.getElementById("stream").addEventListener("input", (event) => {
  stream = STREAMS[Number(event.target.value)];
  show();
});
document.getElementById("ways").append(...[...cards.values()].map(({ section }) => section));
startOver();
show();
