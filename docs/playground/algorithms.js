// The algorithms of ratelimit_service/algorithms, for single hits on whole seconds. Times are in
// seconds from a moment at which every window begins. tests/docs/test_playground.py compares each
// answer with that of the real code.
"use strict";

const BUCKETS = 5;

// `left` brings a counter's state to a moment, and says how many hits have room then. `add` counts
// a hit. `end` gives the oldest one back. States are plain objects, so that they can be copied.
const WAYS = [
  {
    name: "fixed-window",
    title: () => "fixed_window",
    says: "begins anew with the clock",
    fresh: () => ({ number: 0, count: 0 }),
    left(state, now, { limit, window }) {
      const number = Math.floor(now / window);
      if (number !== state.number) Object.assign(state, { number, count: 0 });
      return limit - state.count;
    },
    add(state) { state.count += 1; },
  },
  {
    name: "first-hit",
    title: () => "fixed_window, anchor: first_hit",
    says: "begins with the first hit",
    fresh: () => ({ start: 0, count: 0 }),
    left(state, now, { limit, window }) {
      if (now >= state.start + window) state.count = 0;
      return limit - state.count;
    },
    add(state, now) {
      if (!state.count) state.start = now;
      state.count += 1;
    },
  },
  {
    name: "sliding-window",
    title: () => "sliding_window",
    says: "weighs the window before",
    fresh: () => ({ number: 0, before: 0, count: 0 }),
    left(state, now, { limit, window }) {
      const number = Math.floor(now / window);
      if (number !== state.number) {
        const before = number === state.number + 1 ? state.count : 0;
        Object.assign(state, { number, before, count: 0 });
      }
      const part = window - (now % window);
      return limit - Math.floor((state.before * part) / window) - state.count;
    },
    add(state) { state.count += 1; },
  },
  {
    name: "buckets",
    title: () => `sliding_window, buckets: ${BUCKETS}`,
    says: `counts ${BUCKETS} parts of the window`,
    fresh: () => ({ parts: [] }),
    left(state, now, { limit, window }) {
      const oldest = Math.floor((now * BUCKETS) / window) - BUCKETS;
      state.parts = state.parts.filter((part) => part >= oldest);
      return limit - state.parts.length;
    },
    add(state, now, { window }) { state.parts.push(Math.floor((now * BUCKETS) / window)); },
  },
  {
    name: "sliding-log",
    title: () => "sliding_log",
    says: "keeps every hit's time",
    fresh: () => ({ times: [] }),
    left: roomBeside,
    add(state, now) { state.times.push(now); },
  },
  {
    name: "token-bucket",
    title: (settings) => `token_bucket, burst: ${settings.burst}`,
    says: "refills all the time",
    ...bucketOf((settings) => settings.burst),
  },
  {
    name: "leaky-bucket",
    title: (settings) => `leaky_bucket, burst: ${half(settings)}`,
    says: "leaks all the time, here with half the burst",
    ...bucketOf(half),
  },
  {
    name: "concurrency",
    title: () => "concurrency",
    says: "counts what is under way",
    fresh: () => ({ times: [] }),
    left: roomBeside,
    add(state, now) { state.times.push(now); },
    end(state) { state.times.shift(); },
  },
];

function half({ burst }) {
  return Math.ceil(burst / 2);
}

function roomBeside(state, now, { limit, window }) {
  state.times = state.times.filter((time) => time + window > now);
  return limit - state.times.length;
}

// Both buckets: what is used leaks away. It is kept in parts of a hit, of which `limit` leak each
// second and `window` make a hit, so that all numbers are whole.
function bucketOf(size) {
  return {
    fresh: () => ({ used: 0, at: 0 }),
    left(state, now, settings) {
      state.used = Math.max(0, state.used - (now - state.at) * settings.limit);
      state.at = now;
      return size(settings) - Math.ceil(state.used / settings.window);
    },
    add(state, _now, { window }) { state.used += window; },
  };
}
