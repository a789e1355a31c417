// How the site's search ranks pages: first those that explain, then those that list all there is,
// and last what has changed and how it works inside.
"use strict";

const LISTS = /^(cli|settings|metrics)$/;
const INSIDE = /^(changelog|benchmarks|real-clients|architecture)/;

var Scorer = {
  score: ([page, , , , score]) =>
    score - (INSIDE.test(page) ? 100 : LISTS.test(page) ? 3 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
