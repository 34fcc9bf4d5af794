// A group: its members step by step, where each first differs from the best one, rewards and advantages.
"use strict";
import { frameImage, get } from "./api.js";
import { short } from "./charts.js";
import { make, repaint } from "./dom.js";
import { number } from "./outcome.js";
import { plainTable } from "./table.js";

const THUMBNAIL = 320;

function outcomeOf(member) {
  if (member.state === "errored" || member.state === "in_flight") return member.state;
  return member.value >= 1 ? "success" : "failure";
}

function link(at, href, member, step = null) {
  return href(`/run/${at.run}/episode/${encodeURIComponent(member.id)}`, { step: step ?? "" });
}

function membersTable(at, href, group) {
  const rows = group.members.map((member) => [
    make(
      "td",
      {},
      make("a", { href: link(at, href, member) }, `#${member.member}`),
      member.id === group.best ? " best" : "",
    ),
    make(
      "span",
      { class: "badge" },
      make("i", { class: `sign ${outcomeOf(member)}` }),
      outcomeOf(member).replace("_", " "),
    ),
    make(
      "td",
      {
        class: "numeric",
        title: Object.entries(member.terms)
          .map(([name, value]) => `${name} ${short(value)}`)
          .join(", "),
      },
      short(member.reward),
    ),
    make(
      "td",
      { class: `numeric ${member.advantage > 0 ? "up" : member.advantage < 0 ? "down" : ""}` },
      number(member.advantage, 3),
    ),
    member.diverges === null ? "–" : `step ${member.diverges + 1}`,
    make("span", { class: "reason", title: member.reason }, member.reason),
  ]);
  return plainTable("Members", ["member", "outcome", "#reward", "#advantage", "#first difference", "reason"], rows);
}

function cell(at, href, member, index) {
  const step = member.steps[index];
  const first = member.diverges === index;
  const shown = step || (index === member.steps.length && member.last_frame);
  const classes = [
    "cell",
    shown && member.diverges !== null && index >= member.diverges ? "differs" : "",
    first ? "first" : "",
  ]
    .join(" ")
    .trim();
  if (!step) {
    if (!shown) return make("td", { class: classes });
    return make(
      "td",
      { class: classes },
      make(
        "a",
        { href: link(at, href, member, index) },
        frameImage(at.run, member.last_frame, { width: THUMBNAIL, lazy: true, alt: `end of member ${member.member}` }),
      ),
      make("p", {}, `end: ${member.stop_reason.replaceAll("_", " ")}`),
    );
  }
  return make(
    "td",
    { class: classes },
    first ? make("b", { class: "mark" }, "differs from the best here") : null,
    make(
      "a",
      { href: link(at, href, member, index) },
      frameImage(at.run, step.frame, {
        width: THUMBNAIL,
        lazy: true,
        alt: `step ${index + 1} of member ${member.member}`,
      }),
    ),
    make("p", { class: step.error ? "error" : "" }, step.error || step.actions.join("; ") || "no action"),
  );
}

function grid(at, href, group) {
  const length = Math.max(0, ...group.members.map((member) => member.steps.length + (member.last_frame ? 1 : 0)));
  const head = make(
    "tr",
    {},
    make("th", { scope: "col" }, "step"),
    ...group.members.map((member) =>
      make(
        "th",
        { scope: "col" },
        make("i", { class: `sign ${outcomeOf(member)}` }),
        ` #${member.member} `,
        make("small", {}, `reward ${short(member.reward)}, advantage ${number(member.advantage)}`),
        group.task_id === null ? make("p", {}, member.instruction) : null,
      ),
    ),
  );
  const rows = Array.from({ length }, (_, index) =>
    make(
      "tr",
      { class: index === group.first_divergence ? "divergence" : null },
      make("th", { scope: "row" }, String(index + 1)),
      ...group.members.map((member) => cell(at, href, member, index)),
    ),
  );
  return make(
    "div",
    { class: "scroll aligned", tabindex: 0, role: "region", "aria-label": "Steps of the members" },
    make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)),
  );
}

export async function groupPage(at, { href }) {
  const load = async () => {
    const group = await get(`/runs/${at.run}/groups/${encodeURIComponent(at.id)}`);
    // The best one first, to compare the others with.
    group.members.sort((one, two) => (two.id === group.best) - (one.id === group.best));
    return group;
  };
  const holder = make("div", {});
  function paint(group) {
    const first = group.first_divergence;
    holder.replaceChildren(
      make("p", { class: "instruction" }, group.instruction),
      make(
        "p",
        { class: "note" },
        `${group.task_id ?? `variants of ${group.family}`}, group ${group.id}. `,
        group.task_id &&
          make("a", { href: href(`/run/${at.run}/episodes`, { task: group.task_id }) }, "all episodes of the task"),
      ),
      make(
        "section",
        {},
        make("h2", {}, "Rewards and advantages"),
        make("p", {}, group.explained),
        membersTable(at, href, group),
      ),
      make(
        "section",
        {},
        make("h2", {}, "Steps"),
        make(
          "p",
          { class: "note" },
          group.task_id === null
            ? "Each member has a task of its own."
            : first === null
              ? "All members did the same on the same screens."
              : `The first difference is in step ${first + 1}.`,
        ),
        grid(at, href, group),
      ),
    );
  }
  const group = await load();
  paint(group);
  return {
    title: `Group of ${group.family}`,
    nodes: [holder],
    refresh: async () => {
      const now = await load();
      repaint(holder, () => paint(now));
    },
  };
}
