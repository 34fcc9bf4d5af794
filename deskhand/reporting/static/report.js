"use strict";
// Episode replay. Invariant: text from the data reaches the page only as text nodes and numeric SVG attributes, never as markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.getElementById("replay");
  const SVG = "http://www.w3.org/2000/svg";
  const LOWEST = -4; // log-probability with the full color

  function make(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value !== null && value !== false) node.setAttribute(name, value);
    }
    node.append(...children.filter((child) => child !== null));
    return node;
  }

  function draw(tag, attributes, title) {
    const node = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (title) {
      const text = document.createElementNS(SVG, "title");
      text.textContent = title;
      node.append(text);
    }
    return node;
  }

  const theme = document.getElementById("theme");
  theme.addEventListener("click", () => {
    const html = document.documentElement;
    const dark = html.dataset.theme ? html.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    html.dataset.theme = dark ? "light" : "dark";
  });

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
      for (const value of ["all", ...values]) {
        const set = () => { state[key] = value; refilter(); };
        filters.append(make("button", { type: "button", "aria-pressed": String(state[key] === value), onclick: set }, value));
      }
      filters.append(make("span", { style: "flex-basis:100%" }));
    };
    choose("phase", unique(data.episodes.map((episode) => episode.phase)));
    choose("outcome", unique(data.episodes.map((episode) => episode.outcome)));
    const families = unique(data.episodes.map((episode) => episode.family)).sort();
    if (families.length > 1) {
      const select = make("select", { "aria-label": "Family", onchange: () => { state.family = select.value; refilter(); } });
      for (const family of ["all", ...families]) {
        select.append(make("option", { value: family, selected: family === state.family ? "" : null }, family === "all" ? "all families" : family));
      }
      filters.append(select);
    }
  }

  function refilter(keep) {
    const before = keep || chosen();
    const fits = (key, episode) => state[key] === "all" || episode[key] === state[key];
    state.shown = data.episodes.filter((episode) => ["phase", "outcome", "family"].every((key) => fits(key, episode)));
    state.at = Math.max(0, state.shown.indexOf(before));
    if (chosen() !== before) state.step = 0;
    fillFilters();
    list.replaceChildren(...state.shown.map((episode, index) => make(
      "li", { class: episode.outcome, role: "option", onclick: () => open(index, 0) },
      make("i", { class: "sign", title: episode.outcome }), make("b", {}, episode.instruction), make("small", {}, episode.phase),
      make("small", { class: "task" }, `${episode.family} ${episode.seed}`),
    )));
    if (!state.shown.length) list.append(make("p", { class: "note" }, "No matching episodes."));
    show();
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
    if (state.timer) { stop(); show(); return; }
    if (state.step >= frames(chosen()).length - 1) state.step = 0;
    state.timer = setInterval(() => {
      go(1);
      if (state.step >= frames(chosen()).length - 1) { stop(); show(); }
    }, 900);
    show();
  }

  function show() {
    [...list.children].forEach((item, index) => item.setAttribute("aria-selected", String(index === state.at)));
    const item = list.children[state.at];
    if (item && item.offsetTop !== undefined) {
      const top = item.offsetTop - list.offsetTop;
      if (top < list.scrollTop || top + item.offsetHeight > list.scrollTop + list.clientHeight) list.scrollTop = top - list.clientHeight / 3;
    }
    const episode = chosen();
    if (!episode) { stage.replaceChildren(); detail.replaceChildren(); return; }
    const all = frames(episode);
    state.step = Math.min(state.step, all.length - 1);
    const { frame, step } = all[state.step];
    stage.replaceChildren(
      make("p", { class: "instruction" }, episode.instruction),
      screen(episode, frame, step),
      controls(all.length),
      film(all),
      make("p", { class: "keys" }, make("kbd", {}, "←"), " ", make("kbd", {}, "→"), " step   ", make("kbd", {}, "↑"), " ",
        make("kbd", {}, "↓"), " episode   ", make("kbd", {}, "space"), " play"),
    );
    detail.replaceChildren(reply(step), verdict(episode), ...numbers("Reward", episode.terms), facts(episode));
    try {
      history.replaceState(null, "", `#episode=${encodeURIComponent(episode.id)}&step=${state.step}`);
    } catch { /* a sandboxed frame has no history; the report works without */ }
  }

  function screen(episode, frame, step) {
    const box = make("div", { class: "screen" });
    const source = data.frames[frame];
    if (!source) {
      box.append(make("p", {}, frame ? "This screenshot is not in the report." : "No screenshot."));
      return box;
    }
    const image = make("img", { src: source, alt: "Screenshot shown to the model", draggable: "false" });
    const overlay = draw("svg", { preserveAspectRatio: "none" });
    const paint = () => {
      const width = image.naturalWidth, height = image.naturalHeight;
      overlay.setAttribute("viewBox", `0 0 ${width} ${height}`);
      box.style.maxWidth = `${Math.min(2.6 * width, 760 * width / height)}px`;
      overlay.replaceChildren();
      const unit = width / 256;
      if (episode.target && state.step === 0) {
        const [left, top, right, bottom] = episode.target;
        overlay.append(draw("rect", { class: "target", x: left, y: top, width: right - left, height: bottom - top, rx: 1.5 * unit,
          "stroke-width": unit }, "first-click target"));
      }
      for (const mark of step ? step.marks : []) overlay.append(...markShapes(mark, unit));
    };
    image.addEventListener("load", paint);
    if (image.complete && image.naturalWidth) paint();
    box.append(image, overlay);
    return box;
  }

  function film(all) {
    const strip = make("div", { class: "film" });
    all.forEach(({ frame, step }, index) => {
      const source = data.frames[frame];
      const name = step ? `${index + 1}` : "end";
      const select = () => { stop(); state.step = index; show(); };
      const thumb = make("button", { type: "button", "aria-current": String(index === state.step), title: step ? step.text : "at the end", onclick: select },
        source ? make("img", { src: source, alt: "", draggable: "false" }) : null, make("small", {}, name));
      strip.append(thumb);
    });
    return strip;
  }

  function markShapes(mark, unit) {
    const points = mark.points.map(([x, y]) => [x + 0.5, y + 0.5]);
    const [x, y] = points[points.length - 1];
    const shapes = [];
    if (points.length > 1) {
      const path = points.map((point) => point.join(",")).join(" ");
      shapes.push(draw("polyline", { class: "halo", points: path, "stroke-width": 3.4 * unit }));
      shapes.push(draw("polyline", { class: "mark", points: path, "stroke-width": 1.6 * unit }, mark.kind));
    }
    shapes.push(draw("circle", { class: "halo", cx: x, cy: y, r: 7 * unit, "stroke-width": 3.2 * unit }));
    shapes.push(draw("circle", { class: "mark", cx: x, cy: y, r: 7 * unit, "stroke-width": 1.7 * unit }, `${mark.kind} at ${x - 0.5}, ${y - 0.5}`));
    shapes.push(draw("circle", { class: "point", cx: x, cy: y, r: 1.7 * unit, "stroke-width": 0.6 * unit }));
    return shapes;
  }

  function controls(count) {
    const slider = make("input", { type: "range", min: 0, max: count - 1, value: state.step, "aria-label": "Step",
      oninput: () => { stop(); state.step = Number(slider.value); show(); } });
    const last = state.step === count - 1;
    const name = state.step >= chosen().steps.length ? "end" : `step ${state.step + 1}`;
    return make("div", { class: "controls" },
      make("button", { type: "button", title: "Step back", disabled: state.step === 0 ? "" : null, onclick: () => { stop(); go(-1); } }, "‹"),
      make("button", { type: "button", title: "Play", onclick: play }, state.timer ? "❚❚" : "▶"),
      make("button", { type: "button", title: "Step forward", disabled: last ? "" : null, onclick: () => { stop(); go(1); } }, "›"),
      slider, make("span", {}, `${name} of ${chosen().steps.length}`));
  }

  function reply(step) {
    const box = make("section", {}, make("h3", {}, "Reply"));
    if (!step) {
      box.append(make("p", { class: "note" }, "End of the episode."));
      return box;
    }
    const text = make("p", { class: "reply" });
    if (step.tokens.length) {
      for (const token of step.tokens) {
        const logprob = token.logprob === null ? -Infinity : token.logprob;
        const share = Math.round(62 * Math.min(1, logprob / LOWEST));
        const title = `probability ${(100 * Math.exp(logprob)).toPrecision(3)} %, log-prob ${logprob.toFixed(3)}, version ${token.version}`;
        const span = make("span", { title }, token.text);
        span.style.background = `color-mix(in srgb, var(--bad) ${Math.max(share, 0)}%, transparent)`;
        text.append(span);
      }
    } else text.append(step.text);
    box.append(text);
    if (step.tokens.length) {
      box.append(make("div", { class: "scale" }), make("div", { class: "ends" }, make("span", {}, "certain"), make("span", {}, "log-prob ≤ −4")));
    }
    if (step.error) box.append(make("p", { class: "error" }, step.error));
    return box;
  }

  function verdict(episode) {
    const value = episode.value === null ? "" : ` · value ${episode.value.toFixed(2)}`;
    const reward = episode.reward === null ? "" : ` · reward ${episode.reward.toFixed(2)}`;
    return make("section", {}, make("h3", {}, "Outcome"),
      make("div", { class: "badge" }, make("i", { class: `sign ${episode.outcome}` }), episode.outcome + value + reward),
      episode.cause ? make("p", { class: "note" }, episode.cause) : null);
  }

  function numbers(title, values) {
    const entries = Object.entries(values);
    if (!entries.length) return [];
    const rows = entries.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value === null ? "none" : Number(value).toFixed(3))]);
    return [make("section", {}, make("h3", {}, title), make("dl", { class: "facts" }, ...rows))];
  }

  function facts(episode) {
    const version = episode.version_min === episode.version_max ? `${episode.version_max}` : `${episode.version_min} to ${episode.version_max}`;
    const lines = { phase: episode.phase, family: episode.family, seed: episode.seed, "policy version": version };
    if (episode.first_click_on_target !== null) lines["first click"] = episode.first_click_on_target ? "on target" : "off target";
    if (episode.group) lines.group = episode.group;
    for (const [name, seconds] of Object.entries(episode.seconds)) if (seconds !== null) lines[name.replaceAll("_", " ")] = `${seconds.toFixed(2)} s`;
    lines.episode = episode.id;
    const rows = Object.entries(lines).flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, String(value))]);
    return make("section", {}, make("h3", {}, "Episode"), make("dl", { class: "facts" }, ...rows));
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || ["SELECT", "INPUT"].includes(event.target.tagName)) return;
    const moves = {
      ArrowRight: () => { stop(); go(1); }, ArrowLeft: () => { stop(); go(-1); },
      ArrowDown: () => open(state.at + 1, 0), ArrowUp: () => open(state.at - 1, 0), " ": play,
    };
    const inView = root.getBoundingClientRect().top < innerHeight * 0.6 && root.getBoundingClientRect().bottom > innerHeight * 0.25;
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
  refilter(wanted || data.episodes.find((episode) => episode.phase === "after" && episode.outcome === "success") || data.episodes[0]);
  if (wanted) root.scrollIntoView();
})();
