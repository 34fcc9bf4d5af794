// A folder of `deskhand record`: its sessions, and the conversations of one, with images and tool calls.
"use strict";
import { frameImage, get } from "./api.js";
import { short } from "./charts.js";
import { make, section } from "./dom.js";
import { pagedTable } from "./table.js";

export async function sessionsPage(at, { href }) {
  const state = { offset: Number(at.parameters.offset) || 0, text: at.parameters.text || "" };
  const plain = (key, title) => ({ key, title, numeric: true, wide: true, sortable: false, show: (row) => row[key] });
  const table = pagedTable({
    label: "Sessions",
    state,
    load: ({ offset, limit }) => get(`/runs/${at.run}/sessions`, { text: state.text, offset, limit }),
    columns: [
      {
        key: "title",
        title: "session",
        text: true,
        sortable: false,
        show: (row) =>
          make(
            "a",
            { href: href(`/run/${at.run}/session/${encodeURIComponent(row.id)}`) },
            row.title || row.id,
            make("small", {}, row.id),
          ),
      },
      plain("replies", "replies"),
      plain("conversations", "conversations"),
      plain("images", "images"),
      plain("skipped", "skipped"),
      { key: "reward", title: "reward", numeric: true, sortable: false, show: (row) => short(row.reward) },
    ],
  });
  const field = make("input", {
    type: "search",
    placeholder: "search id and first message",
    "aria-label": "search id and first message",
    value: state.text,
    oninput: () => {
      state.text = field.value;
      state.offset = 0;
      history.replaceState(null, "", href(`/run/${at.run}`, { text: state.text }));
      return table.refresh();
    },
  });
  await table.refresh();
  const bar = make("div", { class: "filters", role: "search" }, field);
  return { title: "Recorded sessions", nodes: [bar, table.node], refresh: table.refresh };
}

function turnNode(run, turn) {
  return make(
    "div",
    { class: `turn ${turn.is_reply ? "target" : ""}` },
    make("b", {}, turn.is_reply ? `${turn.role}, recorded reply` : turn.role),
    ...turn.parts.map((part) =>
      part.image
        ? make(
            "span",
            { class: "message-image" },
            frameImage(run, part.image, { width: 640, alt: "image of a message", lazy: true }),
          )
        : make("pre", {}, part.text),
    ),
    ...turn.calls.map((call) => make("pre", {}, `${call.name}(${call.arguments})`)),
  );
}

export async function sessionPage(at, { href }) {
  const found = await get(`/runs/${at.run}/sessions/${encodeURIComponent(at.id)}`);
  const skipped = Object.entries(found.skipped).map(([reason, count]) => `${count} skipped: ${reason}`);
  const reward = found.reward === null ? "no reward" : `reward ${short(found.reward)}`;
  return {
    title: found.id,
    nodes: [
      make(
        "p",
        { class: "note" },
        make("a", { href: href(`/run/${at.run}`) }, "all sessions"),
        ` · ${[reward, ...skipped].join(" · ")}`,
      ),
      ...found.conversations.map((one, index) =>
        make(
          "div",
          { class: "card conversation" },
          section(
            `Conversation ${index + 1} of ${found.conversations.length}`,
            one.tools.length
              ? make(
                  "details",
                  {},
                  make("summary", {}, `${one.tools.length} tools`),
                  make("pre", {}, JSON.stringify(one.tools, null, 1)),
                )
              : "",
            ...one.turns.map((turn) => turnNode(at.run, turn)),
          ),
        ),
      ),
    ],
  };
}
