"""Episodes of groups for the scheduler, and the alerts that single episodes raise. Used by `recipes.training_loop`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import structlog

from deskhand.config.loop import HealthConfig
from deskhand.recipes.health import all_errored_alert, no_signal_alert, solved_at_start_alert
from deskhand.recipes.health_rules import Alert
from deskhand.recipes.step_report import FamilyShares, StepAccumulator
from deskhand.rollout.episode import errored_result
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.rollout.groups import EpisodeRequest, Group, GroupBuffer
from deskhand.rollout.run_writer import RunWriter
from deskhand.rollout.success_statistics import SuccessStatistics
from deskhand.tasks.outcome import Errored

log = structlog.get_logger()


class GroupSource:
    """Episode source of the scheduler: requests from groups, results to the run."""

    def __init__(
        self,
        groups: GroupBuffer,
        writer: RunWriter,
        statistics: SuccessStatistics,
        alerts: EpisodeAlerts,
        on_untrained: Callable[[Iterable[EpisodeResult]], None] = lambda results: None,
    ) -> None:
        self.groups = groups
        self.writer = writer
        self.statistics = statistics
        self.alerts = alerts
        self._on_untrained = on_untrained
        """Called with the scored episodes of a group that will not be trained."""
        self.exhausted = False
        self.since_step = StepAccumulator()
        self.shares = FamilyShares()
        self.group_completed = asyncio.Event()

    async def next(self) -> EpisodeRequest | None:
        found = None if self.exhausted else self.groups.next_request()
        if found is None:
            return None
        request, opened = found
        if opened is not None:
            self.shares.started[opened.task.family] += 1
        try:
            await self.writer.start(request, opened)
        except asyncio.CancelledError:
            await self.on_result(errored_result(request, "cancelled", "the run was stopped"))
            raise
        return request

    async def on_result(self, result: EpisodeResult) -> None:
        self.statistics.add(result)
        completed = self.groups.finish(result)
        if completed is not None:
            self.statistics.add_group(completed)
            self.shares.completed[completed.task.family] += 1
        self.since_step.add(result, completed)
        if completed is not None and completed.state == "closed" and completed.scored:
            self.shares.zero_variance[completed.task.family] += 1
        await self.writer.finish(result, completed)
        if isinstance(result.outcome, Errored):
            fields = {"episode": result.episode_id, "task": result.task_id, "cause": result.outcome.cause}
            log.warning("episode.errored", **fields, message=result.outcome.message, **await self.writer.check())
        if completed is not None:
            self.group_completed.set()
            if completed.state == "closed":
                self._on_untrained(completed.scored)
        self.alerts.episode_ended(result, completed, self.since_step)


class EpisodeAlerts:
    """Raises the alerts that do not wait for a step: about single tasks, and about groups without signal.

    `step` returns the training steps so far; `on_alert` is called with each alert.
    """

    def __init__(self, health: HealthConfig, step: Callable[[], int], on_alert: Callable[[Alert], None] | None) -> None:
        self._health, self._step, self.on_alert = health, step, on_alert
        self._raised: set[tuple[str, str]] = set()
        """(metric, family) of the alerts that are raised once per family."""
        self._since: StepAccumulator | None = None
        self._num_judged = 0
        """Groups of `_since` when they were last judged; results that end together are counted before any is judged."""

    def episode_ended(self, result: EpisodeResult, completed: Group | None, since: StepAccumulator) -> None:
        """Check a result, the group that it completed, and what ended since the last step."""
        if result.solved_without_action:
            self._raise(solved_at_start_alert(result.family), result.family)
        if completed is None:
            return
        if since is not self._since:
            self._since, self._num_judged = since, 0
        if since.num_groups - self._num_judged >= self._health.no_signal_groups:
            self._num_judged = since.num_groups
            alert = no_signal_alert(since.num_zero_variance, since.num_groups, since.mean_reward, self._health)
            if alert is not None:
                self._raise(alert)
        if completed.state != "closed":
            return
        outcome = result.outcome
        if not completed.scored and isinstance(outcome, Errored) and outcome.cause != "cancelled":
            self._raise(all_errored_alert(result.family, len(completed.errored), outcome.message), result.family)

    def _raise(self, alert: Alert, family: str = "") -> None:
        """Raise an alert; one about a family only once."""
        if family and (alert.metric, family) in self._raised:
            return
        self._raised.add((alert.metric, family))
        log.warning("health.alert", step=self._step(), **alert.to_dict())
        if self.on_alert is not None:
            self.on_alert(alert)
