// A table that is wider than the page is shown as a list: below the first cell of each row the
// others stand, each with the head of its column.
"use strict";

function fit() {
  for (const table of document.querySelectorAll("table.docutils")) {
    table.classList.remove("rows");
    table.classList.toggle("rows", table.parentElement.scrollWidth > table.parentElement.clientWidth);
  }
}

addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("table.docutils")) {
    const heads = [...table.querySelectorAll("thead th")].map((head) => head.textContent);
    for (const row of table.querySelectorAll("tbody tr")) {
      [...row.cells].forEach((cell, place) => {
        cell.dataset.head = heads[place];
        cell.classList.toggle("nothing", !cell.textContent.trim());
      });
    }
  }
  fit();
  addEventListener("resize", fit);
});
