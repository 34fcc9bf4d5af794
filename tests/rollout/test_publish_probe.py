"""After every update the engine samples from the weights that it was sent, adapters included; a sound run is quiet."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import training_fixture

from deskhand.config.trainer import LoraConfig, PolicyConfig
from deskhand.engines.hf.decode_batch import DecodeBatch
from deskhand.engines.hf.prefix_cache import PrefixCache
from deskhand.errors import HealthError
from deskhand.trainer import policy as policy_module
from deskhand.types import LoraWeights

LORA: dict[str, Any] = {"policy": PolicyConfig(lora=LoraConfig(rank=4, alpha=16))}


async def alerts(folder, steps=2, **options):
    """Reports of a run and the metrics with an alert."""
    reports = []
    settings = {"learning_rate": 1e-3}
    config = training_fixture.small(total_steps=steps)
    async with training_fixture.assembled(
        folder, config, progress=reports.append, settings=settings, **options
    ) as parts:
        await parts.loop.run()
    return reports, {alert.metric for report in reports for alert in report.alerts}


@pytest.mark.parametrize("options", [{}, LORA], ids=["full weights", "adapter"])
async def test_a_sound_run_is_quiet_although_weights_arrive_in_the_middle_of_replies(tmp_path, options):
    reports, raised = await alerts(tmp_path / "run", 3, **options)
    assert raised == set()
    for report in reports:
        assert report.metrics["policy/publish_kl"] < 1e-10
        assert report.metrics.get("train/engine_kl_images", 0.0) < 1e-10
        phases = [
            report.metrics.get(f"time/{name}", 0.0)
            for name in ("rollout_wait", "train_step", "publish", "publish_probe")
        ]
        assert 0 < sum(phases) <= report.metrics["time/step"]


async def test_an_adapter_without_its_scale_is_noticed_at_the_first_update(tmp_path, monkeypatch):
    extract = policy_module.extract_lora

    def unscaled(model, config):
        found = extract(model, config)
        return LoraWeights(found.weights, {**found.config, "lora_alpha": found.config["r"]})

    monkeypatch.setattr(policy_module, "extract_lora", unscaled)
    reports, _ = await alerts(tmp_path / "run", **LORA)
    assert "policy/publish_kl" in {alert.metric for alert in reports[0].alerts}


async def test_keys_and_values_of_older_weights_are_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(PrefixCache, "clear", lambda self: None)
    _, raised = await alerts(tmp_path / "run")
    assert "policy/publish_kl" in raised


async def test_an_engine_that_keeps_its_version_stops_the_run(tmp_path, monkeypatch):
    take = DecodeBatch._take
    monkeypatch.setattr(
        DecodeBatch, "_take", lambda self, rows, sampler, logits, version: take(self, rows, sampler, logits, 0)
    )
    with pytest.raises(HealthError, match=r"invariant published_version: .* version 1 .* versions \[0\]"):
        await alerts(tmp_path / "run")


async def test_probes_that_fail_in_a_row_stop_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(DecodeBatch, "load_weights", lambda self, weights, targets: self.clear_caches(True))
    with pytest.raises(HealthError, match="invariant published_weights: in the last 3 updates"):
        await alerts(tmp_path / "run", 8)


async def test_a_stale_share_is_reported(tmp_path):
    reports, _ = await alerts(tmp_path / "run", 1)
    assert reports[0].metrics["episodes/stale_frac"] == 0.0
    assert dataclasses.asdict(reports[0])["metrics"]["replies/mean_tokens"] > 0
