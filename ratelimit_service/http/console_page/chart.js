// Lines over time, as SVG.

import { draw } from "./dom.js";

const HEIGHT = 140;
const LEFT = 46;
const BOTTOM = 122;
const TOP = 8;

/** A chart of at most `most` points; each line is a class of the style sheet. */
export class Chart {
  constructor(svg, classes, text, most = 120) {
    this.svg = svg;
    this.text = text;
    this.most = most;
    this.points = [];
    this.scale = [0, 1, 2].map((step) => {
      const y = BOTTOM - ((BOTTOM - TOP) * step) / 2;
      const label = draw("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" });
      svg.append(draw("line", { class: "grid", x1: LEFT, x2: "100%", y1: y, y2: y }), label);
      return label;
    });
    this.lines = classes.map((name) => draw("polyline", { class: `line ${name}` }));
    svg.append(...this.lines);
    addEventListener("resize", () => this.show()); // else text is of the old width until news come
  }

  add(values) {
    this.points.push(values);
    if (this.points.length > this.most) this.points.shift();
  }

  show() {
    const width = this.svg.clientWidth || 600; // text keeps its shape, whatever the width
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const top = round(Math.max(1e-9, ...this.points.flat().filter((value) => value !== null)));
    this.scale.forEach((label, step) => {
      label.textContent = this.text((top * step) / 2);
    });
    this.lines.forEach((line, place) => {
      const from = this.most - this.points.length;
      const found = this.points.map((values, number) => {
        const x = LEFT + ((width - LEFT) * (from + number)) / (this.most - 1);
        const y = BOTTOM - ((BOTTOM - TOP) * (values[place] ?? 0)) / top;
        return `${x.toFixed(1)},${y.toFixed(1)}`;
      });
      line.setAttribute("points", found.join(" "));
    });
  }
}

/** The next number upwards that is easy to read. */
function round(value) {
  const unit = 10 ** Math.floor(Math.log10(value));
  for (const step of [1, 2, 5, 10]) if (value <= step * unit) return step * unit;
  return 10 * unit;
}
