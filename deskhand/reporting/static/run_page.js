// A run: does it learn, is it healthy, where do episodes and time go, where does it fail, with which settings.
"use strict";
import { get } from "./api.js";
import { percent, rateText, seconds, short } from "./charts.js";
import { factList, make, repaint, section } from "./dom.js";
import { anyMetric, curves, settingText, time } from "./run_curves.js";
import { pagedTable, plainTable } from "./table.js";

function tile(name, value, note = "") {
  return make("div", {}, make("dt", {}, name), make("dd", {}, value), make("dd", { class: "note" }, note));
}

function tiles(summary) {
  const [before, after] = ["before", "after"].map((label) => summary.evaluations.find((one) => one.label === label));
  const found = [];
  if (before && after) {
    found.push(
      tile(
        "Evaluated success",
        `${percent(before.success.value)} → ${percent(after.success.value)}`,
        `after: ${rateText(after.success)}`,
      ),
    );
  } else if (before || after)
    found.push(
      tile("Evaluated success", percent((before || after).success.value), rateText((before || after).success)),
    );
  const last = summary.by_version.at(-1);
  if (last) found.push(tile("Training success, newest weights", percent(last.value), rateText(last)));
  const count = (test) => summary.stored.filter(test).reduce((sum, row) => sum + row.episodes, 0);
  found.push(
    tile(
      "Episodes",
      count(() => true).toLocaleString("en"),
      `${summary.in_flight} in flight, ${count((row) => row.state === "errored").toLocaleString("en")} errored`,
    ),
  );
  const elapsed = (summary.series["time/elapsed"] || []).filter((value) => value !== null).at(-1);
  found.push(
    tile("Training", summary.num_steps ? `${summary.num_steps} steps` : "no step yet", elapsed ? seconds(elapsed) : ""),
  );
  if (summary.waiting) found.push(tile("Waiting for quota", "yes", summary.waiting));
  return make("dl", { class: "tiles" }, ...found);
}

function stepsText(steps) {
  return steps.length === 1 ? `step ${steps[0]}` : `${steps.length} times in steps ${steps[0]} to ${steps.at(-1)}`;
}

function alerts(summary, at, href) {
  const lines = summary.evaluations.map((one) => one.warning).filter(Boolean);
  if (summary.no_signal) lines.push(`no signal: ${summary.no_signal}`);
  if (!summary.alerts.length && !lines.length) return make("p", { class: "note" }, "No alert.");
  return make(
    "ul",
    { class: "alerts" },
    ...summary.alerts.map((alert) =>
      make(
        "li",
        {},
        make("b", {}, alert.metric),
        ` ${short(alert.value)} (threshold: ${alert.threshold})`,
        make("p", {}, `${alert.cause}; ${alert.hint}`),
        make(
          "p",
          { class: "note" },
          `${stepsText(alert.steps)}; `,
          make("a", { href: href(`/run/${at.run}/episodes`, { alert: alert.metric }) }, "episodes of these steps"),
        ),
      ),
    ),
    ...lines.map((line) => make("li", {}, line)),
  );
}

function accounting(summary) {
  const rows = summary.stored.map((row) => [
    row.phase,
    row.cause ? `${row.state} (${row.cause})` : row.state.replaceAll("_", " "),
    row.episodes.toLocaleString("en"),
  ]);
  const counts = Object.entries(summary.counts);
  return make(
    "div",
    { class: "pair" },
    plainTable("Stored episodes", ["phase", "state", "#episodes"], rows),
    counts.length
      ? make(
          "div",
          { class: "card" },
          section(
            "Training episodes by state",
            factList(Object.fromEntries(counts.map(([name, value]) => [name.replaceAll("_", " "), value]))),
          ),
        )
      : null,
  );
}

function failures(summary, at, href) {
  if (!summary.failures.length) return make("p", { class: "note" }, "No failed episode.");
  return make(
    "ol",
    { class: "failures" },
    ...summary.failures.slice(0, 12).map((one) =>
      make(
        "li",
        {},
        make(
          "a",
          {
            href: href(
              `/run/${at.run}/episodes`,
              one.errored
                ? { family: one.family, outcome: "errored", cause: one.clause }
                : { family: one.family, outcome: "failure", reason: one.clause },
            ),
          },
          one.clause,
        ),
        ` ${one.errored ? "errored, " : ""}${one.family}`,
        make("b", {}, one.episodes.toLocaleString("en")),
      ),
    ),
  );
}

function tasks(at, href, state) {
  const table = pagedTable({
    label: "Results by task",
    state,
    load: (page) => get(`/runs/${at.run}/tasks`, { ...page, by: state.by, phase: state.phase, text: state.text }),
    columns: [
      {
        key: "name",
        title: "task",
        show: (row) =>
          make(
            "a",
            {
              href: href(
                `/run/${at.run}/episodes`,
                state.by === "family" ? { family: row.name, phase: row.phase } : { task: row.name, phase: row.phase },
              ),
            },
            row.name,
          ),
      },
      { key: "phase", title: "phase", show: (row) => row.phase },
      { key: "value", title: "success", numeric: true, show: (row) => percent(row.value) },
      {
        key: "hits",
        title: "95 % interval",
        numeric: true,
        sortable: false,
        show: (row) => (row.total ? `${percent(row.interval[0])} to ${percent(row.interval[1])}` : "–"),
      },
      { key: "total", title: "scored", numeric: true, show: (row) => row.total },
      { key: "reward", title: "reward", numeric: true, show: (row) => short(row.reward) },
      { key: "errored", title: "errored", numeric: true, wide: true, show: (row) => row.errored || "" },
      {
        key: "zero_variance",
        title: "zero variance",
        numeric: true,
        wide: true,
        show: (row) => row.zero_variance || "",
      },
      { key: "version_max", title: "newest version", numeric: true, wide: true, show: (row) => row.version_max ?? "–" },
    ],
  });
  const search = make("input", {
    type: "search",
    placeholder: "filter tasks",
    "aria-label": "Filter tasks",
    oninput: () => {
      state.text = search.value;
      state.offset = 0;
      table.refresh();
    },
  });
  const by = make(
    "select",
    {
      "aria-label": "Rows",
      onchange: () => {
        state.by = by.value;
        state.offset = 0;
        table.refresh();
      },
    },
    make("option", { value: "family" }, "by family"),
    make("option", { value: "task" }, "by task"),
  );
  table.refresh();
  return { node: make("div", {}, make("div", { class: "filters" }, search, by), table.node), refresh: table.refresh };
}

function evaluations(summary) {
  if (!summary.evaluations.length) return null;
  const rows = summary.evaluations.map((one) => [
    one.label,
    one.held_out ? "held out" : "training tasks",
    percent(one.success.value),
    `${percent(one.success.interval[0])} to ${percent(one.success.interval[1])}`,
    String(one.success.total),
    percent(one.of_started.value),
    short(one.reward),
    Object.entries(one.pass_at)
      .map(([k, value]) => `@${k} ${percent(value)}`)
      .join(" ") || "–",
  ]);
  const heads = [
    "evaluation",
    "tasks",
    "#success",
    "#95 % interval",
    "#episodes",
    "#of all started",
    "#reward",
    "#pass",
  ];
  return make("section", {}, make("h2", {}, "Evaluations"), plainTable("Evaluations", heads, rows));
}

function settings(summary) {
  const list = make("div", {});
  const paint = (text) =>
    list.replaceChildren(
      factList(
        Object.fromEntries(
          Object.entries(summary.settings)
            .filter(([name, value]) => `${name} ${settingText(value)}`.toLowerCase().includes(text.toLowerCase()))
            .map(([name, value]) => [name, settingText(value)]),
        ),
      ),
    );
  const search = make("input", {
    type: "search",
    placeholder: "filter settings",
    "aria-label": "Filter settings",
    oninput: () => paint(search.value),
  });
  paint("");
  return make(
    "details",
    { class: "card" },
    make("summary", {}, `${Object.keys(summary.settings).length} settings`),
    search,
    list,
  );
}

export async function runPage(at, { href }) {
  let summary = await get(`/runs/${at.run}`);
  const state = { metric: at.parameters.metric || "" };
  const table = tasks(at, href, { by: "family", sort: "name", text: "" });
  const [top, middle, below] = [make("div", {}), make("div", {}), make("div", {})];
  const parts = make("div", {}, top, middle);
  function paint() {
    top.replaceChildren(tiles(summary), make("section", {}, make("h2", {}, "Alerts"), alerts(summary, at, href)));
    middle.replaceChildren(
      ...[
        make(
          "section",
          { class: "pair charts" },
          ...[...curves(summary), anyMetric(summary, state)].filter((node) => node),
        ),
        make("section", {}, make("h2", {}, "Why episodes fail"), failures(summary, at, href)),
      ].filter((node) => node),
    );
    below.replaceChildren(
      ...[
        evaluations(summary),
        make("section", {}, make("h2", {}, "Time per part"), time(summary)),
        make("section", {}, make("h2", {}, "Episodes by state"), accounting(summary)),
        make(
          "section",
          {},
          make("h2", {}, "Settings"),
          make("div", { class: "card" }, factList({ ...summary.facts, folder: summary.folder })),
          settings(summary),
        ),
      ].filter((node) => node),
    );
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
