// All episodes of a run: filters, search, sorted pages. Rows open the episode; arrow keys there follow this list.
"use strict";
import { get } from "./api.js";
import { seconds, short } from "./charts.js";
import { make } from "./dom.js";
import { pagedTable } from "./table.js";

const CHOICES = {
  phase: "all phases",
  family: "all families",
  outcome: "all outcomes",
  state: "all states",
  cause: "all causes",
  alert: "all alerts",
};
const LIST = "deskhand-list"; // ids of the page of episodes shown last

export function listedEpisodes(run) {
  try {
    const kept = JSON.parse(sessionStorage.getItem(LIST));
    return kept && kept.run === run ? kept.ids : [];
  } catch {
    return [];
  }
}

export function outcomeOf(row) {
  if (row.state === "errored" || row.state === "in_flight") return row.state;
  return row.value >= 1 ? "success" : "failure";
}

export async function episodesPage(at, { href }) {
  const values = await get(`/runs/${at.run}/values`);
  const state = { sort: "started_at", descending: true, offset: 0, ...at.parameters };
  state.offset = Number(state.offset) || 0;
  state.descending = state.descending === true || state.descending === "1";
  const filters = () =>
    Object.fromEntries(
      [...Object.keys(CHOICES), "text", "task", "reason", "version", "group"].map((name) => [name, state[name] || ""]),
    );

  const keep = () =>
    history.replaceState(
      null,
      "",
      href(`/run/${at.run}/episodes`, {
        ...filters(),
        sort: state.sort,
        descending: state.descending ? "1" : "",
        offset: state.offset || "",
      }),
    );
  const table = pagedTable({
    label: "Episodes",
    state,
    onState: keep,
    onRows: (rows) => sessionStorage.setItem(LIST, JSON.stringify({ run: at.run, ids: rows.map((row) => row.id) })),
    load: (page) => get(`/runs/${at.run}/episodes`, { ...filters(), ...page }),
    rowClass: (row) => outcomeOf(row),
    columns: [
      {
        key: "value",
        title: "outcome",
        show: (row) =>
          make(
            "span",
            { class: "badge" },
            make("i", { class: `sign ${outcomeOf(row)}` }),
            outcomeOf(row).replace("_", " "),
          ),
      },
      {
        key: "task_id",
        title: "task",
        text: true,
        show: (row) =>
          make(
            "a",
            { href: href(`/run/${at.run}/episode/${encodeURIComponent(row.id)}`) },
            row.instruction || row.task_id,
            make("small", {}, row.task_id),
          ),
      },
      {
        key: "reason",
        title: "reason",
        text: true,
        sortable: false,
        show: (row) => make("span", { class: "reason", title: row.reason }, row.reason),
      },
      { key: "reward", title: "reward", numeric: true, show: (row) => short(row.reward) },
      { key: "steps", title: "steps", numeric: true, wide: true, show: (row) => row.steps ?? "–" },
      { key: "version_max", title: "version", numeric: true, wide: true, show: (row) => versionText(row) },
      {
        key: "state",
        title: "state",
        wide: true,
        show: (row) => [row.state.replace("_", " "), make("small", {}, row.phase)],
      },
      {
        key: "group_id",
        title: "group",
        wide: true,
        sortable: false,
        show: (row) =>
          row.group_id
            ? make(
                "a",
                { href: href(`/run/${at.run}/group/${encodeURIComponent(row.group_id)}`) },
                `${row.group_id.slice(0, 6)} #${row.member}`,
              )
            : "",
      },
      {
        key: "seconds",
        title: "time",
        numeric: true,
        wide: true,
        show: (row) => (row.seconds === null ? "–" : seconds(row.seconds)),
      },
    ],
  });

  const set = (name, value) => {
    state[name] = value;
    state.offset = 0;
    keep();
    return table.refresh();
  };
  const select = (name, choices) => {
    const node = make(
      "select",
      { "aria-label": name, onchange: () => set(name, node.value) },
      make("option", { value: "" }, CHOICES[name]),
      ...choices.map((value) => make("option", { value, selected: value === state[name] }, value.replaceAll("_", " "))),
    );
    return node;
  };
  const field = (name, placeholder) => {
    let timer = null;
    const node = make("input", {
      type: "search",
      placeholder,
      "aria-label": placeholder,
      value: state[name] || "",
      oninput: () => {
        clearTimeout(timer);
        timer = setTimeout(() => set(name, node.value), 200);
      },
    });
    return node;
  };
  const bar = make(
    "div",
    { class: "filters", role: "search" },
    field("text", "search id, task, instruction, reason"),
    field("task", "task"),
    field("reason", "reason"),
    field("version", "version"),
    ...Object.keys(CHOICES)
      .filter((name) => (values[name] || []).length > 1 || state[name])
      .map((name) => select(name, [...new Set([...(values[name] || []), ...(state[name] ? [state[name]] : [])])])),
    make(
      "button",
      {
        type: "button",
        onclick: () => {
          location.hash = href(`/run/${at.run}/episodes`).slice(1);
        },
      },
      "Clear",
    ),
  );
  table.node.classList.add("episodes");
  await table.refresh();
  return { title: "Episodes", nodes: [bar, table.node], refresh: table.refresh };
}

function versionText(row) {
  if (row.version_max === null || row.version_max < 0) return "–";
  return row.version_min === row.version_max ? `${row.version_max}` : `${row.version_min}–${row.version_max}`;
}
