"""Progress of a run on a terminal: a live table, or plain lines without a terminal.

Used by the command line; `TerminalDisplay` is the `ProgressListener`, the functions below build the tables.
"""

from __future__ import annotations

import time

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from deskhand.recipes.step_report import ProgressListener, StepReport
from deskhand.reporting.html_report import duration
from deskhand.rollout.eval_loop import EvalReport
from deskhand.rollout.success_rates import NOTHING, Proportion

ROWS = 14
QUIET_S = 30.0
"""Without a terminal: maximum time without a line about the episodes."""
LINE_EVERY = 20
"""Without a terminal: evaluation episodes between two lines."""


class TerminalDisplay(ProgressListener):
    """Context manager that prints lines and shows a table of steps with a status line."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self._started = time.monotonic()
        self._rows: list[StepReport] = []
        self._status = ""
        self._quota_wait = ""
        self._quota_line_s = 0.0
        self._live: Live | None = None
        self._last_line_s = self._started

    def __enter__(self) -> TerminalDisplay:
        if self.console.is_terminal:
            self._live = Live(self, console=self.console, refresh_per_second=4, transient=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status = ""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def log(self, text: str) -> None:
        self._last_line_s = time.monotonic()
        self.console.print(Text(text), soft_wrap=True)

    def status(self, text: str) -> None:
        """Set the status line, which is shown on terminals only."""
        self._status = text

    def step(self, report: StepReport) -> None:
        self._rows.append(report)
        self._status = f"{duration(report.eta_s)} to go" if report.step < report.total_steps else ""
        if self._live is None:
            self.log(line_of(report))

    def quota_wait(self, text: str) -> None:
        is_new, self._quota_wait = bool(text) and not self._quota_wait, text
        if self._live is None and (is_new or (text and time.monotonic() - self._quota_line_s > QUIET_S)):
            self._quota_line_s = time.monotonic()
            self.log(text)

    def episodes(self, ended: int, trained: int, zero_variance: int, errored: int) -> None:
        text = f"{ended} episodes: {trained} trained, {zero_variance} zero-variance, {errored} errored"
        self._status = f"{text}; {duration(self._rows[-1].eta_s)} to go" if self._rows else text
        if self._live is None and time.monotonic() - self._last_line_s > QUIET_S:
            self.log(text)

    def evaluated(self, name: str, done: int, total: int, successes: int, errored: int) -> None:
        self._count(f"{name}: {done} of {total} episodes, {successes} successes", done, total, errored)

    def demonstrations(self, done: int, total: int, successes: int, errored: int) -> None:
        self._count(f"demonstrations: {done} of {total} episodes, {successes} successes", done, total, errored)

    def _count(self, status: str, done: int, total: int, errored: int) -> None:
        self._status = status + (f", {errored} errored attempts" if errored else "")
        if self._live is None and (done % LINE_EVERY == 0 or done == total):
            self.log(self._status)

    def __rich__(self) -> Group:
        parts: list[Table | Spinner | Text] = []
        if self._rows:
            parts.append(steps_table(self._rows[-ROWS:]))
        if self._status:
            if self._quota_wait:
                parts.append(Text(f" {self._quota_wait}", style="yellow"))
            elapsed = duration(time.monotonic() - self._started)
            parts.append(Spinner("dots", Text(f" {self._status}   {elapsed}", style="dim")))
        return Group(*parts)


COLUMNS = ("step", "episodes/min", "reward", "success", "errored", "version", "ETA")


def cells_of(report: StepReport) -> tuple[str, ...]:
    """Return the cells of a step in the order of `COLUMNS`."""
    reward, success = report.metrics.get("reward/mean"), report.metrics.get("reward/success_rate")
    return (
        f"{report.step}/{report.total_steps}",
        f"{report.metrics['perf/episodes_per_minute']:.0f}",
        "-" if reward is None else f"{reward:.2f}",
        "-" if success is None else f"{100 * success:.0f} %",
        f"{100 * report.metrics['episodes/errored_frac_total']:.1f} %",
        f"{report.version}",
        duration(report.eta_s),
    )


def line_of(report: StepReport) -> str:
    return "  ".join(f"{name} {cell}" for name, cell in zip(COLUMNS, cells_of(report), strict=True))


def _table(title: str | None = None) -> Table:
    return Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left")


def steps_table(rows: list[StepReport]) -> Table:
    table = _table()
    for name in COLUMNS:
        table.add_column(name, justify="right", min_width=max(len(name), 8))
    for report in rows:
        table.add_row(*cells_of(report))
    return table


def comparison(before: EvalReport, after: EvalReport) -> Table:
    """Return the table of success before and after, by family, with 95 % Wilson intervals."""
    title = f"{before.success.total} episodes before, {after.success.total} after; 95 % Wilson intervals"
    table = _table(title)
    table.add_column("success")
    for name in ("before", "after", "points", "intervals"):
        table.add_column(name, justify="right")
    rows = [("all families", before.success, after.success)]
    names = sorted(before.by_family.keys() & after.by_family.keys())
    rows += [(name, before.by_family[name], after.by_family[name]) for name in names]
    if before.num_unscored or after.num_unscored:
        rows.insert(1, ("of all started", before.success_of_started, after.success_of_started))
    for name, first, second in [*rows, ("first click hits", before.first_click, after.first_click)]:
        if first.total and second.total:
            apart = second.interval[0] > first.interval[1] or second.interval[1] < first.interval[0]
            points = f"{100 * (second.value - first.value):+.1f}"
            table.add_row(name, percent_text(first), percent_text(second), points, "apart" if apart else "overlap")
    return table


def evaluation_table(report: EvalReport) -> Table:
    """Return the table of an evaluation by family, with 95 % Wilson intervals and pass@k."""
    table = _table(report.name)
    table.add_column("family")
    table.add_column("success", justify="right")
    if report.num_unscored:
        table.add_column("of all started", justify="right")
    for k in report.pass_at:
        table.add_column(f"pass@{k}", justify="right")
    rows = [("all families", report.success, report.success_of_started, report.pass_at)]
    rows += [
        (name, rate, report.family_of_started.get(name, NOTHING), report.family_pass_at.get(name, {}))
        for name, rate in report.by_family.items()
    ]
    for name, rate, of_started, chances in rows:
        cells = [interval_text(of_started)] if report.num_unscored else []
        cells += [f"{100 * chances[k]:.1f} %" if k in chances else "" for k in report.pass_at]
        table.add_row(name, interval_text(rate), *cells)
    if report.first_click.total:
        table.add_row("first click on target", interval_text(report.first_click))
    if report.num_guest_trusted:
        table.add_row("untrusted scores", f"{report.num_guest_trusted}/{report.success.total}")
    for cause, count in sorted(report.errored.items()):
        table.add_row(f"errored ({cause})", str(count))
    return table


def percent_text(rate: Proportion) -> str:
    """`62.1 % [55.8, 68.0]`, the interval in percent."""
    low, high = rate.interval
    return f"{100 * rate.value:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"


def interval_text(rate: Proportion) -> str:
    """`62.1 % [55.8, 68.0] 149/240`, the interval in percent."""
    return f"{percent_text(rate)} {rate.hits}/{rate.total}" if rate.total else "no scored episodes"


def warnings_of(*reports: EvalReport) -> list[str]:
    """Return lines on evaluations whose success may not be that of the policy."""
    return [line for report in reports for line in report.warnings]
