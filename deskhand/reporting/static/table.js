// A sortable table that asks the server for one page of its rows at a time.
"use strict";
import { make, repaint } from "./dom.js";

const ROWS = 50;

// A table whose rows are all here. `heads`: titles; one that begins with "#" is of numbers.
export function plainTable(label, heads, rows) {
  const kinds = heads.map((title) => (title.startsWith("#") ? "numeric" : null));
  const cells = (row) =>
    row.map((cell, at) =>
      cell instanceof HTMLTableCellElement
        ? cell
        : make("td", { class: kinds[at] || (at ? "text" : null) }, cell ?? ""),
    );
  return make(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
    make(
      "table",
      {},
      make(
        "thead",
        {},
        make(
          "tr",
          {},
          ...heads.map((title, at) => make("th", { scope: "col", class: kinds[at] }, title.replace("#", ""))),
        ),
      ),
      make("tbody", {}, ...rows.map((row) => make("tr", {}, ...cells(row)))),
    ),
  );
}

// `columns`: key, title, show(row), and whether it is numeric, wide (hidden on narrow screens) or not sortable.
// `load({ sort, descending, offset, limit })` returns { total, rows }; `state` is kept by the caller.
export function pagedTable({
  label,
  columns,
  load,
  state,
  rowClass = () => "",
  onState = () => {},
  onRows = () => {},
}) {
  const body = make("tbody");
  const head = make("tr");
  const count = make("span", { "aria-live": "polite" });
  const back = make("button", { type: "button", "aria-label": "Previous page", onclick: () => move(-1) }, "‹");
  const forth = make("button", { type: "button", "aria-label": "Next page", onclick: () => move(1) }, "›");
  const note = make("p", { class: "note", role: "alert" });
  let total = 0;
  let asked = 0;

  function move(by) {
    state.offset = Math.max(0, Math.min((state.offset || 0) + by * ROWS, Math.max(0, total - 1)));
    onState(state);
    return refresh();
  }

  function sortBy(column) {
    state.descending = state.sort === column.key ? !state.descending : Boolean(column.numeric);
    state.sort = column.key;
    state.offset = 0;
    onState(state);
    return refresh();
  }

  function showHead() {
    head.replaceChildren(
      ...columns.map((column) => {
        const sorted = state.sort === column.key;
        const name =
          column.sortable === false
            ? column.title
            : make(
                "button",
                { type: "button", class: "sort", onclick: () => sortBy(column) },
                column.title,
                sorted ? (state.descending ? " ↓" : " ↑") : "",
              );
        return make(
          "th",
          {
            scope: "col",
            class: classOf(column),
            "aria-sort": sorted ? (state.descending ? "descending" : "ascending") : null,
          },
          name,
        );
      }),
    );
  }

  const classOf = (column) =>
    [column.numeric ? "numeric" : "", column.wide ? "wide" : "", column.text ? "text" : ""].join(" ").trim() || null;

  async function refresh() {
    const mine = ++asked;
    repaint(head, showHead);
    try {
      const found = await load({
        sort: state.sort,
        descending: state.descending ? "1" : "",
        offset: state.offset || 0,
        limit: ROWS,
      });
      if (mine !== asked) return;
      total = found.total;
      note.textContent = "";
      body.replaceChildren(
        ...found.rows.map((row) =>
          make(
            "tr",
            { class: rowClass(row) || null },
            ...columns.map((column) => make("td", { class: classOf(column) }, column.show(row) ?? "")),
          ),
        ),
      );
      const first = total ? (state.offset || 0) + 1 : 0;
      count.textContent = `${first}–${(state.offset || 0) + found.rows.length} of ${total.toLocaleString("en")}`;
      back.disabled = !state.offset;
      forth.disabled = (state.offset || 0) + ROWS >= total;
      onRows(found.rows);
    } catch (error) {
      if (mine === asked) note.textContent = error.message;
    }
  }

  const node = make(
    "div",
    { class: "table" },
    make(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
      make("table", {}, make("thead", {}, head), body),
    ),
    make("div", { class: "pager" }, back, count, forth),
    note,
  );
  return { node, refresh };
}
