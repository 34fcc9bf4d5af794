"""Progress on a terminal: a live table, or plain lines without one. Invariant: what is shown was measured by the run."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from deskhand.recipes.progress_listener import ProgressListener
from deskhand.recipes.step_report import StepReport
from deskhand.reporting.html_report import duration
from deskhand.rollout.eval_loop import EvalReport
from deskhand.rollout.success_rates import Proportion

ROWS = 14
QUIET_S = 30.0
"""Where there is no terminal, a line about the episodes comes when none came for so long."""
LINE_EVERY = 20
"""Held-out episodes between two lines where there is no terminal."""


class TerminalDisplay(ProgressListener):
    """Use as a context. `log` prints a line, `step` adds a row, `status` sets the line below the table."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self._began = time.monotonic()
        self._rows: list[StepReport] = []
        self._status = ""
        self._parked = ""
        self._parked_line_s = 0.0
        self._live: Live | None = None
        self._last_line_s = self._began

    def __enter__(self) -> TerminalDisplay:
        if self.console.is_terminal:
            self._live = Live(self, console=self.console, refresh_per_second=4, transient=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._status = ""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def log(self, text: str) -> None:
        self._last_line_s = time.monotonic()
        self.console.print(Text(text), soft_wrap=True)

    def status(self, text: str) -> None:
        """Shown only where there is a terminal, and there with the time since the start."""
        self._status = text

    def step(self, progress: StepReport) -> None:
        self._rows.append(progress)
        self._status = f"{duration(progress.eta_s)} to go" if progress.step < progress.steps else ""
        if self._live is None:
            self.log(line_of(progress))

    def quota_wait(self, text: str) -> None:
        began, self._parked = bool(text) and not self._parked, text
        if self._live is None and (began or (text and time.monotonic() - self._parked_line_s > QUIET_S)):
            self._parked_line_s = time.monotonic()
            self.log(text)

    def episodes(self, ended: int, trained: int, equal: int, unscored: int) -> None:
        text = f"{ended} episodes: {trained} trained, {equal} in groups of equal reward, {unscored} unscored"
        self._status = f"{text}; {duration(self._rows[-1].eta_s)} to go" if self._rows else text
        if self._live is None and time.monotonic() - self._last_line_s > QUIET_S:
            self.log(text)

    def evaluated(self, name: str, done: int, total: int, successes: int, lost: int) -> None:
        self._count(f"{name}: {done} of {total} held-out episodes, {successes} successes", done, total, lost)

    def demonstrations(self, done: int, total: int, successes: int, lost: int) -> None:
        self._count(f"demonstrations: {done} of {total} episodes, {successes} successes", done, total, lost)

    def _count(self, status: str, done: int, total: int, lost: int) -> None:
        self._status = status + (f", {lost} tries without a score" if lost else "")
        if self._live is None and (done % LINE_EVERY == 0 or done == total):
            self.log(self._status)

    def __rich__(self) -> Group:
        parts: list[Table | Spinner | Text] = []
        if self._rows:
            parts.append(steps_table(self._rows[-ROWS:]))
        if self._status:
            if self._parked:
                parts.append(Text(f" {self._parked}", style="yellow"))
            parts.append(
                Spinner("dots", Text(f" {self._status}   {duration(time.monotonic() - self._began)}", style="dim"))
            )
        return Group(*parts)


COLUMNS = ("step", "episodes/min", "reward", "success", "unscored", "version", "ETA")


def cells_of(progress: StepReport) -> tuple[str, ...]:
    """One step, in the order of `COLUMNS`."""
    return (
        f"{progress.step}/{progress.steps}",
        f"{progress.episodes_per_minute:.0f}",
        "-" if progress.reward is None else f"{progress.reward:.2f}",
        "-" if progress.success is None else f"{100 * progress.success:.0f} %",
        f"{100 * progress.unscored_share:.1f} %",
        f"{progress.version}",
        duration(progress.eta_s),
    )


def line_of(progress: StepReport) -> str:
    """One step as a line of text."""
    return "  ".join(f"{name} {cell}" for name, cell in zip(COLUMNS, cells_of(progress), strict=True))


def steps_table(rows: list[StepReport]) -> Table:
    """The newest steps."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in COLUMNS:
        table.add_column(name, justify="right", min_width=max(len(name), 8))
    for progress in rows:
        table.add_row(*cells_of(progress))
    return table


def comparison(before: EvalReport, after: EvalReport) -> Table:
    """Held-out success before and after, by family, with 95 % Wilson intervals and whether they are apart; 80 columns wide where
    families have short names."""
    title = f"{before.success.total} held-out episodes before, {after.success.total} after; 95 % Wilson intervals"
    table = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left")
    table.add_column("held-out success")
    for name in ("before", "after", "points", "intervals"):
        table.add_column(name, justify="right")
    rows = [("all families", before.success, after.success)]
    rows += [
        (name, before.by_family[name], after.by_family[name])
        for name in sorted(before.by_family)
        if name in after.by_family
    ]
    for name, first, second in [*rows, ("first click hits", before.first_click, after.first_click)]:
        if first.total and second.total:
            apart = second.interval[0] > first.interval[1] or second.interval[1] < first.interval[0]
            points = f"{100 * (second.value - first.value):+.1f}"
            table.add_row(name, share_text(first), share_text(second), points, "apart" if apart else "overlap")
    return table


def evaluation_table(report: EvalReport) -> Table:
    """An evaluation by family, with 95 % Wilson intervals, and pass@k where tasks were played more than once."""
    table = Table(box=None, pad_edge=False, header_style="bold", title=report.name, title_justify="left")
    table.add_column("family")
    table.add_column("success", justify="right")
    for k in report.pass_at:
        table.add_column(f"pass@{k}", justify="right")
    rows = [("all families", report.success, report.pass_at)]
    rows += [(name, rate, report.family_pass_at.get(name, {})) for name, rate in report.by_family.items()]
    for name, rate, chances in rows:
        table.add_row(
            name, interval_text(rate), *(f"{100 * chances[k]:.1f} %" if k in chances else "" for k in report.pass_at)
        )
    if report.first_click.total:
        table.add_row("first click on target", interval_text(report.first_click))
    for cause, count in sorted(report.unscored.items()):
        table.add_row(f"unscored ({cause})", str(count))
    return table


def share_text(rate: Proportion) -> str:
    """`62.1 % [55.8, 68.0]`, the interval in percent."""
    low, high = rate.interval
    return f"{100 * rate.value:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"


def interval_text(rate: Proportion) -> str:
    """`62.1 % [55.8, 68.0] 149/240`, the interval in percent."""
    return f"{share_text(rate)} {rate.hits}/{rate.total}" if rate.total else "no episode has a score"
