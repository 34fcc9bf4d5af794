// Parts of an episode's page: verdict, marks of the steps, what is drawn on a screenshot, two of the tabs.
"use strict";
import { seconds } from "./charts.js";
import { factList, make, section } from "./dom.js";
import { badge, findings, number, numbers } from "./outcome.js";

const TRAIL = 8; // steps whose pointer positions the trail joins

export function verdict(episode) {
  const held = episode.findings.filter((found) => found.value >= 1).length;
  return make(
    "div",
    { class: `verdict card ${episode.outcome}` },
    make(
      "div",
      {},
      badge(episode),
      make("p", { class: "note" }, `${episode.cause || ""}${episode.answer ? `, answer: ${episode.answer}` : ""}`),
    ),
    make(
      "div",
      {},
      ...(episode.outcome === "failure"
        ? findings({ ...episode, findings: episode.findings.filter((found) => found.value < 1) })
        : []),
      episode.outcome === "failure" && held
        ? make("p", { class: "note" }, `${held} other clauses hold (tab Outcome)`)
        : null,
    ),
  );
}

export function markers(episode, index) {
  const step = episode.steps[index];
  const call = episode.calls.find((one) => one.id === step.call);
  const found = [];
  if (step.error) found.push(["fault", `${step.error_kind || "error"}: ${step.error}`]);
  for (const one of episode.milestones)
    if (one.step === index) found.push(["milestone", `milestone ${one.name}: ${number(one.value)}`]);
  if (call && call.parent === null && call.sequence > 1) found.push(["fork", `fork: sequence ${call.sequence} begins`]);
  if (call && call.untrained) found.push(["masked", `not trained: ${call.untrained}`]);
  return found;
}

export function timeline(episode, state, select) {
  const cells = episode.steps.map((step, index) => {
    const found = markers(episode, index);
    const title = [
      `step ${index + 1}: ${step.error || step.actions.join("; ") || "no action"}`,
      ...found.map(([, text]) => text),
    ].join("\n");
    return make(
      "button",
      {
        type: "button",
        title,
        "aria-label": title,
        "aria-current": index === state.step ? "step" : null,
        class: found.map(([kind]) => kind).join(" ") || null,
        onclick: () => select(index),
      },
      String(index + 1),
    );
  });
  if (episode.last_frame)
    cells.push(
      make(
        "button",
        {
          type: "button",
          "aria-current": state.step === episode.steps.length ? "step" : null,
          onclick: () => select(episode.steps.length),
        },
        "end",
      ),
    );
  return make("div", { class: "timeline", role: "group", "aria-label": "Steps" }, ...cells);
}

function trail(episode, index) {
  return episode.steps
    .slice(Math.max(0, index - TRAIL), index + 1)
    .flatMap((step) => step.marks.flatMap((mark) => mark.points));
}

export function shownOn(episode, index) {
  const step = episode.steps[index];
  return {
    marks: step ? step.marks : [],
    target: index === 0 ? episode.target : null,
    changed: index ? episode.steps[index - 1].changed : null,
    trail: trail(episode, index),
  };
}

export function outcomeTab(episode) {
  const milestones = episode.milestones.map((one) =>
    make(
      "li",
      {},
      make("i", { class: `sign ${one.value >= 1 ? "success" : one.value > 0 ? "errored" : "failure"}` }),
      ` ${one.name}: ${number(one.value)}`,
      make(
        "small",
        {},
        one.value === 0
          ? " never reached"
          : one.step === undefined || one.step === null
            ? " step not recorded"
            : one.step < 0
              ? " at the start"
              : ` after step ${one.step + 1}`,
      ),
    ),
  );
  return [
    section(
      "Clauses of the check",
      ...(episode.findings.length ? findings(episode) : [make("p", { class: "note" }, episode.cause)]),
    ),
    milestones.length ? section("Milestones in time", make("ul", { class: "plain" }, ...milestones)) : null,
    numbers("Reward", episode.terms),
    episode.explained
      ? section(
          "Advantage",
          make("p", {}, episode.advantage === null ? "–" : number(episode.advantage, 4)),
          make("p", { class: "note" }, episode.explained),
        )
      : null,
  ];
}

function callText(call, index) {
  const extended = call.parent === null ? (call.sequence > 1 ? ", fork" : "") : `, extends ${call.parent + 1}`;
  const tokens = `${call.prompt_tokens} + ${call.reply_tokens} tokens, version ${call.versions.join(", ")}`;
  const masked = call.untrained ? `, masked (${call.untrained})` : "";
  const agent = call.agent ? `, agent ${call.agent}` : "";
  return `call ${index + 1}: sequence ${call.sequence}${extended}, ${tokens}${masked}${agent}`;
}

export function factsTab(episode) {
  const version =
    episode.version_min === episode.version_max
      ? `${episode.version_max}`
      : `${episode.version_min} to ${episode.version_max}`;
  const faults = episode.steps
    .map((step, index) =>
      step.error ? make("li", {}, `step ${index + 1}, ${step.error_kind || "error"}: ${step.error}`) : null,
    )
    .filter((node) => node);
  const times = Object.fromEntries(
    Object.entries(episode.seconds)
      .filter(([, value]) => value !== null)
      .map(([name, value]) => [name.replaceAll("_", " "), seconds(value)]),
  );
  const click = episode.first_click_on_target;
  return [
    section(
      "Episode",
      factList({
        task: episode.task_id,
        phase: episode.phase,
        split: episode.split,
        state: episode.state,
        "trained in step": episode.trained_in_step ?? "–",
        "weights version": version,
        ...(click === null ? {} : { "first click": click ? "on target" : "off target" }),
        id: episode.id,
      }),
    ),
    section("Time and waits", factList(times)),
    section(
      "Faults",
      faults.length
        ? make("ul", { class: "plain" }, ...faults)
        : make("p", { class: "note" }, "Every reply was understood and performed."),
    ),
    section(
      "Calls",
      make("ol", { class: "plain" }, ...episode.calls.map((call, index) => make("li", {}, callText(call, index)))),
    ),
  ];
}
