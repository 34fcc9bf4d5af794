"""Publish probe: whether the engine samples from the weights that it was just sent.

Used by `recipes.training_loop` after every weight update, adapters included, and after a resume. The engine continues
recorded prompts, screenshots included; the trainer scores what it sampled under the same weights. Cached keys and
values of older weights, a wrong adapter scale, or a tensor that was not sent make the log-probs differ.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor

import numpy as np

from deskhand.agents.seeding import call_seed
from deskhand.algorithms.objective import kl_estimate
from deskhand.config.loop import HealthConfig
from deskhand.errors import HealthError
from deskhand.recorder.graph import Call, CallGraph
from deskhand.recorder.renderer import ChatRenderer
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.rollout.run_writer import load_result
from deskhand.store.run import TRAIN, Run
from deskhand.trainer.policy import Policy
from deskhand.types import Completion, Engine, PreparedImage, Prompt, Sampling


class PublishProbe:
    """Compares engine and policy. `images` are those of the recorded prompts; `executor` runs the policy."""

    def __init__(
        self,
        engine: Engine,
        policy: Policy,
        images: Mapping[str, PreparedImage],
        renderer: ChatRenderer,
        bounds: HealthConfig,
        executor: Executor | None = None,
    ) -> None:
        self.executor = executor
        self.engine, self.policy, self.images, self.renderer, self.bounds = engine, policy, images, renderer, bounds

    async def run(self, version: int, results: Sequence[EpisodeResult]) -> float | None:
        """Return the mean divergence of engine and policy in nats per token; None without a recorded prompt.

        Raises `HealthError` if the engine samples with another version.
        """
        calls = _choose(results, self.bounds.publish_probe_samples)
        done = await asyncio.gather(*(self._continue(call, version) for call in calls))
        versions = {number for one in done for number in one.versions}
        if versions - {version}:
            raise HealthError(
                f"invariant published_version: after the update to weights version {version} the engine samples with "
                f"versions {sorted(versions)}; restart the engine"
            )
        graphs = [
            CallGraph([Call(call.id, None, call.prompt_ids, call.spans, one, call.temperature)])
            for call, one in zip(calls, done, strict=True)
        ]
        rows = [row for graph in graphs for row in graph.sequences()]
        if not rows:
            return None
        shown = {span.sha256: self.images[span.sha256] for row in rows for span in row.spans}
        working = asyncio.get_running_loop().run_in_executor(self.executor, self.policy.logprobs, rows, shown)
        scored = np.concatenate(await working)
        sampled = np.concatenate([np.asarray(row.logprobs, np.float32)[np.asarray(row.loss_mask)] for row in rows])
        return float(np.mean(kl_estimate(scored, sampled)))

    async def check_resumed(self, version: int, run: Run, step: int) -> None:
        """Check that the engine has the restored weights. Raises `HealthError` if it has not.

        The prompts are those of the probe before the interruption, so the engine's caches become the same, too.
        """
        rows = await asyncio.to_thread(run.episodes, TRAIN, "trained")
        results = [await asyncio.to_thread(load_result, run, row.id) for row in rows if row.step == step]
        found, bound = await self.run(version, results), self.bounds.max_engine_kl_images
        if found is not None and bound is not None and not found <= bound:
            raise HealthError(
                f"step {step}: invariant published_weights: after the resume engine and trainer differ by {found:.2g} "
                f"nats per token (loop.health.max_engine_kl_images: {bound:g}); restart the engine"
            )

    async def _continue(self, call: Call, version: int) -> Completion:
        prompt = Prompt(call.prompt_ids, call.spans, {span.sha256: self.images[span.sha256] for span in call.spans})
        sampling = Sampling(
            self.bounds.publish_probe_tokens,
            call.temperature,
            stop_ids=self.renderer.stop_ids,
            banned_ids=self.renderer.banned_ids,
            seed=call_seed("publish probe", version, len(call.prompt_ids)),
        )
        return await self.engine.generate(prompt, sampling)


def _choose(results: Sequence[EpisodeResult], count: int) -> list[Call]:
    """Return the last call of the first `count` episodes in an order that does not depend on the process. Their
    prompts are the longest, and the engine has most likely cached them."""
    ordered = sorted(results, key=lambda result: (result.task_id, result.member))
    graphs = [result.graph for result in ordered if result.graph.ids][:count]
    calls = [graph.get(graph.ids[-1]) for graph in graphs]
    return [call for call in calls if call.temperature > 0]
