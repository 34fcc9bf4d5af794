// Episode replay of the one-file report, which inlines this file after the modules that it imports.
"use strict";
import { factList, make, section, switchTheme } from "./dom.js";
import { number, numbers, outcome, tokenScale, tokenText } from "./outcome.js";
import { screenOf } from "./screen.js";

(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.getElementById("replay");

  document.getElementById("theme").addEventListener("click", switchTheme);

  if (!data.episodes.length) {
    root.append(make("p", { class: "note" }, "This report has no episodes."));
    return;
  }

  const state = { phase: "all", outcome: "all", family: "all", shown: [], at: 0, step: 0, timer: null };
  const filters = make("div", { class: "filters" });
  const list = make("ul", { class: "list", role: "listbox", "aria-label": "Episodes" });
  const stage = make("div", { class: "stage card" });
  const detail = make("div", { class: "detail card" });
  root.append(make("div", { class: "player" }, make("div", { class: "card" }, filters, list), stage, detail));

  const frames = (episode) => {
    const all = episode.steps.map((step) => ({ frame: step.frame, step }));
    if (episode.last_frame) all.push({ frame: episode.last_frame, step: null });
    return all.length ? all : [{ frame: "", step: null }];
  };
  const chosen = () => state.shown[state.at];
  const unique = (values) => [...new Set(values)];

  function fillFilters() {
    filters.replaceChildren();
    const choose = (key, values) => {
      if (values.length < 2) return;
      const set = (value) => {
        state[key] = value;
        refilter();
      };
      if (values.length > 4) {
        const select = make("select", { "aria-label": key, onchange: () => set(select.value) });
        for (const value of ["all", ...values]) {
          const selected = value === state[key] ? "" : null;
          select.append(make("option", { value, selected }, value === "all" ? `${key}: all` : value));
        }
        filters.append(select);
        return;
      }
      for (const value of ["all", ...values]) {
        const pressed = String(state[key] === value);
        filters.append(make("button", { type: "button", "aria-pressed": pressed, onclick: () => set(value) }, value));
      }
      filters.append(make("span", { class: "line-end" }));
    };
    for (const key of ["phase", "outcome"]) choose(key, unique(data.episodes.map((episode) => episode[key])));
    choose("family", unique(data.episodes.map((episode) => episode.family)).sort());
  }

  function refilter(keep) {
    const before = keep || chosen();
    const fits = (key, episode) => state[key] === "all" || episode[key] === state[key];
    state.shown = data.episodes.filter((episode) => ["phase", "outcome", "family"].every((key) => fits(key, episode)));
    state.at = Math.max(0, state.shown.indexOf(before));
    if (chosen() !== before) state.step = 0;
    fillFilters();
    list.replaceChildren(
      ...state.shown.map((episode, index) =>
        make(
          "li",
          { class: episode.outcome, role: "option", onclick: () => open(index, 0) },
          make("i", { class: "sign", title: episode.outcome }),
          make("b", {}, episode.instruction),
          make("small", {}, episode.phase),
          make("small", { class: "task" }, taskLine(episode)),
        ),
      ),
    );
    if (!state.shown.length) list.append(make("p", { class: "note" }, "No matching episodes."));
    show();
  }

  function taskLine(episode) {
    const task = `${episode.family} ${episode.seed}`;
    return episode.group ? `${task} · group ${episode.group} #${episode.member}` : task;
  }

  function open(index, step) {
    stop();
    state.at = Math.min(Math.max(index, 0), state.shown.length - 1);
    state.step = step;
    show();
  }

  function go(by) {
    const episode = chosen();
    if (!episode) return;
    state.step = Math.min(Math.max(state.step + by, 0), frames(episode).length - 1);
    show();
  }

  function stop() {
    clearInterval(state.timer);
    state.timer = null;
  }

  function play() {
    if (state.timer) {
      stop();
      show();
      return;
    }
    if (state.step >= frames(chosen()).length - 1) state.step = 0;
    state.timer = setInterval(() => {
      go(1);
      if (state.step >= frames(chosen()).length - 1) {
        stop();
        show();
      }
    }, 900);
    show();
  }

  function show() {
    [...list.children].forEach((item, index) => item.setAttribute("aria-selected", String(index === state.at)));
    const item = list.children[state.at];
    if (item && item.offsetTop !== undefined) {
      const top = item.offsetTop - list.offsetTop;
      if (top < list.scrollTop || top + item.offsetHeight > list.scrollTop + list.clientHeight)
        list.scrollTop = top - list.clientHeight / 3;
    }
    const episode = chosen();
    if (!episode) {
      stage.replaceChildren();
      detail.replaceChildren();
      return;
    }
    const all = frames(episode);
    state.step = Math.min(state.step, all.length - 1);
    const { frame, step } = all[state.step];
    stage.replaceChildren(
      make("p", { class: "instruction" }, episode.instruction),
      screen(episode, frame, step),
      controls(all.length),
      film(all),
      make(
        "p",
        { class: "keys" },
        make("kbd", {}, "←"),
        " ",
        make("kbd", {}, "→"),
        " step   ",
        make("kbd", {}, "↑"),
        " ",
        make("kbd", {}, "↓"),
        " episode   ",
        make("kbd", {}, "space"),
        " play",
      ),
    );
    detail.replaceChildren(
      ...[outcome(episode), reply(step), numbers("Reward", episode.terms), group(episode), facts(episode)].filter(
        (part) => part,
      ),
    );
    try {
      history.replaceState(null, "", `#episode=${encodeURIComponent(episode.id)}&step=${state.step}`);
    } catch {
      /* a sandboxed frame has no history; the report works without */
    }
  }

  function screen(episode, frame, step) {
    const source = data.frames[frame];
    const image = source
      ? make("img", { src: source, alt: "Screenshot shown to the model", draggable: "false" })
      : null;
    const shown = { marks: step ? step.marks : [], target: state.step === 0 ? episode.target : null };
    return screenOf(image, shown, frame ? "This screenshot is not in the report." : "No screenshot.");
  }

  function film(all) {
    const strip = make("div", { class: "film" });
    all.forEach(({ frame, step }, index) => {
      const source = data.frames[frame];
      const name = step ? `${index + 1}` : "end";
      const select = () => {
        stop();
        state.step = index;
        show();
      };
      const thumb = make(
        "button",
        {
          type: "button",
          "aria-current": String(index === state.step),
          title: step ? step.text : "at the end",
          onclick: select,
        },
        source ? make("img", { src: source, alt: "", draggable: "false" }) : null,
        make("small", {}, name),
      );
      strip.append(thumb);
    });
    return strip;
  }

  function controls(count) {
    const slider = make("input", {
      type: "range",
      min: 0,
      max: count - 1,
      value: state.step,
      "aria-label": "Step",
      oninput: () => {
        stop();
        state.step = Number(slider.value);
        show();
      },
    });
    const last = state.step === count - 1;
    const name = state.step >= chosen().steps.length ? "end" : `step ${state.step + 1}`;
    return make(
      "div",
      { class: "controls" },
      make(
        "button",
        {
          type: "button",
          title: "Step back",
          disabled: state.step === 0 ? "" : null,
          onclick: () => {
            stop();
            go(-1);
          },
        },
        "‹",
      ),
      make("button", { type: "button", title: "Play", onclick: play }, state.timer ? "❚❚" : "▶"),
      make(
        "button",
        {
          type: "button",
          title: "Step forward",
          disabled: last ? "" : null,
          onclick: () => {
            stop();
            go(1);
          },
        },
        "›",
      ),
      slider,
      make("span", {}, `${name} of ${chosen().steps.length}`),
    );
  }

  function reply(step) {
    if (!step) return section("Reply", make("p", { class: "note" }, "End of the episode."));
    return section(
      "Reply",
      step.tokens.length ? [tokenText(step.tokens), ...tokenScale()] : make("p", { class: "reply" }, step.text),
      step.error ? make("p", { class: "error" }, step.error) : null,
    );
  }

  // The members of the episode's group: what the algorithm compares.
  function group(episode) {
    const found = data.groups[episode.group_id];
    if (!found) return null;
    const members = found.members.map((member) => {
      const index = state.shown.findIndex((other) => other.id === member.id);
      const won = member.value !== null && member.value >= 1;
      const sign = member.state === "errored" ? "errored" : won ? "success" : "failure";
      const scores = [`reward ${number(member.reward)}`, `advantage ${number(member.advantage)}`];
      const title = member.reason || null;
      return make(
        "li",
        {},
        make("i", { class: `sign ${sign}`, title: sign }),
        make(
          "button",
          {
            type: "button",
            disabled: index < 0 ? "" : null,
            "aria-current": String(member.id === episode.id),
            title,
            onclick: () => open(index, 0),
          },
          `#${member.member}`,
        ),
        make("span", {}, scores.join(" · ")),
      );
    });
    return section("Group", make("p", { class: "note" }, found.explained), make("ul", { class: "members" }, ...members));
  }

  function facts(episode) {
    const version =
      episode.version_min === episode.version_max
        ? `${episode.version_max}`
        : `${episode.version_min} to ${episode.version_max}`;
    const lines = { phase: episode.phase, family: episode.family, seed: episode.seed, "policy version": version };
    if (episode.first_click_on_target !== null)
      lines["first click"] = episode.first_click_on_target ? "on target" : "off target";
    if (episode.group) lines.group = episode.group;
    for (const [name, seconds] of Object.entries(episode.seconds))
      if (seconds !== null) lines[name.replaceAll("_", " ")] = `${seconds.toFixed(2)} s`;
    lines.episode = episode.id;
    return section("Episode", factList(lines));
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || ["SELECT", "INPUT"].includes(event.target.tagName)) return;
    const moves = {
      ArrowRight: () => {
        stop();
        go(1);
      },
      ArrowLeft: () => {
        stop();
        go(-1);
      },
      ArrowDown: () => open(state.at + 1, 0),
      ArrowUp: () => open(state.at - 1, 0),
      " ": play,
    };
    const inView =
      root.getBoundingClientRect().top < innerHeight * 0.6 && root.getBoundingClientRect().bottom > innerHeight * 0.25;
    if (!(event.key in moves) || !chosen() || (event.target.tagName === "BUTTON" && event.key === " ")) return;
    if (!inView && event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    event.preventDefault();
    moves[event.key]();
  });

  const asked = new URLSearchParams(location.hash.slice(1));
  const wanted = data.episodes.find((episode) => episode.id === asked.get("episode"));
  state.shown = data.episodes;
  state.step = wanted ? Number(asked.get("step")) || 0 : 0;
  state.at = wanted ? data.episodes.indexOf(wanted) : 0;
  refilter(
    wanted ||
      data.episodes.find((episode) => episode.phase === "after" && episode.outcome === "success") ||
      data.episodes[0],
  );
  if (wanted) root.scrollIntoView();
})();
