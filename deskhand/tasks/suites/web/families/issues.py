"""Families `web/issues/*`: closing, assigning, labeling, commenting on and counting issues."""

from __future__ import annotations

from deskhand.tasks.suites.web.apps import issues
from deskhand.tasks.suites.web.content import FAULTS
from deskhand.tasks.suites.web.families.forms import both, fill_issue, issue_form, submit, submit_each, twice
from deskhand.tasks.suites.web.families.items import OPEN, having, new_title, open_issues, other_item
from deskhand.tasks.suites.web.scenario import Goal, WebScenario, choose, fill, go, see, tick, web_family

COMMENTS = ("I can see it too", "Fixed in the new version", "Which browser is it", "It works for me")


@web_family("issues/close", OPEN, "easy", "close an issue", "find something")
def close_issue(web: WebScenario) -> Goal:
    issue = web.pick(open_issues(web))
    other = other_item(open_issues(web), issue)
    return Goal(
        f"In the issue tracker, close the issue {issue['title']}",
        (go(issue["title"]), go("Close issue")),
        right=submit(issues.switch, issue),
        wrong={
            "another issue": submit(issues.switch, other),
            "two issues": submit_each(issues.switch, [issue, other]),
            "commented": submit(issues.comment, issue, text="Closed"),
        },
    )


@web_family("issues/assign", OPEN, "medium", "assign an issue and label it", "fill in a form", "find something")
def assign(web: WebScenario) -> Goal:
    issue = web.pick(open_issues(web))
    person = web.pick([each for each in web.state["issues"]["people"] if each != issue["assignee"]])
    label = web.pick(list(issues.LABELS))
    has_label = label in issue["labels"]
    labels = [each for each in issue["labels"] if each != label] + [label] * (not has_label)
    what = f"remove the label {label}" if has_label else f"add the label {label}"
    saved = submit(issues.change, issue_form(issue, assignee=person, labels=labels))
    return Goal(
        f"In the issue tracker, assign the issue {issue['title']} to {person} and {what}",
        (go(issue["title"]), choose("Assignee", person), tick(label), go("Save")),
        right=saved,
        wrong={
            "the label as it was": submit(issues.change, issue_form(issue, assignee=person)),
            "not assigned": submit(issues.change, issue_form(issue, labels=labels)),
            "closed too": both(saved, submit(issues.switch, issue)),
        },
    )


@web_family("issues/report", OPEN, "medium", "report an issue", "fill in a form")
def report(web: WebScenario) -> Goal:
    title, text = new_title(web, FAULTS, web.state["issues"]["issues"]), web.pick(list(COMMENTS[:2]))
    label = web.pick(list(issues.LABELS))
    plain = {"title": title, "text": text}
    form = {**plain, label: "on"}
    return Goal(
        f"In the issue tracker, report the new issue {title} with the text: {text} (label {label})",
        fill_issue(title, text, label),
        right=submit(issues.create, form),
        wrong={
            "without the label": submit(issues.create, plain),
            "another text": submit(issues.create, form, text=title),
            "twice": twice(submit(issues.create, form)),
        },
    )


@web_family(
    "issues/reopen", OPEN, "hard", "comment on a closed issue and reopen it", "find something", "work in several steps"
)
def reopen(web: WebScenario) -> Goal:
    closed = having(web.state["issues"]["issues"], state="closed")
    issue, text = web.pick(closed), web.pick(list(COMMENTS))
    other = other_item(closed, issue)
    commented, reopened = submit(issues.comment, issue, text=text), submit(issues.switch, issue)
    return Goal(
        f"In the issue tracker, reopen the closed issue {issue['title']} and add the comment: {text}",
        (go("Closed"), go(issue["title"]), fill("New comment", text), go("Add comment"), go("Reopen issue")),
        right=both(commented, reopened),
        wrong={
            "another issue": both(submit(issues.comment, other, text=text), submit(issues.switch, other)),
            "not commented": reopened,
            "not reopened": commented,
        },
    )


@web_family(
    "issues/count", OPEN, "medium", "count the open issues of a person", "read and compare", "answer a question"
)
def count_issues(web: WebScenario) -> Goal:
    person = web.pick([each["assignee"] for each in open_issues(web)])
    count = sum(each["assignee"] == person for each in open_issues(web))
    who = "are assigned to nobody" if person == issues.NOBODY else f"are assigned to {person}"
    return Goal(
        f"How many open issues {who} in the issue tracker? Answer with the number only",
        tuple(see(each["title"]) for each in open_issues(web)),
        answer=str(count),
        wrong_answers=(str(count + 1), str(count - 1), person),
        follows=tuple(each["title"] for each in open_issues(web)),
    )


@web_family(
    "issues/assign_stranger",
    OPEN,
    "medium",
    "assign an issue to somebody who cannot be chosen",
    "recognize an infeasible task",
)
def assign_stranger(web: WebScenario) -> Goal:
    issue, person = web.pick(open_issues(web)), web.pick(web.state["issues"]["people"])
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
    issue = web.pick(open_issues(web))
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
    title = new_title(web, FAULTS, web.state["issues"]["issues"])
    return Goal(f"In the issue tracker, close the issue {title}", (go("Closed"), go("Open")), infeasible=True)
