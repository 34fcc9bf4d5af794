// A screenshot with what happened on it: actions, pointer trail, changed region, first-click target.
"use strict";
import { draw, make } from "./dom.js";

const MAX_WIDTH = 1100; // a small screen is not enlarged beyond it

function center([x, y]) {
  return [x + 0.5, y + 0.5];
}

export function markShapes(mark, unit) {
  const points = mark.points.map(center);
  const [x, y] = points[points.length - 1];
  const shapes = [];
  if (points.length > 1) {
    const path = points.map((point) => point.join(",")).join(" ");
    shapes.push(draw("polyline", { class: "halo", points: path, "stroke-width": 3.4 * unit }));
    shapes.push(draw("polyline", { class: "mark", points: path, "stroke-width": 1.6 * unit }, mark.kind));
  }
  shapes.push(draw("circle", { class: "halo", cx: x, cy: y, r: 7 * unit, "stroke-width": 3.2 * unit }));
  shapes.push(
    draw(
      "circle",
      { class: "mark", cx: x, cy: y, r: 7 * unit, "stroke-width": 1.7 * unit },
      `${mark.kind} at ${x - 0.5}, ${y - 0.5}`,
    ),
  );
  shapes.push(draw("circle", { class: "point", cx: x, cy: y, r: 1.7 * unit, "stroke-width": 0.6 * unit }));
  return shapes;
}

function box([left, top, right, bottom], name, unit, title) {
  return draw(
    "rect",
    { class: name, x: left, y: top, width: right - left, height: bottom - top, rx: 1.5 * unit, "stroke-width": unit },
    title,
  );
}

function trailShapes(points, unit) {
  if (points.length < 2) return [];
  const path = points.map((point) => center(point).join(",")).join(" ");
  return [
    draw(
      "polyline",
      { class: "trail", points: path, "stroke-width": unit, "stroke-dasharray": `${2 * unit} ${2.4 * unit}` },
      "pointer trail",
    ),
  ];
}

// `shown`: marks, and for some steps target, changed and trail; all in pixels of the screen.
export function screenOf(image, shown, missing, label = "") {
  const holder = make("div", { class: "screen" });
  if (!image) {
    holder.append(make("p", {}, missing));
    return holder;
  }
  const overlay = draw("svg", {
    preserveAspectRatio: "none",
    role: "img",
    "aria-label": label || "Actions on the screenshot",
  });
  const paint = () => {
    const width = image.naturalWidth,
      height = image.naturalHeight;
    overlay.setAttribute("viewBox", `0 0 ${width} ${height}`);
    holder.style.maxWidth = `${Math.min(2.6 * width, MAX_WIDTH, (760 * width) / height)}px`;
    const unit = width / 256;
    overlay.replaceChildren();
    if (shown.changed) overlay.append(box(shown.changed, "changed", unit, "changed since the previous screenshot"));
    if (shown.target) overlay.append(box(shown.target, "target", unit, "first-click target"));
    overlay.append(...trailShapes(shown.trail || [], unit));
    for (const mark of shown.marks || []) overlay.append(...markShapes(mark, unit));
  };
  image.addEventListener("load", paint);
  if (image.complete && image.naturalWidth) paint();
  holder.append(image, overlay);
  return holder;
}
