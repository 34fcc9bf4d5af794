// The viewer: pages by the URL's fragment (`#/run/0/...`), the token, updates of runs that are being written.
"use strict";
import { ApiError, get, keepControl, keepToken } from "./api.js";
import { comparePage } from "./compare_page.js";
import { desktopPage } from "./desktop_page.js";
import { make, switchTheme } from "./dom.js";
import { episodePage } from "./episode_page.js";
import { episodesPage } from "./episodes_page.js";
import { groupPage } from "./group_page.js";
import { sessionPage, sessionsPage } from "./recording_page.js";
import { runPage } from "./run_page.js";
import { wallPage } from "./wall_page.js";

const REFRESH_MS = 2000;
const SHARE = 15; // a refresh waits this many times as long as the last one took, so that it never slows training down
const main = document.getElementById("main");
const nav = document.getElementById("nav");
const status = document.getElementById("status");
let runs = [];
let hasTakeover = false; // whether the server was started so that its page may take over
let page = null; // what the current page returned: { title, refresh, keys, run, leave }
let revision = null;
let turn = 0;
let restUntil = 0;

export function href(path, parameters = {}) {
  const kept = Object.entries(parameters).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return `#${path}${kept.length ? `?${new URLSearchParams(kept)}` : ""}`;
}

function route() {
  const [path, query = ""] = location.hash.slice(1).split("?", 2);
  const parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  const parameters = Object.fromEntries(new URLSearchParams(query));
  if (parts[0] === "compare") return { make: comparePage, parameters, run: null, name: "compare" };
  const run = parts[0] === "run" ? Number(parts[1]) : 0;
  const found = { episodes: episodesPage, episode: episodePage, group: groupPage, session: sessionPage }[parts[2]];
  const live = parts[2] === "live" ? (parts[3] ? desktopPage : wallPage) : null;
  const first = { recording: sessionsPage, desktop: wallPage }[runs[run]?.kind] || runPage;
  return { make: live || found || first, parameters, run, id: parts[3], name: parts[2] || "run" };
}

function showNav(at) {
  const link = (path, text, current) => make("a", { href: href(path), "aria-current": current ? "page" : null }, text);
  const run = at.run ?? 0;
  nav.replaceChildren(
    ...(runs.length > 1
      ? [
          make(
            "select",
            {
              "aria-label": "Run",
              onchange: (event) => {
                location.hash = href(`/run/${event.target.value}`).slice(1);
              },
            },
            ...runs.map((one) =>
              make("option", { value: one.index, selected: one.index === run }, `${one.index + 1}. ${one.title}`),
            ),
          ),
        ]
      : []),
    ...links(run, at.name).map(([path, text, current]) => link(`/run/${run}${path}`, text, current)),
    ...(comparable().length > 1 ? [link("/compare", "Compare", at.name === "compare")] : []),
    make("span", { class: "live", id: "live" }),
  );
}

function comparable() {
  return runs.filter((one) => one.kind === "run");
}

function links(run, name) {
  const kind = runs[run]?.kind;
  if (kind === "recording") return [["", "Sessions", true]];
  if (kind === "desktop") return [["", "Desktop", true]];
  return [
    ["", "Run", name === "run"],
    ["/live", "Live", name === "live"],
    ["/episodes", "Episodes", ["episodes", "episode", "group"].includes(name)],
  ];
}

function showError(error) {
  if (!(error instanceof ApiError)) console.error(error);
  main.replaceChildren(
    make(
      "div",
      { class: "card problem", role: "alert" },
      make("b", {}, "Cannot show this"),
      make("p", {}, error.message),
      error.status === 401 ? tokenField() : null,
    ),
  );
}

function tokenField() {
  const field = make("input", {
    type: "password",
    "aria-label": "Token of the printed URL",
    autocomplete: "off",
    placeholder: "token",
  });
  const use = () => {
    keepToken(field.value.trim());
    start();
  };
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") use();
  });
  return make("p", { class: "row" }, field, make("button", { type: "button", onclick: use }, "Open"));
}

async function show() {
  const mine = ++turn;
  const at = route();
  page?.leave?.();
  page = null;
  showNav(at);
  main.setAttribute("aria-busy", "true");
  try {
    const made = await at.make(at, { runs, href, hasTakeover });
    if (mine !== turn) return made.leave?.();
    page = { ...made, run: at.run };
    main.replaceChildren(...made.nodes);
    document.getElementById("title").textContent = made.title;
    document.title = `${made.title} – Deskhand`;
    status.textContent = made.title;
    if (at.run !== null && runs[at.run]?.kind !== "desktop") await check();
  } catch (error) {
    if (mine === turn) showError(error);
  } finally {
    if (mine === turn) main.removeAttribute("aria-busy");
  }
}

// Asks whether the run was written to since, and refreshes what the page shows.
async function check() {
  if (!page || page.run === null || document.hidden || runs[page.run]?.kind === "desktop") return;
  const mine = turn;
  const live = document.getElementById("live");
  try {
    const now = await get(`/runs/${page.run}/revision`);
    if (mine !== turn) return;
    if (live) live.textContent = now.in_flight ? `${now.in_flight} in flight` : "";
    const key = `${page.run}:${now.revision}:${now.in_flight}`;
    const changed = revision !== null && revision.startsWith(`${page.run}:`) && revision !== key;
    if (changed && performance.now() < restUntil) return;
    revision = key;
    if (!changed) return;
    const began = performance.now();
    await page.refresh?.();
    restUntil = performance.now() + SHARE * (performance.now() - began);
  } catch (error) {
    if (live && mine === turn) live.textContent = error.message;
  }
}

async function poll() {
  await check();
  setTimeout(poll, REFRESH_MS);
}

async function start() {
  const given = new URLSearchParams(location.hash.slice(1));
  if (given.get("token")) {
    keepToken(given.get("token"));
    if (given.get("control")) keepControl(given.get("control"));
    history.replaceState(null, "", `${location.pathname}#${given.get("page") || "/"}`);
  }
  try {
    const found = await get("/runs");
    [runs, hasTakeover] = [found.runs, found.has_takeover];
  } catch (error) {
    return showError(error);
  }
  if (location.hash.length < 3 && comparable().length > 1) history.replaceState(null, "", "#/compare");
  await show();
}

addEventListener("hashchange", () => (new URLSearchParams(location.hash.slice(1)).get("token") ? start() : show()));
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || ["SELECT", "INPUT", "TEXTAREA"].includes(event.target.tagName))
    return;
  const act = page?.keys?.[event.key];
  if (!act || (["BUTTON", "A", "SUMMARY"].includes(event.target.tagName) && [" ", "Enter"].includes(event.key))) return;
  event.preventDefault();
  act();
});
document.getElementById("theme").addEventListener("click", switchTheme);
await start();
poll();
