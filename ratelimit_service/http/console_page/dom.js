// Elements of the page. What callers have sent gets here as text only, never as markup.

const SVG = "http://www.w3.org/2000/svg";

export const by = (id) => document.getElementById(id);

/** An element with attributes, and children that are elements or text. */
export function make(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** The same, of a drawing. */
export function draw(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return element;
}

/** Sets a text, if it is another: screen readers are told of changes only. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A number with as many digits as people read. */
export function short(number) {
  if (number >= 1e6) return `${(number / 1e6).toFixed(1)} M`;
  if (number >= 1e4) return `${(number / 1e3).toFixed(1)} k`;
  return String(number >= 10 ? Math.round(number) : Math.round(number * 10) / 10);
}

/** Microseconds in words; what is not known is a dash. */
export function duration(us) {
  if (us === null || us === undefined) return "–";
  return us < 1000 ? `${us} µs` : `${us / 1000} ms`;
}
