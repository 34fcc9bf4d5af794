// Several runs: curves over each other, results by family with intervals, and the settings that differ.
"use strict";
import { get } from "./api.js";
import { lineChart, percent, rateText, seconds, short } from "./charts.js";
import { make } from "./dom.js";
import { metricNames, metricPoints, settingText, successPoints, whiskers } from "./run_curves.js";
import { plainTable } from "./table.js";

const COLORS = 8;

function key(index) {
  return make("i", { class: `key line-${index % COLORS}` });
}

function numbersTable(chosen, href) {
  const rows = chosen.map(({ summary, index }) => {
    const after = newestEvaluation(summary);
    const newest = summary.by_version.at(-1);
    const errored = summary.stored.filter((row) => row.state === "errored").reduce((sum, row) => sum + row.episodes, 0);
    const elapsed = (summary.series["time/elapsed"] || []).filter((value) => value !== null).at(-1);
    const cells = [
      rateText(after?.success),
      rateText(newest),
      summary.num_steps,
      summary.stored.reduce((sum, row) => sum + row.episodes, 0),
      errored,
      elapsed ? seconds(elapsed) : "–",
      summary.alerts.length,
    ];
    return [
      make("td", {}, key(index), make("a", { href: href(`/run/${index}`) }, `${index + 1}. ${summary.title}`)),
      ...cells.map(String),
    ];
  });
  return plainTable(
    "Runs",
    ["run", "newest evaluation", "training, newest weights", "#steps", "#episodes", "#errored", "#time", "#alerts"],
    rows,
  );
}

const newestEvaluation = (summary) => summary.evaluations.filter((one) => one.own).at(-1);

function familyTable(chosen) {
  const newest = chosen.map(({ summary }) => newestEvaluation(summary));
  const families = [...new Set(newest.flatMap((one) => (one ? Object.keys(one.by_family) : [])))].sort();
  if (!families.length) return null;
  const rows = families.map((family) => [
    family,
    ...newest.map((one) => {
      const rate = one?.by_family[family];
      return rate
        ? `${percent(rate.value)} [${percent(rate.interval[0])}, ${percent(rate.interval[1])}] of ${rate.total}`
        : "–";
    }),
  ]);
  return make(
    "section",
    {},
    make("h2", {}, "Newest evaluation by family, with 95 % intervals"),
    plainTable("By family", ["family", ...chosen.map(({ index }) => `#run ${index + 1}`)], rows),
  );
}

function settingsTable(chosen) {
  const shown = ({ summary }, name) => (name in summary.settings ? settingText(summary.settings[name]) : "–");
  const names = [...new Set(chosen.flatMap(({ summary }) => Object.keys(summary.settings)))];
  const differing = names.filter((name) => new Set(chosen.map((one) => shown(one, name))).size > 1);
  if (!differing.length) return make("p", { class: "note" }, "No setting differs.");
  return plainTable(
    "Settings that differ",
    ["setting", ...chosen.map(({ index }) => `run ${index + 1}`)],
    differing.map((name) => [name, ...chosen.map((one) => shown(one, name))]),
  );
}

export async function comparePage(at, { runs: sources, href }) {
  const runs = sources.filter((one) => one.kind === "run");
  const wanted = (at.parameters.runs || "").split(",").filter(Boolean).map(Number);
  const shown = new Set(wanted.length ? wanted : runs.map((run) => run.index));
  const state = { metric: at.parameters.metric || "reward/mean" };
  const summaries = await Promise.all(runs.map((run) => get(`/runs/${run.index}`)));
  const holder = make("div", {});

  function paint() {
    const chosen = summaries.map((summary, index) => ({ summary, index })).filter(({ index }) => shown.has(index));
    const names = metricNames(chosen.map(({ summary }) => summary));
    const select = make(
      "select",
      {
        "aria-label": "Metric",
        onchange: () => {
          state.metric = select.value;
          keep();
          paint();
        },
      },
      ...names.map((name) => make("option", { value: name, selected: name === state.metric }, name)),
    );
    const name = ({ index }) => `run ${index + 1}`;
    const metric = chosen.map((one) => ({
      name: name(one),
      index: one.index % COLORS,
      points: metricPoints(one.summary, state.metric),
    }));
    holder.replaceChildren(
      ...[
        make(
          "fieldset",
          { class: "filters" },
          make("legend", {}, "Runs"),
          ...runs.map((run) =>
            make(
              "label",
              {},
              make("input", { type: "checkbox", checked: shown.has(run.index), onchange: () => toggle(run.index) }),
              key(run.index),
              ` ${run.index + 1}. ${run.title}`,
            ),
          ),
        ),
        numbersTable(chosen, href),
        make(
          "section",
          { class: "pair charts" },
          lineChart({
            title: "Success",
            xLabel: "weights version",
            range: [0, 1],
            format: percent,
            lines: chosen.map((one) => ({
              name: name(one),
              index: one.index % COLORS,
              points: successPoints(one.summary),
            })),
            whiskers: chosen.flatMap((one) => whiskers(one.summary, one.index % COLORS)),
          }),
          names.length
            ? make(
                "div",
                { class: "any-metric" },
                make("label", {}, "Metric ", select),
                lineChart({ title: state.metric, xLabel: "step", format: short, lines: metric }),
              )
            : null,
        ),
        familyTable(chosen),
        make("section", {}, make("h2", {}, "Settings that differ"), settingsTable(chosen)),
      ].filter((node) => node),
    );
  }
  const keep = () =>
    history.replaceState(null, "", href("/compare", { runs: [...shown].join(","), metric: state.metric }));
  function toggle(index) {
    if (!shown.delete(index)) shown.add(index);
    keep();
    paint();
  }
  paint();
  return { title: "Compare runs", nodes: [holder] };
}
