// Curves of a run: success with intervals, reward, staleness, any metric, time by part. Also to compare runs.
"use strict";
import { lineChart, partsBar, percent, rateText, seconds } from "./charts.js";
import { make } from "./dom.js";

const SMOOTHING = 0.3; // weight of the newest step
const EPISODE_PARTS = ["reset", "setup", "model", "acting", "judge", "quota_wait"];
const STEP_PARTS = [ // do not overlap; the engine works beside them
  "rollout_wait", "train_step", "vision_probe", "publish", "publish_probe", "checkpoint", "evaluation", "other",
];

function smoothed(points) {
  let last = null;
  return points.map((point) => ({
    ...point,
    y: (last = last === null ? point.y : last + SMOOTHING * (point.y - last)),
  }));
}

export function metricPoints(summary, name) {
  const values = summary.series[name] || [];
  return values.map((y, at) => ({ x: summary.series.step[at], y })).filter((point) => point.y !== null);
}

export function successPoints(summary) {
  return summary.by_version
    .filter((bin) => bin.value !== null)
    .map((bin) => ({
      x: bin.version,
      y: bin.value,
      low: bin.interval[0],
      high: bin.interval[1],
      note: `${bin.hits}/${bin.total}, 95 % interval ${percent(bin.interval[0])} to ${percent(bin.interval[1])}`,
    }));
}

export function whiskers(summary, index = 0) {
  return summary.evaluations
    .filter((one) => one.own && one.success.total)
    .map((one) => ({
      x: one.version,
      y: one.success.value,
      low: one.success.interval[0],
      high: one.success.interval[1],
      index,
      note: `evaluation ${one.label}: ${rateText(one.success)}`,
    }));
}

export function curves(summary) {
  const reward = metricPoints(summary, "reward/mean");
  const found = [
    lineChart({
      title: "Success",
      xLabel: "weights version",
      range: [0, 1],
      format: percent,
      lines: [{ name: "training episodes", points: successPoints(summary) }],
      whiskers: whiskers(summary),
    }),
    lineChart({
      title: "Reward",
      xLabel: "step",
      lines: [
        { name: "smoothed", points: smoothed(reward) },
        { name: "mean of the step", index: 1, dashed: true, points: reward },
      ],
    }),
  ];
  if (metricPoints(summary, "policy/staleness").length) {
    found.push(
      lineChart({
        title: "Staleness",
        xLabel: "step",
        lines: [{ name: "versions behind", points: metricPoints(summary, "policy/staleness") }],
      }),
    );
  }
  return found;
}

export function metricNames(summaries) {
  const names = new Set(summaries.flatMap((summary) => Object.keys(summary.series)));
  for (const name of ["step", "version", "schema_version"]) names.delete(name);
  return [...names].sort();
}

export function anyMetric(summary, state) {
  const names = metricNames([summary]);
  if (!names.length) return null;
  state.metric = names.includes(state.metric)
    ? state.metric
    : names.find((name) => name === "train/entropy") || names[0];
  const holder = make("div", {});
  const select = make(
    "select",
    {
      "aria-label": "Metric",
      onchange: () => {
        state.metric = select.value;
        paint();
      },
    },
    ...names.map((name) => make("option", { value: name, selected: name === state.metric }, name)),
  );
  const paint = () =>
    holder.replaceChildren(
      lineChart({
        title: state.metric,
        xLabel: "step",
        lines: [{ name: "value", points: metricPoints(summary, state.metric) }],
      }),
    );
  paint();
  return make("div", { class: "any-metric" }, make("label", {}, "Metric ", select), holder);
}

export function time(summary) {
  const of = summary.seconds;
  const episode = Object.fromEntries(
    EPISODE_PARTS.map((name) => [
      name,
      name === "acting" ? Math.max(0, (of.solve || 0) - (of.model || 0)) : of[name] || 0,
    ]),
  );
  const step = {}, engine = {};
  for (const [name, values] of Object.entries(summary.series)) {
    const known = values.filter((value) => value !== null);
    if (!name.startsWith("time/") || !known.length) continue;
    const mean = known.reduce((sum, value) => sum + value, 0) / known.length;
    if (name.startsWith("time/engine_")) engine[name.slice(12)] = mean;
    else if (STEP_PARTS.includes(name.slice(5))) step[name.slice(5)] = Math.max(0, mean);
  }
  return make(
    "div",
    { class: "card" },
    partsBar("An episode, mean", named(episode), seconds),
    Object.keys(step).length ? partsBar("A step, mean", named(step), seconds) : null,
    Object.keys(engine).length ? partsBar("The engine during a step, mean", named(engine), seconds) : null,
  );
}

const named = (parts) =>
  Object.fromEntries(Object.entries(parts).map(([name, value]) => [name.replaceAll("_", " "), value]));

export function settingText(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}
