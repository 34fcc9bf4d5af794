"""Ways to do the families of `basics` that end in an answer, or in the statement that they cannot be done."""

from __future__ import annotations

from benchmarks.ways.person import Act, Person, Ways, click, rest, told, types
from deskhand.actions.ops import Answer, Fail
from deskhand.tasks.task import Task


def says(task: Task, dressed: str = "{}") -> Act:
    """End with the answer, or say that it cannot be done."""

    async def act(person: Person) -> None:
        is_infeasible = task.infeasible_reward is not None
        await person.do(Fail("there is none") if is_infeasible else Answer(dressed.format(task.accepted_answers[0])))

    return act


def in_terminal(task: Task, *commands: str) -> Ways:
    """Commands that a person types, one way each; the last answer has a period."""
    there = click("xfce4-terminal", 0.5, 0.5)
    found: Ways = {each: [there, types(f"{each}\n"), rest, says(task, "{}.")] for each in commands}
    return found | {"looked around first": [there, types(f"ls\n{commands[0]}\n"), rest, says(task)]}


def shell_by_size(task: Task) -> Ways:
    return in_terminal(task, "ls -l", "wc -c * | sort -n", "du -b * | sort -rn")


def shell_by_age(task: Task) -> Ways:
    return in_terminal(task, "ls -l", "ls -ltr", "stat -c '%y %n' * | sort")


def shell_lines(task: Task) -> Ways:
    (name,) = told(task, r"the file (\S+) has")
    return in_terminal(task, "wc -l *", f"cat {name} | wc -l", f"grep -c '' {name}", f"cat -n {name} | tail -1")


def shell_word(task: Task) -> Ways:
    (word,) = told(task, r"the word (\w+),")
    return in_terminal(task, f"grep {word} *", f"grep -n {word} *.txt", f"grep -rl {word} .", f"grep -c {word} *")


def shell_same(task: Task) -> Ways:
    (name,) = told(task, r"content of (\S+),")
    loop = f"for f in *; do cmp -s $f {name} && echo $f; done"
    return in_terminal(task, loop, f"md5sum * | grep $(md5sum < {name} | cut -d' ' -f1)", "sha1sum *")


def shell_files(task: Task) -> Ways:
    (kind,) = told(task, r"how many (\.\w+) files")
    return in_terminal(task, f"ls */*{kind} | wc -l", f"ls -R | grep -c '{kind}$'", "ls *")


def shell_process(task: Task) -> Ways:
    (name,) = told(task, r"A program (\w+) is")
    return in_terminal(task, "ps ax", f"ps -C {name} -o args", f"ps -ef | grep {name}")


WAYS = {
    "shell_largest": shell_by_size,
    "shell_newest": shell_by_age,
    "shell_lines": shell_lines,
    "shell_lines_missing": shell_lines,
    "shell_word": shell_word,
    "shell_word_missing": shell_word,
    "shell_same": shell_same,
    "shell_files": shell_files,
    "shell_process": shell_process,
}
