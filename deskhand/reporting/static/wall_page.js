// The wall: the desktops of a run that is in progress, as tiles with task, state, step and last reward.
"use strict";
import { getFramed, showBlob } from "./api.js";
import { seconds, short } from "./charts.js";
import { make } from "./dom.js";

const INTERVAL_MS = 500;

// A tile is made once for its place and then changed, so that nothing flickers and the keyboard stays where it is.
function tileOf() {
  const image = make("img", { alt: "", draggable: "false" });
  const parts = { state: make("b"), step: make("span"), task: make("span", { class: "task" }), last: make("span") };
  const link = make(
    "a",
    {},
    make("span", { class: "picture" }, image),
    make("span", { class: "line" }, parts.state, parts.step),
    parts.task,
    parts.last,
  );
  return { node: make("li", { class: "tile" }, link), link, image, parts };
}

function lastText(last) {
  if (!last) return "no episode has ended here";
  if (last.errored) return `last: errored, ${last.errored.replaceAll("_", " ")}`;
  return `last reward ${short(last.reward)}`;
}

export async function wallPage(at, { href }) {
  const list = make("ul", { class: "wall", "aria-label": "Desktops" });
  const note = make("p", { class: "note", role: "status" });
  const tiles = [];
  let revision = 0;
  let timer = null;
  let left = false;

  function update(tile, one, blob) {
    if (blob) showBlob(tile.image, blob);
    tile.node.className = `tile ${one.id ? "" : "idle"} ${one.held ? "held" : ""}`;
    if (one.id) tile.link.setAttribute("href", href(`/run/${at.run}/live/${encodeURIComponent(one.id)}`));
    else tile.link.removeAttribute("href");
    tile.image.alt = one.task ? `Screen of ${one.task}` : "";
    tile.parts.state.textContent = one.id ? one.state : "idle";
    tile.parts.step.textContent = one.max_steps ? `step ${one.step} of ${one.max_steps}, ${seconds(one.seconds)}` : "";
    tile.parts.task.textContent = one.instruction ? `${one.family}: ${one.instruction}` : "";
    tile.parts.last.textContent = one.state === "open" ? "" : lastText(one.last);
  }

  async function refresh() {
    const found = await getFramed(`/runs/${at.run}/live`, { since: revision });
    revision = found.revision;
    while (tiles.length < found.desktops.length) {
      tiles.push(tileOf());
      list.append(tiles.at(-1).node);
    }
    found.desktops.forEach((one, index) =>
      update(tiles[index], one, one.image === null ? null : found.blobs[one.image]),
    );
    const working = found.desktops.filter((one) => one.id).length;
    note.textContent = `${working} of ${found.desktops.length} desktops at work`;
  }

  async function poll() {
    const began = performance.now();
    try {
      if (!document.hidden) await refresh();
    } catch (error) {
      note.textContent = error.message;
    }
    if (!left) timer = setTimeout(poll, Math.max(50, INTERVAL_MS - (performance.now() - began)));
  }

  await poll();
  return {
    title: "Live desktops",
    nodes: [note, list],
    leave: () => {
      left = true;
      clearTimeout(timer);
    },
  };
}
