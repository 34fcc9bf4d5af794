// Elements for the report and the viewer. Invariant: text becomes text nodes and attributes only, never markup.
"use strict";

const SVG = "http://www.w3.org/2000/svg";

export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false)
      node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

export function draw(tag, attributes, title) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (title) {
    const text = document.createElementNS(SVG, "title");
    text.textContent = title;
    node.append(text);
  }
  return node;
}

export function factList(lines) {
  const rows = Object.entries(lines).flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, String(value))]);
  return make("dl", { class: "facts" }, ...rows);
}

export function section(title, ...children) {
  return make("section", {}, make("h3", {}, title), ...children);
}

// Repaints a part of the page and leaves the keyboard on the control in the same place, and open what was open.
export function repaint(part, paint) {
  const controls = () => [...part.querySelectorAll("button, a, input, select")];
  const folds = () => [...part.querySelectorAll("details")];
  const at = controls().indexOf(document.activeElement);
  const open = folds().map((fold) => fold.open);
  paint();
  folds().forEach((fold, index) => {
    if (open[index]) fold.open = true;
  });
  if (at >= 0) controls()[at]?.focus();
}

export function switchTheme() {
  const html = document.documentElement;
  const dark = html.dataset.theme ? html.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  html.dataset.theme = dark ? "light" : "dark";
}
