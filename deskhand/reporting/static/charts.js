// Line charts as SVG that fit their card: curves with bands, evaluations with intervals, values by pointer or keys.
"use strict";
import { draw, make } from "./dom.js";
import { plainTable } from "./table.js";

const HEIGHT = 230,
  LEFT = 50,
  RIGHT = 14,
  TOP = 10,
  BOTTOM = 30;
export const percent = (value) => (value === null || value === undefined ? "–" : `${Math.round(100 * value)} %`);
export const short = (value) => {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 10000) return value.toLocaleString("en", { notation: "compact", maximumFractionDigits: 1 });
  return size !== 0 && size < 0.001 ? value.toExponential(1) : String(Number(value.toPrecision(3)));
};

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 60) return `${value.toFixed(value < 10 ? 2 : 0)} s`;
  return value < 3600
    ? `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`
    : `${Math.floor(value / 3600)} h ${Math.round((value % 3600) / 60)} min`;
}

export function rateText(rate) {
  if (!rate || !rate.total) return "–";
  const [low, high] = rate.interval.map(percent);
  return `${percent(rate.value)} (${rate.hits}/${rate.total}, 95 % interval ${low} to ${high})`;
}

function ticks(low, high, most) {
  const rough = (high - low) / most || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const size = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((one) => one >= rough);
  const found = [];
  for (let at = Math.ceil(low / size) * size; at <= high + size * 1e-9; at += size)
    found.push(Math.abs(at) < size * 1e-9 ? 0 : at);
  return found;
}

function limits(chart) {
  const points = chart.lines.flatMap((line) => line.points);
  const xs = [...points.map((point) => point.x), ...(chart.whiskers || []).map((one) => one.x)];
  const x = xs.length ? [Math.min(...xs), Math.max(...xs)] : [0, 1];
  if (x[0] === x[1]) x[1] += 1;
  if (chart.range) return { x, y: chart.range };
  const ys = points.map((point) => point.y);
  const y = ys.length ? [Math.min(0, ...ys), Math.max(...ys)] : [0, 1];
  if (y[0] === y[1]) y[1] += 1;
  return { x, y };
}

// `chart`: title, xLabel, whiskers, range, format, lines [{ name, index, dashed, points: [{ x, y, low, high, note }] }].
export function lineChart(chart) {
  const format = chart.format || short;
  const readout = make("p", { class: "readout", "aria-live": "polite" }, " ");
  const svg = draw("svg", {
    role: "img",
    tabindex: 0,
    "aria-label": `${chart.title}: ${describe(chart, format)}. Arrow keys read values.`,
  });
  const legend = make(
    "span",
    { class: "legend" },
    ...chart.lines.flatMap((line) => [
      make("i", { class: `line-${line.index ?? 0}${line.dashed ? " dashed" : ""}` }),
      line.name,
    ]),
    ...((chart.whiskers || []).length ? [make("i", { class: "ring" }), "evaluation, 95 % interval"] : []),
  );
  const figure = make(
    "figure",
    {},
    make("figcaption", {}, chart.title, legend),
    svg,
    readout,
    dataTable(chart, format),
  );
  const positions = [
    ...new Set([...chart.lines.flatMap((line) => line.points), ...(chart.whiskers || [])].map((point) => point.x)),
  ].sort((a, b) => a - b);
  let cursor = -1;
  let width = 0;
  let x = () => 0;

  function paint() {
    const {
      x: [left, right],
      y: [low, high],
    } = limits(chart);
    x = (value) => LEFT + ((width - LEFT - RIGHT) * (value - left)) / (right - left);
    const y = (value) =>
      TOP + (HEIGHT - TOP - BOTTOM) * (1 - (Math.min(Math.max(value, low), high) - low) / (high - low));
    svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const parts = [];
    for (const tick of ticks(low, high, 5)) {
      parts.push(draw("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick) }));
      parts.push(label(format(tick), { x: LEFT - 7, y: y(tick) + 4, "text-anchor": "end" }));
    }
    for (const tick of ticks(left, right, Math.max(2, width / 90)).filter((one) => Number.isInteger(one))) {
      parts.push(label(short(tick), { x: x(tick), y: HEIGHT - 14, "text-anchor": "middle" }));
    }
    parts.push(label(chart.xLabel, { x: width - RIGHT, y: HEIGHT - 1, "text-anchor": "end" }));
    for (const line of chart.lines) {
      const points = line.points;
      const banded = points.filter((point) => point.low !== undefined);
      if (banded.length > 1) {
        const edge = [
          ...banded.map((point) => `${x(point.x)},${y(point.high)}`),
          ...[...banded].reverse().map((point) => `${x(point.x)},${y(point.low)}`),
        ];
        parts.push(draw("polygon", { class: `band line-${line.index ?? 0}`, points: edge.join(" ") }));
      }
      parts.push(
        draw("polyline", {
          class: `line line-${line.index ?? 0}${line.dashed ? " dashed" : ""}`,
          points: points.map((point) => `${x(point.x)},${y(point.y)}`).join(" "),
        }),
      );
      if (points.length < 60)
        for (const point of points)
          parts.push(draw("circle", { class: `dot line-${line.index ?? 0}`, cx: x(point.x), cy: y(point.y), r: 2.4 }));
    }
    for (const one of chart.whiskers || []) {
      const at = x(one.x);
      parts.push(
        draw("path", {
          class: `whisker line-${one.index ?? 0}`,
          d: `M${at} ${y(one.low)}V${y(one.high)}M${at - 5} ${y(one.low)}h10M${at - 5} ${y(one.high)}h10`,
        }),
      );
      parts.push(draw("circle", { class: `ring line-${one.index ?? 0}`, cx: at, cy: y(one.y), r: 5 }, one.note));
    }
    if (cursor >= 0)
      parts.push(
        draw("line", {
          class: "cursor",
          x1: x(positions[cursor]),
          x2: x(positions[cursor]),
          y1: TOP,
          y2: HEIGHT - BOTTOM,
        }),
      );
    svg.replaceChildren(...parts);
  }

  function read(at) {
    if (!positions.length) return;
    cursor = Math.min(Math.max(at, 0), positions.length - 1);
    const here = positions[cursor];
    const values = chart.lines.flatMap((line) =>
      line.points
        .filter((point) => point.x === here)
        .map((point) => `${line.name} ${format(point.y)}${point.note ? ` (${point.note})` : ""}`),
    );
    const marked = (chart.whiskers || []).filter((one) => one.x === here).map((one) => one.note);
    readout.textContent = `${chart.xLabel} ${short(here)}: ${[...values, ...marked].join(", ")}`;
    paint();
  }

  svg.addEventListener("pointermove", (event) => {
    const at = ((event.clientX - svg.getBoundingClientRect().left) / svg.clientWidth) * width;
    read(
      positions.reduce(
        (best, value, index) => (Math.abs(x(value) - at) < Math.abs(x(positions[best]) - at) ? index : best),
        0,
      ),
    );
  });
  svg.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    read(cursor + by);
  });
  new ResizeObserver(([entry]) => {
    const now = Math.round(entry.contentRect.width);
    if (now && now !== width) {
      width = now;
      paint();
    }
  }).observe(svg);
  return figure;
}

function label(text, attributes) {
  const node = draw("text", { class: "tick", ...attributes });
  node.textContent = text;
  return node;
}

function describe(chart, format) {
  return chart.lines
    .map((line) =>
      line.points.length
        ? `${line.name} from ${format(line.points[0].y)} to ${format(line.points.at(-1).y)}`
        : `${line.name} without values`,
    )
    .join("; ");
}

// The numbers of a chart, for people who do not see it and for copying. Filled when it is opened.
function dataTable(chart, format) {
  const details = make("details", {}, make("summary", {}, "Data"));
  details.addEventListener("toggle", () => {
    if (!details.open || details.childElementCount > 1) return;
    const rows = chart.lines.flatMap((line) =>
      line.points.map((point) => [line.name, short(point.x), format(point.y), point.note || ""]),
    );
    details.append(plainTable(chart.title, ["curve", `#${chart.xLabel}`, "#value", ""], rows));
  });
  return details;
}

// Parts of a whole as one bar with a list.
export function partsBar(title, parts, format) {
  const known = Object.entries(parts).filter(([, value]) => value > 0);
  const total = known.reduce((sum, [, value]) => sum + value, 0);
  const bar = make("div", {
    class: "bar",
    role: "img",
    "aria-label": known.map(([name, value]) => `${name} ${format(value)}`).join(", "),
  });
  known.forEach(([, value], index) => {
    const piece = make("span", { class: `part-${index % 8}` });
    piece.style.flexGrow = value / total;
    bar.append(piece);
  });
  return make(
    "div",
    { class: "parts" },
    make("h3", {}, `${title}: ${format(total)}`),
    bar,
    make(
      "ul",
      {},
      ...known.map(([name, value], index) =>
        make(
          "li",
          {},
          make("i", { class: `part-${index % 8}` }),
          `${name} `,
          make("b", {}, format(value)),
          ` ${percent(value / total)}`,
        ),
      ),
    ),
  );
}
