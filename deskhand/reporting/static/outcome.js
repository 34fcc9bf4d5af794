// What the judge found, why, and the reply's tokens. For report and viewer.
"use strict";
import { make, section } from "./dom.js";

const LOWEST = -4; // log-probability with the full color
const HIGHEST_ENTROPY = 2; // nats with the full color

export const number = (value, digits = 2) =>
  value === null || value === undefined ? "–" : Number(value).toFixed(digits);

export function badge(episode) {
  const value = episode.value === null || episode.value === undefined ? "" : ` · value ${number(episode.value)}`;
  const reward = episode.reward === null || episode.reward === undefined ? "" : ` · reward ${number(episode.reward)}`;
  return make(
    "div",
    { class: "badge" },
    make("i", { class: `sign ${episode.outcome}` }),
    episode.outcome + value + reward,
  );
}

function finding(found) {
  const held = found.value >= 1;
  return make(
    "li",
    { class: held ? "held" : "failed" },
    make(
      "div",
      { class: "clause" },
      make("i", { class: `sign ${held ? "success" : "failure"}`, title: held ? "holds" : "does not hold" }),
      make("b", {}, found.clause),
      make("span", { class: "worth" }, `worth ${number(found.value)}`),
    ),
    make(
      "dl",
      {},
      make("dt", {}, "read"),
      make("dd", { class: "read" }, found.read || "nothing"),
      found.expected ? [make("dt", {}, "expected"), make("dd", { class: "expected" }, found.expected)] : null,
    ),
  );
}

// The clauses of the check: those that do not hold open, the others folded.
export function findings(episode) {
  const failed = episode.findings.filter((found) => found.value < 1);
  const held = episode.findings.filter((found) => found.value >= 1);
  return [
    failed.length ? make("ul", { class: "findings" }, ...failed.map(finding)) : null,
    held.length
      ? make(
          "details",
          { open: !failed.length && held.length < 4 },
          make("summary", {}, `${held.length} ${held.length === 1 ? "clause holds" : "clauses hold"}`),
          make("ul", { class: "findings" }, ...held.map(finding)),
        )
      : null,
    episode.untrusted
      ? make("p", { class: "note" }, "The score depends on what a program of the desktop reported (untrusted).")
      : null,
  ].filter((node) => node);
}

export function outcome(episode) {
  return section(
    "Outcome",
    badge(episode),
    episode.cause ? make("p", { class: "note" }, episode.cause) : null,
    ...findings(episode),
  );
}

export function numbers(title, values) {
  const entries = Object.entries(values);
  if (!entries.length) return null;
  const rows = entries.flatMap(([name, value]) => [
    make("dt", {}, name),
    make("dd", {}, value === null ? "none" : number(value, 3)),
  ]);
  return section(title, make("dl", { class: "facts" }, ...rows));
}

// The reply with each token colored by its log-prob, its entropy or its weights version.
export function tokenText(tokens, by = "logprob") {
  const text = make("p", { class: "reply" });
  const first = tokens.length ? tokens[0].version : 0;
  for (const token of tokens) {
    const logprob = token.logprob === null ? -Infinity : token.logprob;
    const parts = [`probability ${(100 * Math.exp(logprob)).toPrecision(3)} %`, `log-prob ${logprob.toFixed(3)}`];
    if (token.entropy !== undefined) parts.push(`entropy at least ${number(token.entropy, 3)}`);
    parts.push(`version ${token.version}`);
    const strength = {
      logprob: logprob / LOWEST,
      entropy: (token.entropy || 0) / HIGHEST_ENTROPY,
      version: token.version === first ? 0 : 1,
    }[by];
    const span = make("span", { title: parts.join(", ") }, token.text);
    const share = Math.round(62 * Math.min(1, Math.max(0, strength)));
    span.style.background = `color-mix(in srgb, var(--bad) ${share}%, transparent)`;
    text.append(span);
  }
  return text;
}

export function tokenScale() {
  return [
    make("div", { class: "scale" }),
    make("div", { class: "ends" }, make("span", {}, "certain"), make("span", {}, "log-prob ≤ −4")),
  ];
}
