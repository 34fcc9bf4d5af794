// A run: is it learning, is it healthy, where do episodes and time go, on which tasks does it fail, with which settings.
"use strict";
import { get } from "./api.js";
import { lineChart, partsBar, percent, rateText, seconds, short } from "./charts.js";
import { factList, make, repaint, section } from "./dom.js";
import { pagedTable, plainTable } from "./table.js";

const SMOOTHING = 0.3; // weight of the newest step
const EPISODE_PARTS = ["reset", "setup", "model", "acting", "judge", "quota_wait"];

function smoothed(points) {
  let last = null;
  return points.map((point) => ({ ...point, y: (last = last === null ? point.y : last + SMOOTHING * (point.y - last)) }));
}

export function metricPoints(summary, name) {
  const values = summary.series[name] || [];
  return values.map((y, at) => ({ x: summary.series.step[at], y })).filter((point) => point.y !== null);
}

export function successPoints(summary) {
  return summary.by_version.filter((bin) => bin.value !== null).map((bin) => ({ x: bin.version, y: bin.value, low: bin.interval[0], high: bin.interval[1], note: `${bin.hits}/${bin.total}, 95 % interval ${percent(bin.interval[0])} to ${percent(bin.interval[1])}` }));
}

export function whiskers(summary, index = 0) {
  return summary.evaluations.filter((one) => one.own && one.success.total).map((one) => ({ x: one.version, y: one.success.value, low: one.success.interval[0], high: one.success.interval[1], index, note: `evaluation ${one.label}: ${rateText(one.success)}` }));
}

function tile(name, value, note = "") {
  return make("div", {}, make("dt", {}, name), make("dd", {}, value), make("dd", { class: "note" }, note));
}

function tiles(summary) {
  const [before, after] = ["before", "after"].map((label) => summary.evaluations.find((one) => one.label === label));
  const found = [];
  if (before && after) {
    found.push(tile("Evaluated success", `${percent(before.success.value)} → ${percent(after.success.value)}`, `after: ${rateText(after.success)}`));
  } else if (before || after) found.push(tile("Evaluated success", percent((before || after).success.value), rateText((before || after).success)));
  const last = summary.by_version.at(-1);
  if (last) found.push(tile("Training success, newest weights", percent(last.value), rateText(last)));
  const count = (test) => summary.stored.filter(test).reduce((sum, row) => sum + row.episodes, 0);
  found.push(tile("Episodes", count(() => true).toLocaleString("en"), `${summary.in_flight} in flight, ${count((row) => row.state === "errored").toLocaleString("en")} errored`));
  const elapsed = (summary.series["time/elapsed"] || []).filter((value) => value !== null).at(-1);
  found.push(tile("Training", summary.num_steps ? `${summary.num_steps} steps` : "no step yet", elapsed ? seconds(elapsed) : ""));
  if (summary.waiting) found.push(tile("Waiting for quota", "yes", summary.waiting));
  return make("dl", { class: "tiles" }, ...found);
}

function alerts(summary, at, href) {
  const lines = summary.evaluations.map((one) => one.warning).filter(Boolean);
  if (summary.no_signal) lines.push(`no signal: ${summary.no_signal}`);
  if (!summary.alerts.length && !lines.length) return make("p", { class: "note" }, "No alert.");
  return make("ul", { class: "alerts" },
    ...summary.alerts.map((alert) => make("li", {},
      make("b", {}, alert.metric), ` ${short(alert.value)} (threshold: ${alert.threshold})`,
      make("p", {}, `${alert.cause}; ${alert.hint}`),
      make("p", { class: "note" }, `${alert.steps.length === 1 ? `step ${alert.steps[0]}` : `${alert.steps.length} times in steps ${alert.steps[0]} to ${alert.steps.at(-1)}`}; `,
        make("a", { href: href(`/run/${at.run}/episodes`, { alert: alert.metric }) }, "episodes of these steps")))),
    ...lines.map((line) => make("li", {}, line)));
}

function curves(summary) {
  const reward = metricPoints(summary, "reward/mean");
  const found = [
    lineChart({ title: "Success", xLabel: "weights version", range: [0, 1], format: percent, lines: [{ name: "training episodes", points: successPoints(summary) }], whiskers: whiskers(summary) }),
    lineChart({ title: "Reward", xLabel: "step", lines: [{ name: "smoothed", points: smoothed(reward) }, { name: "mean of the step", index: 1, dashed: true, points: reward }] }),
  ];
  if (metricPoints(summary, "policy/staleness").length) {
    found.push(lineChart({ title: "Staleness", xLabel: "step", lines: [{ name: "versions behind", points: metricPoints(summary, "policy/staleness") }] }));
  }
  return found;
}

export function metricNames(summaries) {
  const names = new Set(summaries.flatMap((summary) => Object.keys(summary.series)));
  for (const name of ["step", "version", "schema_version"]) names.delete(name);
  return [...names].sort();
}

function anyMetric(summary, state) {
  const names = metricNames([summary]);
  if (!names.length) return null;
  state.metric = names.includes(state.metric) ? state.metric : names.find((name) => name === "train/entropy") || names[0];
  const holder = make("div", {});
  const select = make("select", { "aria-label": "Metric", onchange: () => { state.metric = select.value; paint(); } },
    ...names.map((name) => make("option", { value: name, selected: name === state.metric }, name)));
  const paint = () => holder.replaceChildren(lineChart({ title: state.metric, xLabel: "step", lines: [{ name: "value", points: metricPoints(summary, state.metric) }] }));
  paint();
  return make("div", { class: "any-metric" }, make("label", {}, "Metric ", select), holder);
}

function time(summary) {
  const of = summary.seconds;
  const episode = Object.fromEntries(EPISODE_PARTS.map((name) => [name, name === "acting" ? Math.max(0, (of.solve || 0) - (of.model || 0)) : of[name] || 0]));
  const step = {};
  for (const [name, values] of Object.entries(summary.series)) {
    if (!name.startsWith("time/") || name.startsWith("time/episode_") || ["time/elapsed", "time/quota_wait", "time/step"].includes(name)) continue;
    const known = values.filter((value) => value !== null);
    if (known.length) step[name.slice(5)] = known.reduce((sum, value) => sum + value, 0) / known.length;
  }
  return make("div", { class: "card" }, partsBar("An episode, mean", named(episode), seconds), Object.keys(step).length ? partsBar("A step, mean", named(step), seconds) : null);
}

const named = (parts) => Object.fromEntries(Object.entries(parts).map(([name, value]) => [name.replaceAll("_", " "), value]));

function accounting(summary) {
  const rows = summary.stored.map((row) => [row.phase, row.cause ? `${row.state} (${row.cause})` : row.state.replaceAll("_", " "), row.episodes.toLocaleString("en")]);
  const counts = Object.entries(summary.counts);
  return make("div", { class: "pair" },
    plainTable("Stored episodes", ["phase", "state", "#episodes"], rows),
    counts.length ? make("div", { class: "card" }, section("Training episodes by state", factList(Object.fromEntries(counts.map(([name, value]) => [name.replaceAll("_", " "), value]))))) : null);
}

function failures(summary, at, href) {
  if (!summary.failures.length) return make("p", { class: "note" }, "No failed episode.");
  return make("ol", { class: "failures" }, ...summary.failures.slice(0, 12).map((one) => make("li", {},
    make("a", { href: href(`/run/${at.run}/episodes`, one.errored ? { family: one.family, outcome: "errored", cause: one.clause } : { family: one.family, outcome: "failure", reason: one.clause }) }, one.clause),
    ` ${one.errored ? "errored, " : ""}${one.family}`, make("b", {}, one.episodes.toLocaleString("en")))));
}

function tasks(at, href, state) {
  const table = pagedTable({
    label: "Results by task",
    state,
    load: (page) => get(`/runs/${at.run}/tasks`, { ...page, by: state.by, phase: state.phase, text: state.text }),
    columns: [
      { key: "name", title: "task", show: (row) => make("a", { href: href(`/run/${at.run}/episodes`, state.by === "family" ? { family: row.name, phase: row.phase } : { task: row.name, phase: row.phase }) }, row.name) },
      { key: "phase", title: "phase", show: (row) => row.phase },
      { key: "value", title: "success", numeric: true, show: (row) => percent(row.value) },
      { key: "hits", title: "95 % interval", numeric: true, sortable: false, show: (row) => (row.total ? `${percent(row.interval[0])} to ${percent(row.interval[1])}` : "–") },
      { key: "total", title: "scored", numeric: true, show: (row) => row.total },
      { key: "reward", title: "reward", numeric: true, show: (row) => short(row.reward) },
      { key: "errored", title: "errored", numeric: true, wide: true, show: (row) => row.errored || "" },
      { key: "zero_variance", title: "zero variance", numeric: true, wide: true, show: (row) => row.zero_variance || "" },
      { key: "version_max", title: "newest version", numeric: true, wide: true, show: (row) => row.version_max ?? "–" },
    ],
  });
  const search = make("input", { type: "search", placeholder: "filter tasks", "aria-label": "Filter tasks", oninput: () => { state.text = search.value; state.offset = 0; table.refresh(); } });
  const by = make("select", { "aria-label": "Rows", onchange: () => { state.by = by.value; state.offset = 0; table.refresh(); } }, make("option", { value: "family" }, "by family"), make("option", { value: "task" }, "by task"));
  table.refresh();
  return { node: make("div", {}, make("div", { class: "filters" }, search, by), table.node), refresh: table.refresh };
}

function evaluations(summary) {
  if (!summary.evaluations.length) return null;
  const rows = summary.evaluations.map((one) => [one.label, one.held_out ? "held out" : "training tasks", percent(one.success.value), `${percent(one.success.interval[0])} to ${percent(one.success.interval[1])}`,
    String(one.success.total), percent(one.of_started.value), short(one.reward), Object.entries(one.pass_at).map(([k, value]) => `@${k} ${percent(value)}`).join(" ") || "–"]);
  const heads = ["evaluation", "tasks", "#success", "#95 % interval", "#episodes", "#of all started", "#reward", "#pass"];
  return make("section", {}, make("h2", {}, "Evaluations"), plainTable("Evaluations", heads, rows));
}

export function settingText(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

function settings(summary) {
  const list = make("div", {});
  const paint = (text) => list.replaceChildren(factList(Object.fromEntries(Object.entries(summary.settings)
    .filter(([name, value]) => `${name} ${settingText(value)}`.toLowerCase().includes(text.toLowerCase())).map(([name, value]) => [name, settingText(value)]))));
  const search = make("input", { type: "search", placeholder: "filter settings", "aria-label": "Filter settings", oninput: () => paint(search.value) });
  paint("");
  return make("details", { class: "card" }, make("summary", {}, `${Object.keys(summary.settings).length} settings`), search, list);
}

export async function runPage(at, { href }) {
  let summary = await get(`/runs/${at.run}`);
  const state = { metric: at.parameters.metric || "" };
  const table = tasks(at, href, { by: "family", sort: "name", text: "" });
  const [top, middle, below] = [make("div", {}), make("div", {}), make("div", {})];
  const parts = make("div", {}, top, middle);
  function paint() {
    top.replaceChildren(tiles(summary), make("section", {}, make("h2", {}, "Alerts"), alerts(summary, at, href)));
    middle.replaceChildren(...[make("section", { class: "pair charts" }, ...[...curves(summary), anyMetric(summary, state)].filter((node) => node)),
      make("section", {}, make("h2", {}, "Why episodes fail"), failures(summary, at, href))].filter((node) => node));
    below.replaceChildren(...[evaluations(summary), make("section", {}, make("h2", {}, "Time per part"), time(summary)), make("section", {}, make("h2", {}, "Episodes by state"), accounting(summary)),
      make("section", {}, make("h2", {}, "Settings"), make("div", { class: "card" }, factList({ ...summary.facts, folder: summary.folder })), settings(summary))].filter((node) => node));
  }
  paint();
  return {
    title: summary.title,
    nodes: [parts, make("section", {}, make("h2", {}, "Tasks"), table.node), below],
    refresh: async () => {
      summary = await get(`/runs/${at.run}`);
      repaint(parts, () => repaint(below, paint));
      await table.refresh();
    },
  };
}
