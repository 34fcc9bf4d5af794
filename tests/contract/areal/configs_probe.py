"""Runs in AReaL's own environment: the shipped experiments by AReaL's own parser, then our planner.

`python configs_probe.py ROOT CHECKPOINT OUT_FOLDER` writes found.json: for each file and stage "" or what is wrong.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

STAGES = {"embedded_tiny_cpu": (None, "smoke"), "osworld_qwen3vl_4b": (None, "smoke", "smoke-text")}


def main(root: Path, checkpoint: str, out: Path) -> None:
    from deskhand.areal import launch, ports
    from deskhand.areal.settings import WorkflowSettings
    from deskhand.errors import ConfigError

    found: dict[str, str] = {}
    asked: list[int] = []
    extra: dict[str, object] = {"desktops": asked}
    launch.check_bridge = lambda desktops, needed: asked.append(needed)  # there is no bridge in this test
    for path in sorted((root / "configs" / "areal").glob("*.yaml")):
        for stage in STAGES.get(path.stem, (None, "smoke", "smoke-text")):
            words = ["--config", str(path), f"cluster.fileroot={out}", f"actor.path={checkpoint}"]
            words += ["--stage", stage] if stage else []
            try:
                config = launch.load(words)
                settings = WorkflowSettings.of(config.deskhand.workflow, {})
                launch.check(config, settings, launch.rows_of(config)[0])
                found[f"{path.stem} {stage or ''}".strip()] = ""
                if path.stem == "osworld_qwen3vl_4b" and stage == "smoke-text":
                    extra |= {"words": settings.agent.screen, "max_tokens": settings.agent.max_tokens}
            except ConfigError as error:
                found[f"{path.stem} {stage or ''}".strip()] = str(error)
    tiny = [
        "--config",
        str(root / "configs" / "areal" / "embedded_tiny_cpu.yaml"),
        f"cluster.fileroot={out}",
        f"actor.path={checkpoint}",
    ]
    for name, words in {
        "a typo": ["++actor.eps_clipp=1"],
        "a removed key": ["++actor.behave_imp_weight_cap=5"],
        "a ray cluster": ["scheduler.type=ray"],
        "a slurm cluster": ["scheduler.type=slurm"],
        "a group of AReaL": ["gconfig.n_samples=4"],
        "a wrong workflow": ["++deskhand.workflow.groupsize=4"],
    }.items():
        try:
            config = launch.load([*tiny, *words])
            launch.check(config, WorkflowSettings.of(config.deskhand.workflow, {}), launch.rows_of(config)[0])
            found[name] = ""
        except ConfigError as error:
            found[name] = str(error)
    from areal.infra.scheduler.local import LocalScheduler

    extra["slow"] = [
        launch.allow_slow_forks(500.0),
        launch.allow_slow_forks(500.0),
        LocalScheduler._wait_for_fork_ready.__defaults__,
    ]
    by_seed = _drawn_under_one_seed()
    ports.draw_by_chance()
    extra["ports"] = by_seed, _drawn_under_one_seed()
    (out / "found.json").write_text(json.dumps({"found": found, **extra}))


def _drawn_under_one_seed() -> list[list[int]]:
    from areal.utils import network, seeding

    drawn = []
    for _ in range(2):
        seeding.set_random_seed(1, "trainer0")
        drawn.append(network.find_free_ports(3))
    return drawn


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
