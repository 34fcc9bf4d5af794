// An episode: what was wrong first, then every screen with its action, messages, tokens, milestones, faults, waits.
"use strict";
import { frameImage, get } from "./api.js";
import { make, repaint, section } from "./dom.js";
import { factsTab, markers, outcomeTab, shownOn, timeline, verdict } from "./episode_parts.js";
import { listedEpisodes } from "./episodes_page.js";
import { loadCall, messagesNode, replyNode } from "./messages.js";
import { screenOf } from "./screen.js";

const STEP_MS = 900;
const TABS = { reply: "Reply", messages: "Messages", outcome: "Outcome", facts: "Facts" };

export async function episodePage(at, { href }) {
  const episode = await get(`/runs/${at.run}/episodes/${encodeURIComponent(at.id)}`);
  if (!episode.has_record) {
    return {
      title: "Episode",
      nodes: [
        make(
          "p",
          { class: "card" },
          episode.state === "in_flight"
            ? "The episode is in flight; it appears here when it ends."
            : "The episode was interrupted and has no record.",
        ),
      ],
      refresh: async () => {
        if ((await get(`/runs/${at.run}/episodes/${encodeURIComponent(at.id)}`)).has_record)
          dispatchEvent(new HashChangeEvent("hashchange"));
      },
    };
  }
  const num = episode.steps.length + (episode.last_frame ? 1 : 0);
  const state = {
    step: Math.min(Math.max(0, Number(at.parameters.step) || 0), Math.max(0, num - 1)),
    tab: TABS[at.parameters.tab] ? at.parameters.tab : "reply",
    speed: 1,
    timer: null,
    color: "logprob",
  };
  const [stage, detail] = [
    make("div", { class: "stage card" }),
    make("div", { class: "detail card", role: "tabpanel", id: "detail" }),
  ];
  const tabs = make("div", { class: "tabs", role: "tablist", "aria-label": "Details" });
  const calls = new Map();
  let turn = 0;

  function select(step) {
    stop();
    go(step);
  }
  function go(step) {
    state.step = Math.min(Math.max(step, 0), Math.max(0, num - 1));
    show();
  }
  function stop() {
    clearInterval(state.timer);
    state.timer = null;
  }
  function play() {
    if (state.timer) {
      stop();
      return show();
    }
    if (state.step >= num - 1) state.step = 0;
    state.timer = setInterval(() => {
      if (state.step >= num - 1) {
        stop();
        show();
      } else go(state.step + 1);
    }, STEP_MS / state.speed);
    show();
  }
  function other(by) {
    const ids = listedEpisodes(at.run);
    const next = ids[ids.indexOf(episode.id) + by];
    if (next && ids.includes(episode.id))
      location.hash = href(`/run/${at.run}/episode/${encodeURIComponent(next)}`, {
        tab: state.tab === "reply" ? "" : state.tab,
      }).slice(1);
  }

  function controls() {
    const slider = make("input", {
      type: "range",
      min: 0,
      max: Math.max(0, num - 1),
      value: state.step,
      "aria-label": "Step",
      oninput: () => select(Number(slider.value)),
    });
    const speed = make(
      "select",
      {
        "aria-label": "Speed",
        onchange: () => {
          state.speed = Number(speed.value);
          if (state.timer) {
            stop();
            play();
          }
        },
      },
      ...[0.5, 1, 2, 4].map((value) => make("option", { value, selected: value === state.speed }, `${value}×`)),
    );
    return make(
      "div",
      { class: "controls" },
      make(
        "button",
        {
          type: "button",
          "aria-label": "Step back",
          disabled: state.step === 0,
          onclick: () => select(state.step - 1),
        },
        "‹",
      ),
      make(
        "button",
        { type: "button", "aria-label": state.timer ? "Pause" : "Play", onclick: play },
        state.timer ? "❚❚" : "▶",
      ),
      make(
        "button",
        {
          type: "button",
          "aria-label": "Step forward",
          disabled: state.step >= num - 1,
          onclick: () => select(state.step + 1),
        },
        "›",
      ),
      slider,
      speed,
      make(
        "span",
        {},
        `${state.step < episode.steps.length ? `step ${state.step + 1}` : "end"} of ${episode.steps.length}`,
      ),
    );
  }

  function showStage() {
    const step = episode.steps[state.step];
    const name = step ? step.frame : episode.last_frame;
    const said = step
      ? step.error || step.actions.join("; ") || "no action"
      : `end: ${episode.stop_reason.replaceAll("_", " ")}`;
    document.getElementById("status").textContent = `step ${state.step + 1}: ${said}`;
    const image = name ? frameImage(at.run, name, { alt: `Screenshot ${state.step + 1}` }) : null;
    stage.replaceChildren(
      screenOf(image, shownOn(episode, state.step), "No screenshot.", said),
      make("p", { class: `action ${step?.error ? "error" : ""}` }, said),
      ...(step
        ? markers(episode, state.step)
            .filter(([kind]) => kind !== "fault")
            .map(([kind, text]) => make("p", { class: `note marker ${kind}` }, text))
        : []),
      controls(),
      timeline(episode, state, select),
      make(
        "p",
        { class: "keys" },
        make("kbd", {}, "←"),
        " ",
        make("kbd", {}, "→"),
        " step   ",
        make("kbd", {}, "space"),
        " play   ",
        make("kbd", {}, "↑"),
        " ",
        make("kbd", {}, "↓"),
        " episode of the list   ",
        make("kbd", {}, "1"),
        "–",
        make("kbd", {}, "4"),
        " tabs",
      ),
    );
    if (num > state.step + 1) {
      // the next screenshot is loaded ahead
      const next = episode.steps[state.step + 1];
      frameImage(at.run, next ? next.frame : episode.last_frame);
    }
  }

  function showTabs() {
    tabs.replaceChildren(
      ...Object.entries(TABS).map(([name, text]) =>
        make(
          "button",
          {
            type: "button",
            role: "tab",
            "aria-selected": String(name === state.tab),
            "aria-controls": "detail",
            onclick: () => {
              state.tab = name;
              show();
            },
          },
          text,
        ),
      ),
    );
  }

  async function showDetail() {
    const mine = ++turn;
    if (state.tab === "outcome") return detail.replaceChildren(...outcomeTab(episode).filter((node) => node));
    if (state.tab === "facts") return detail.replaceChildren(...factsTab(episode).filter((node) => node));
    const step = episode.steps[state.step];
    if (!step) return detail.replaceChildren(make("p", { class: "note" }, "End of the episode."));
    const index = episode.calls.findIndex((one) => one.id === step.call);
    if (index < 0)
      return detail.replaceChildren(
        section("Reply", make("p", { class: "reply" }, step.text)),
        make(
          "p",
          { class: "note" },
          "The messages and tokens of this call were not recorded, as with endpoints that return no token ids.",
        ),
      );
    if (!calls.has(index)) calls.set(index, loadCall(at.run, episode.id, index));
    let call;
    try {
      call = await calls.get(index);
    } catch (error) {
      calls.delete(index);
      return mine === turn && detail.replaceChildren(make("p", { class: "error", role: "alert" }, error.message));
    }
    if (mine !== turn) return null;
    const error = step.error ? make("p", { class: "error" }, step.error) : null;
    const parts =
      state.tab === "messages"
        ? [messagesNode(at.run, call)]
        : [replyNode(call, episode.calls[index], episode, state, showDetail), error];
    return detail.replaceChildren(...parts.filter((node) => node));
  }

  function show() {
    repaint(stage, showStage);
    repaint(tabs, showTabs);
    showDetail();
    history.replaceState(
      null,
      "",
      href(`/run/${at.run}/episode/${encodeURIComponent(episode.id)}`, {
        step: state.step || "",
        tab: state.tab === "reply" ? "" : state.tab,
      }),
    );
  }

  show();
  const keys = {
    ArrowRight: () => select(state.step + 1),
    ArrowLeft: () => select(state.step - 1),
    Home: () => select(0),
    End: () => select(num - 1),
    " ": play,
    ArrowDown: () => other(1),
    ArrowUp: () => other(-1),
  };
  Object.keys(TABS).forEach((name, index) => {
    keys[String(index + 1)] = () => {
      state.tab = name;
      show();
    };
  });
  const links = make(
    "p",
    { class: "note" },
    `${episode.task_id} · `,
    make("a", { href: href(`/run/${at.run}/episodes`, { task: episode.task_id }) }, "episodes of the task"),
    ...(episode.group_id
      ? [
          " · ",
          make(
            "a",
            { href: href(`/run/${at.run}/group/${encodeURIComponent(episode.group_id)}`) },
            `group ${episode.group}, member ${episode.member}`,
          ),
        ]
      : []),
    ` · ${episode.phase}, ${episode.state.replaceAll("_", " ")}`,
  );
  return {
    title: episode.instruction || episode.task_id,
    keys,
    leave: stop,
    nodes: [
      links,
      verdict(episode),
      make("div", { class: "watch" }, stage, make("div", { class: "side" }, tabs, detail)),
    ],
  };
}
