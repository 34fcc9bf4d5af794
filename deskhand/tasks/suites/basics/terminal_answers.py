"""Families `shell_*` that end in an answer: questions about files and programs, to be looked up in a terminal.

Two of them ask about something that does not exist, in the words of a family that can be solved.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from deskhand.actions.ops import Op, Type
from deskhand.desktop.base import StageableDesktop
from deskhand.tasks.suites.basics import hd_screen
from deskhand.tasks.suites.basics.hd_screen import click_in
from deskhand.tasks.suites.basics.scenario import Oracle, scenario_family
from deskhand.tasks.suites.basics.terminal_files import FOLDER, PLACES, STEMS, WORDS, TerminalFilesScenario
from deskhand.tasks.suites.basics.told_ends import told_task
from deskhand.tasks.task import Task

COMMANDS = ("ls -lS", "ls -lt", "wc -l", "grep -l", "md5sum", "sort", "find -type f -name", "pgrep -a")
QUESTION_LINES = "In the terminal find out how many lines the file {} has, and answer with just the number"
QUESTION_WORD = "In the terminal find out which file has the word {}, and answer with just the file's name"


def run_in_terminal(*commands: str) -> Oracle:
    """Return the steps that click into the terminal and run commands in it."""

    async def steps(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        yield [click_in((await desktop.wait_window("xfce4-terminal"))[0])]
        for command in commands:
            yield [Type(f"{command}\n")]
            await hd_screen.wait_still(desktop, 0.5)

    return steps


class QuestionScenario(TerminalFilesScenario):
    """A terminal in a folder of six files of different lengths."""

    def __init__(self, family: str, seed: int) -> None:
        super().__init__(family, seed)
        self.names = [f"{stem}.txt" for stem in self.rng.sample(STEMS, 6)]
        counts = self.rng.sample(range(4, 60), 6)
        self.files = {name: self.lines(count) for name, count in zip(self.names, counts, strict=True)}
        self.name = self.rng.choice(self.names)
        self.ages: list[str] = []
        """Names from the file that was changed last to the oldest; empty if that does not matter."""
        self.programs: tuple[list[str], ...] = ()

    def lines(self, count: int, without: str = "") -> bytes:
        words = self.rng.choices([word for word in WORDS if word != without], k=count)
        return "".join(f"{word} {self.rng.randint(1, 99)}\n" for word in words).encode()

    def take_out_word(self) -> str:
        """Return a word that no file has."""
        word = self.rng.choice(WORDS)
        self.files = {name: self.lines(data.count(b"\n"), word) for name, data in self.files.items()}
        return word

    async def setup(self, desktop: StageableDesktop) -> None:
        await super().setup(desktop)
        for hours, name in enumerate(self.ages, 1):
            await desktop.run(["touch", "-d", f"{hours} hours ago", f"{FOLDER}/{name}"])
        for argv in self.programs:
            await desktop.launch(argv)

    def question(self, text: str, command: str, answer: str | None, wrong: Sequence[str] = (), **fields: Any) -> Task:
        """Return a task with a question. `command` shows the answer; None: there is none."""
        files = {f"{FOLDER}/{path}": data for path, data in self.files.items()}
        steps = run_in_terminal(command)
        return told_task(self, text, files, steps, answer, wrong_answers=wrong, oracle_knows=COMMANDS, **fields)

    def others(self, name: str) -> list[str]:
        return [each for each in self.names if each != name]


@scenario_family(
    QuestionScenario,
    "shell_largest",
    "easy",
    "say which file of a folder is the largest or smallest",
    abilities=("use a shell", "read and compare", "answer a question"),
)
def name_largest(scenario: QuestionScenario) -> Task:
    files, by_size = scenario.files, sorted(scenario.names, key=lambda name: len(scenario.files[name]))
    asked, answer = scenario.rng.choice([("largest", by_size[-1]), ("smallest", by_size[0])])
    files[answer] = files[answer] + b"more 1\n" if asked == "largest" else files[answer][:-10] + b"\n"  # no ties
    text = f"In the terminal find out which file of the folder is the {asked}, and answer with just its name"
    return scenario.question(text, "ls -lS", answer, scenario.others(answer))


@scenario_family(
    QuestionScenario,
    "shell_newest",
    "easy",
    "say which file of a folder was changed last",
    abilities=("use a shell", "read and compare", "answer a question"),
)
def name_newest(scenario: QuestionScenario) -> Task:
    scenario.ages = scenario.rng.sample(scenario.names, 6)
    newest, oldest = scenario.ages[0], scenario.ages[-1]
    asked, answer = scenario.rng.choice([("was changed last", newest), ("has not been changed for longest", oldest)])
    text = f"In the terminal find out which file of the folder {asked}, and answer with just its name"
    return scenario.question(text, "ls -lt", answer, scenario.others(answer))


@scenario_family(
    QuestionScenario,
    "shell_lines",
    "easy",
    "say how many lines a file has",
    abilities=("use a shell", "answer a question"),
)
def count_lines(scenario: QuestionScenario) -> Task:
    counts = {name: str(data.count(b"\n")) for name, data in scenario.files.items()}
    wrong = [count for name, count in counts.items() if name != scenario.name]
    return scenario.question(
        QUESTION_LINES.format(scenario.name), f"wc -l {scenario.name}", counts[scenario.name], wrong
    )


@scenario_family(
    QuestionScenario,
    "shell_lines_missing",
    "easy",
    "count the lines of a file that does not exist",
    abilities=("use a shell", "recognize an infeasible task"),
)
def count_lines_of_none(scenario: QuestionScenario) -> Task:
    missing = scenario.rng.choice([stem for stem in STEMS if f"{stem}.txt" not in scenario.files]) + ".txt"
    return scenario.question(QUESTION_LINES.format(missing), f"wc -l {missing}", None)


@scenario_family(
    QuestionScenario,
    "shell_word",
    "medium",
    "say which file has a word",
    abilities=("use a shell", "find something", "answer a question"),
)
def find_word(scenario: QuestionScenario) -> Task:
    word, name = scenario.take_out_word(), scenario.name
    lines = scenario.files[name].decode().splitlines(keepends=True)
    lines.insert(scenario.rng.randrange(len(lines)), f"{word} {scenario.rng.randint(1, 99)}\n")
    scenario.files[name] = "".join(lines).encode()
    return scenario.question(QUESTION_WORD.format(word), f"grep -l {word} *", name, scenario.others(name))


@scenario_family(
    QuestionScenario,
    "shell_word_missing",
    "medium",
    "find the file with a word that no file has",
    abilities=("use a shell", "find something", "recognize an infeasible task"),
)
def find_word_of_none(scenario: QuestionScenario) -> Task:
    word = scenario.take_out_word()
    return scenario.question(QUESTION_WORD.format(word), f"grep -l {word} *", None)


@scenario_family(
    QuestionScenario,
    "shell_same",
    "medium",
    "say which file has the same content as another",
    abilities=("use a shell", "read and compare", "answer a question"),
)
def find_same(scenario: QuestionScenario) -> Task:
    copy = scenario.rng.choice(scenario.others(scenario.name))
    near = scenario.rng.choice([name for name in scenario.others(scenario.name) if name != copy])
    text = scenario.files[scenario.name]
    scenario.files |= {copy: text, near: text[:-2] + (b"0\n" if text[-2:] != b"0\n" else b"1\n")}
    asked = f"In the terminal find out which other file has exactly the content of {scenario.name}"
    wrong = [name for name in scenario.names if name != copy]
    return scenario.question(f"{asked}, and answer with just its name", "md5sum * | sort", copy, wrong)


@scenario_family(
    QuestionScenario,
    "shell_files",
    "medium",
    "count the files of one type in a folder and its subfolders",
    abilities=("use a shell", "read and compare", "answer a question"),
)
def count_files(scenario: QuestionScenario) -> Task:
    kinds = scenario.rng.sample(["txt", "csv", "log"], 2)
    scenario.files = {
        f"{place}/{stem}.{scenario.rng.choice([kinds[0], *kinds])}": scenario.random_text()
        for place in PLACES
        for stem in scenario.rng.sample(STEMS, scenario.rng.randint(2, 6))
    }
    scenario.files[f"{PLACES[0]}/first.{kinds[0]}"] = scenario.random_text()
    found = [path for path in scenario.files if path.endswith(kinds[0])]
    every = len(scenario.files)
    asked = f"In the terminal find out how many .{kinds[0]} files the four folders have together"
    wrong = sorted({str(len(found) + 1), str(len(found) - 1), str(every + 1 if every == len(found) else every)})
    command = f"find -type f -name '*.{kinds[0]}' | wc -l"
    return scenario.question(f"{asked}, and answer with just the number", command, str(len(found)), wrong)


@scenario_family(
    QuestionScenario,
    "shell_process",
    "medium",
    "say which number is on the command line of a running program",
    abilities=("use a shell", "find something", "answer a question"),
)
def find_process(scenario: QuestionScenario) -> Task:
    number, other, third = (str(each) for each in scenario.rng.sample(range(20_000, 90_000), 3))
    program, decoy = scenario.rng.sample(["sleep", "tail"], 2)
    argv = {"sleep": ["sleep", number], "tail": ["tail", "-f", "-n", number, "/dev/null"]}
    more = {"sleep": ["sleep", other], "tail": ["tail", "-f", "-n", other, "/dev/null"]}
    scenario.programs = (argv[program], more[decoy])
    text = f"A program {program} is running. In the terminal find out which number is on its command line"
    return scenario.question(
        f"{text}, and answer with just that number", f"pgrep -a {program}", number, [other, third, program]
    )
