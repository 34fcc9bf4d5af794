"""Families `web/issues/*`: closing, assigning, labeling, commenting on and counting issues."""

from __future__ import annotations

from deskhand.tasks.suites.web.apps import issues
from deskhand.tasks.suites.web.content import FAULTS
from deskhand.tasks.suites.web.scenario import Goal, State, WebScenario, choose, fill, go, see, tick, web_family

OPEN = "/issues/list/open"
COMMENTS = ("I can see it too", "Fixed in the new version", "Which browser is it", "It works for me")


def _issues(web: WebScenario, state: str = "open") -> list[State]:
    return [each for each in web.state["issues"]["issues"] if each["state"] == state]


def _saved(issue: State, **values: object) -> State:
    """Return what the form of an issue sends."""
    new = {**issue, **values}
    return {"id": new["id"], "assignee": new["assignee"], **dict.fromkeys(new["labels"], "on")}


@web_family("issues/close", OPEN, "easy", "close an issue", "find something")
def close_issue(web: WebScenario) -> Goal:
    issue = web.pick(_issues(web))
    other = next(each for each in _issues(web) if each is not issue)
    return Goal(
        f"In the issue tracker, close the issue {issue['title']}",
        (go(issue["title"]), go("Close issue")),
        right=lambda state: issues.switch(state["issues"], issue),
        wrong={
            "another issue": lambda state: issues.switch(state["issues"], other),
            "two issues": lambda state: [issues.switch(state["issues"], each) for each in (issue, other)],
            "commented": lambda state: issues.comment(state["issues"], {**issue, "text": "Closed"}),
        },
    )


@web_family("issues/assign", OPEN, "medium", "assign an issue and label it", "fill in a form", "find something")
def assign(web: WebScenario) -> Goal:
    issue = web.pick(_issues(web))
    person = web.pick([each for each in web.state["issues"]["people"] if each != issue["assignee"]])
    label = web.pick(list(issues.LABELS))
    has_label = label in issue["labels"]
    labels = [each for each in issue["labels"] if each != label] + [label] * (not has_label)
    what = f"remove the label {label}" if has_label else f"add the label {label}"
    return Goal(
        f"In the issue tracker, assign the issue {issue['title']} to {person} and {what}",
        (go(issue["title"]), choose("Assignee", person), tick(label), go("Save")),
        right=lambda state: issues.change(state["issues"], _saved(issue, assignee=person, labels=labels)),
        wrong={
            "the label as it was": lambda state: issues.change(state["issues"], _saved(issue, assignee=person)),
            "not assigned": lambda state: issues.change(state["issues"], _saved(issue, labels=labels)),
            "closed too": lambda state: [
                issues.change(state["issues"], _saved(issue, assignee=person, labels=labels)),
                issues.switch(state["issues"], issue),
            ],
        },
    )


@web_family("issues/report", OPEN, "medium", "report an issue", "fill in a form")
def report(web: WebScenario) -> Goal:
    taken = {each["title"] for each in web.state["issues"]["issues"]}
    title, text = web.pick([each for each in FAULTS if each not in taken]), web.pick(list(COMMENTS[:2]))
    label = web.pick(list(issues.LABELS))
    values = {"title": title, "text": text}
    return Goal(
        f"In the issue tracker, report the new issue {title} with the text: {text} (label {label})",
        (go("New issue"), fill("Title", title), fill("Text", text), tick(label), go("Create")),
        right=lambda state: issues.create(state["issues"], {**values, label: "on"}),
        wrong={
            "without the label": lambda state: issues.create(state["issues"], values),
            "another text": lambda state: issues.create(state["issues"], {**values, "text": title, label: "on"}),
            "twice": lambda state: [issues.create(state["issues"], {**values, label: "on"}) for _ in range(2)],
        },
    )


@web_family(
    "issues/reopen", OPEN, "hard", "comment on a closed issue and reopen it", "find something", "work in several steps"
)
def reopen(web: WebScenario) -> Goal:
    issue, text = web.pick(_issues(web, "closed")), web.pick(list(COMMENTS))
    values = {**issue, "text": text}
    other = next(each for each in _issues(web, "closed") if each is not issue)

    def end(state: State, which: State = issue) -> None:
        issues.comment(state["issues"], {**which, "text": text})
        issues.switch(state["issues"], which)

    return Goal(
        f"In the issue tracker, reopen the closed issue {issue['title']} and add the comment: {text}",
        (go("Closed"), go(issue["title"]), fill("New comment", text), go("Add comment"), go("Reopen issue")),
        right=end,
        wrong={
            "another issue": lambda state: end(state, other),
            "not commented": lambda state: issues.switch(state["issues"], issue),
            "not reopened": lambda state: issues.comment(state["issues"], values),
        },
    )


@web_family(
    "issues/count", OPEN, "medium", "count the open issues of a person", "read and compare", "answer a question"
)
def count_issues(web: WebScenario) -> Goal:
    person = web.pick([each["assignee"] for each in _issues(web)])
    count = sum(each["assignee"] == person for each in _issues(web))
    who = "are assigned to nobody" if person == issues.NOBODY else f"are assigned to {person}"
    return Goal(
        f"How many open issues {who} in the issue tracker? Answer with the number only",
        tuple(see(each["title"]) for each in _issues(web)),
        answer=str(count),
        wrong_answers=(str(count + 1), str(count - 1), person),
        follows=tuple(each["title"] for each in _issues(web)),
    )


@web_family(
    "issues/assign_stranger",
    OPEN,
    "medium",
    "assign an issue to somebody who cannot be chosen",
    "recognize an infeasible task",
)
def assign_stranger(web: WebScenario) -> Goal:
    issue, person = web.pick(_issues(web)), web.pick(web.state["issues"]["people"])
    web.state["issues"]["people"].remove(person)
    for each in web.state["issues"]["issues"]:
        each["assignee"] = issues.NOBODY if each["assignee"] == person else each["assignee"]
    return Goal(
        f"In the issue tracker, assign the issue {issue['title']} to {person}",
        (go(issue["title"]), see("New comment")),
        infeasible=True,
    )


@web_family("issues/assignee", OPEN, "easy", "say who is assigned to an issue", "find something", "answer a question")
def assignee(web: WebScenario) -> Goal:
    issue = web.pick(_issues(web))
    people = [*web.state["issues"]["people"], issues.NOBODY]
    return Goal(
        f"Who is assigned to the issue {issue['title']}? Answer with the name, or with nobody",
        (see(issue["title"]),),
        answer=issue["assignee"],
        wrong_answers=tuple(each for each in people if each != issue["assignee"]),
    )


@web_family(
    "issues/close_missing", OPEN, "medium", "close an issue that does not exist", "recognize an infeasible task"
)
def close_missing(web: WebScenario) -> Goal:
    taken = {each["title"] for each in web.state["issues"]["issues"]}
    title = web.pick([each for each in FAULTS if each not in taken])
    return Goal(f"In the issue tracker, close the issue {title}", (go("Closed"), go("Open")), infeasible=True)
