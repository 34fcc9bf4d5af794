// One live desktop, large. A person may take over: mouse and keyboard become actions, the agent waits.
"use strict";
import { ApiError, get, getFramed, hasControl, post, showBlob } from "./api.js";
import { factList, make, repaint } from "./dom.js";
import { personInput } from "./person_input.js";

const WATCH_MS = 500;
const HOLD_MS = 150;
const RETRY_MS = 250;
const RETRIES = 240;
const KEYS = "deskhand-takeovers"; // keys of this tab's takeovers, so that a reload does not lose them

function keptKeys() {
  try {
    return JSON.parse(sessionStorage.getItem(KEYS)) || {};
  } catch {
    return {};
  }
}

function keepKey(id, key) {
  sessionStorage.setItem(KEYS, JSON.stringify({ ...keptKeys(), [id]: key }));
}

export async function desktopPage(at, { href, hasTakeover }) {
  const path = `/runs/${at.run}/live/${encodeURIComponent(at.id)}`;
  const image = make("img", { alt: "Screen of the desktop", draggable: "false" });
  const screen = make("div", { class: "screen", tabindex: 0, role: "application", "aria-label": "Desktop" }, image);
  const facts = make("div", { class: "card detail" });
  const controls = make("div", { class: "row" });
  const note = make("p", { class: "note", role: "status" });
  const line = make("p", { class: "action" });
  const mayTakeOver = hasTakeover && hasControl();
  let key = keptKeys()[at.id] || null;
  let last = "";
  let timer = null;
  let left = false;
  let shown = "";
  let taking = false;
  let live = { size: [1, 1] };

  function say(text) {
    note.textContent = text;
  }

  // Sends events one after the other; while the agent performs the last one, the next waits.
  let queue = Promise.resolve();
  function act(event) {
    queue = queue.then(async () => {
      for (let attempt = 0; attempt < RETRIES && key && !left; attempt += 1) {
        try {
          await post(`${path}/act`, event, key);
          return say("");
        } catch (error) {
          if (!(error instanceof ApiError) || error.status !== 409) return say(error.message);
          await new Promise((done) => setTimeout(done, RETRY_MS));
        }
      }
      return null;
    });
    return queue;
  }

  async function takeOver() {
    try {
      ({ key } = await post(`${path}/takeover`));
      keepKey(at.id, key);
      say("");
      screen.focus();
    } catch (error) {
      say(error.message);
    }
    await refresh();
  }

  async function release() {
    const mine = key;
    key = null;
    try {
      await post(`${path}/release`, null, mine);
      say("");
    } catch (error) {
      say(error.message);
    }
    await refresh();
  }

  const button = (text, onclick, title = "") => make("button", { type: "button", onclick, title }, text);

  function showControls() {
    const holds = live.holds;
    if (!mayTakeOver) {
      return controls.replaceChildren(
        make("span", { class: "note" }, "This page only shows. To take over, start deskhand view with --takeover."),
      );
    }
    if (!holds) {
      const why = live.held ? "another page has taken over" : live.refusal;
      return controls.replaceChildren(
        make("button", { type: "button", onclick: takeOver, disabled: Boolean(why) }, "Take over"),
        make("span", { class: "note" }, why || "The agent waits while you use the desktop."),
      );
    }
    const answer = make("input", { type: "text", "aria-label": "Answer", placeholder: "answer of the task" });
    const task = live.max_steps
      ? [
          button("New screenshot", () => act({ kind: "wait", seconds: 1 }), "wait a second; takes one step"),
          button("Done", () => act({ kind: "done" }), "the task is finished"),
          button("Cannot be done", () => act({ kind: "fail" }), "the task is infeasible"),
          answer,
          button("Answer", () => act({ kind: "answer", text: answer.value })),
        ]
      : [];
    return controls.replaceChildren(
      ...task,
      ...(live.human_only || live.state === "open" ? [] : [button("Return to the agent", release)]),
      make("span", { class: "note" }, "Click the screen, then type. Shift+Escape leaves it."),
    );
  }

  function showFacts() {
    const state = live.waits_for_action && live.holds ? "waiting for your action" : live.state;
    line.textContent = live.max_steps ? `${state}, step ${live.step} of ${live.max_steps}` : state;
    const lines = live.max_steps
      ? {
          task: live.task,
          "last reply": live.reply || "none",
          ...(live.error ? { error: live.error } : {}),
        }
      : { "screen size": live.size.join("x") };
    facts.replaceChildren(factList(lines));
  }

  async function ended() {
    left = true;
    const base = `/runs/${at.run}/episodes/`;
    for (const id of [`${at.id}-demonstration`, at.id]) {
      const found = await get(base + encodeURIComponent(id)).catch(() => null);
      if (found?.has_record) {
        location.hash = href(`/run/${at.run}/episode/${encodeURIComponent(id)}`).slice(1);
        return;
      }
    }
    key = null;
    live = { ...live, holds: false, refusal: "the episode has ended" };
    repaint(controls, showControls);
    say("The episode is no longer on a desktop.");
  }

  async function refresh() {
    const found = await getFramed(path, { after: last }, key);
    live = found;
    last = found.screen;
    if (found.image !== null) showBlob(image, found.blobs[found.image]);
    if (key && !found.holds) {
      key = null;
      say("The takeover has ended.");
    }
    screen.classList.toggle("held", found.holds);
    screen.classList.toggle("busy", found.holds && Boolean(found.max_steps) && !found.waits_for_action);
    const now = JSON.stringify([found.holds, found.held, found.refusal, found.state === "open", found.max_steps]);
    if (now !== shown) repaint(controls, showControls);
    shown = now;
    repaint(facts, showFacts);
    document.getElementById("title").textContent = found.instruction || "Desktop";
    const alone = found.human_only || found.state === "open"; // no agent waits to continue
    if (mayTakeOver && alone && !found.held && !found.refusal && !taking && !document.hidden) {
      taking = true;
      await takeOver();
      taking = false;
    }
  }

  async function poll() {
    try {
      if (!document.hidden || key) await refresh();
    } catch (error) {
      if (error.status === 404 && last) return ended();
      say(error.message);
    }
    if (!left) timer = setTimeout(poll, live.holds ? HOLD_MS : WATCH_MS);
    return null;
  }

  personInput(screen, image, () => live, act);
  await poll();
  return {
    title: live.instruction || "Desktop",
    nodes: [
      make("p", { class: "note" }, make("a", { href: href(`/run/${at.run}/live`) }, "all desktops")),
      make("div", { class: "live-desktop" }, make("div", { class: "stage card" }, line, controls, screen, note), facts),
    ],
    leave: () => {
      left = true;
      clearTimeout(timer);
    },
  };
}
