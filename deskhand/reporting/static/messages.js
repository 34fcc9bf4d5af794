// One model call: the messages exactly as the model read them, and the tokens of its reply.
"use strict";
import { frameImage, get } from "./api.js";
import { make, section } from "./dom.js";
import { number, tokenScale, tokenText } from "./outcome.js";
import { plainTable } from "./table.js";

function part(run, one) {
  if (one.image) {
    return make(
      "span",
      { class: "message-image" },
      frameImage(run, one.image, { width: 320, alt: "image in the prompt" }),
      make("small", {}, `${one.tokens} image tokens`),
    );
  }
  return make("pre", {}, one.text);
}

function turnNode(run, turn) {
  return make(
    "div",
    { class: "turn" },
    make("b", {}, turn.role || "after the earlier reply"),
    ...turn.parts.map((one) => part(run, one)),
  );
}

export function messagesNode(run, call) {
  if (!call.has_tokenizer)
    return make(
      "p",
      { class: "note" },
      "Token ids cannot be shown as text: the run has no readable tokenizer.json, or tokenizers is not installed.",
    );
  const known = call.turns.filter((turn) => turn.is_known);
  const fresh = call.turns.filter((turn) => !turn.is_known);
  return section(
    "Messages as the model read them",
    known.length
      ? make(
          "details",
          {},
          make("summary", {}, `${known.length} turns that the call which it extends had, too`),
          ...known.map((turn) => turnNode(run, turn)),
        )
      : null,
    ...fresh.map((turn) => turnNode(run, turn)),
    make(
      "p",
      { class: "note" },
      `Decoded from the recorded token ids, special tokens included. Ids that the engine served: ${call.served}.`,
    ),
  );
}

export function replyNode(call, meta, episode, state, repaint) {
  if (!call.tokens.length) return section("Reply", make("p", { class: "reply" }, call.text || "No reply."));
  const hasEntropy = call.tokens.some((token) => token.entropy !== undefined);
  const by = make(
    "select",
    {
      "aria-label": "Color tokens by",
      onchange: () => {
        state.color = by.value;
        repaint();
      },
    },
    ...[["logprob", "log-prob"], ...(hasEntropy ? [["entropy", "entropy"]] : []), ["version", "weights version"]].map(
      ([value, text]) => make("option", { value, selected: state.color === value }, `color: ${text}`),
    ),
  );
  return section(
    "Reply",
    make("div", { class: "row" }, by),
    tokenText(call.tokens, state.color),
    ...(state.color === "logprob" ? tokenScale() : []),
    training(meta, episode),
    tokenTable(call, meta, episode, hasEntropy),
  );
}

function training(meta, episode) {
  const trained = meta.untrained ? `masked: not trained (${meta.untrained})` : "in the loss mask";
  const advantage =
    episode.advantage === null || episode.advantage === undefined
      ? ""
      : `, advantage ${number(episode.advantage, 3)} for each token`;
  const fork =
    meta.parent === null ? (meta.sequence > 1 ? "fork: begins" : "begins") : `extends call ${meta.parent + 1} in`;
  const size = `${meta.reply_tokens} tokens after ${meta.prompt_tokens} of the prompt`;
  const sampled = `log-prob ${number(meta.logprob)}, temperature ${meta.temperature}, ended by ${meta.finish_reason}`;
  const text = `${size}, ${sampled}; ${trained}${advantage}; ${fork} sequence ${meta.sequence}.`;
  return make("p", { class: "note" }, text);
}

function tokenTable(call, meta, episode, hasEntropy) {
  const details = make("details", {}, make("summary", {}, `Table of ${call.tokens.length} tokens`));
  details.addEventListener("toggle", () => {
    if (!details.open || details.childElementCount > 1) return;
    const heads = [
      "token",
      "#log-prob",
      "#probability",
      ...(hasEntropy ? ["#entropy ≥"] : []),
      "#version",
      "#mask",
      "#advantage",
      ...(hasEntropy ? ["alternatives"] : []),
    ];
    const rows = call.tokens.map((token) => [
      make("td", {}, make("code", {}, JSON.stringify(token.text).slice(1, -1))),
      number(token.logprob, 4),
      token.logprob === null ? "–" : `${(100 * Math.exp(token.logprob)).toPrecision(3)} %`,
      ...(hasEntropy ? [number(token.entropy, 3)] : []),
      String(token.version),
      meta.untrained ? "0" : "1",
      number(episode.advantage, 3),
      ...(hasEntropy
        ? [
            (token.alternatives || [])
              .map(([text, logprob]) => `${JSON.stringify(text)} ${number(logprob, 2)}`)
              .join("  "),
          ]
        : []),
    ]);
    details.append(
      plainTable("Tokens", heads, rows),
      make(
        "p",
        { class: "note" },
        "Ratios of new to old probability are not stored by token; see the metrics train/ratio_mean and train/ratio_max.",
      ),
    );
  });
  return details;
}

export function loadCall(run, episode, index) {
  return get(`/runs/${run}/episodes/${encodeURIComponent(episode)}/calls/${index}`);
}
