"""Metrics go to TensorBoard and, if configured, to Weights & Biases; neither can stop a run."""

import sys

import pytest

from deskhand.errors import ConfigError
from deskhand.store.metrics import WandbRun
from deskhand.store.run import Run

STAND_IN = """
import json, pathlib
class _Run:
    def __init__(self, settings):
        self.file = pathlib.Path(settings["dir"]) / "sent.jsonl"
        self.note({key: settings[key] for key in ("project", "id", "name", "resume", "config")})
    def note(self, entry):
        with self.file.open("a") as file:
            file.write(json.dumps(entry) + "\\n")
    def log(self, values, step):
        if values.get("fail"):
            raise ConnectionError("the network\\nis away")
        self.note({"step": step, **values})
    def finish(self):
        self.note("finished")
def init(**settings):
    if settings["project"] == "refused":
        raise RuntimeError("no API key\\nconfigured")
    return _Run(settings)
"""
"""What is used of wandb's public interface: `init(project, id, name, dir, resume, config)`, `Run.log(values, step)`,
`Run.finish()`."""


@pytest.fixture
def wandb(tmp_path, monkeypatch):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "wandb.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    yield
    sys.modules.pop("wandb", None)


def sent(folder):
    import json

    return [json.loads(line) for line in (folder / "sent.jsonl").read_text().splitlines()]


def test_wandb_gets_flat_metrics_and_a_resumed_run_keeps_its_id(tmp_path, wandb):
    for step in (1, 2):
        run = Run.create(tmp_path / "run", {}) if step == 1 else Run.open(tmp_path / "run")
        with run:
            run.track(WandbRun(run.folder, "deskhand", {"seed": 3}))
            run.commit(
                counts={},
                metrics=[{"step": step, "reward": 0.5, "vitals": {"entropy": 0.1}, "alarms": [], "name": "x"}],
            )
    first, one, ended, again, two, _ = sent(tmp_path / "run")
    assert first == again
    assert first["config"] == {"seed": 3}
    assert first["resume"] == "allow"
    assert one == {"step": 1, "reward": 0.5, "vitals/entropy": 0.1}
    assert two["step"] == 2
    assert ended == "finished"


def test_a_tracker_that_fails_does_not_stop_the_run(tmp_path, wandb):
    with Run.create(tmp_path / "run", {}) as run:
        run.track(WandbRun(run.folder, "deskhand", {}))
        run.commit(counts={}, metrics=[{"step": 1, "fail": 1}])
        assert [entry["step"] for entry in run.metrics()] == [1]


def test_whatever_a_tracker_raises_the_run_goes_on_and_is_closed(tmp_path):
    class Broken:
        def add(self, step, metrics):
            raise TypeError("a package of another version")

        def close(self):
            raise RuntimeError("the network is away")

    with Run.create(tmp_path / "run", {}) as run:
        run.track(Broken())
        run.commit(counts={}, metrics=[{"step": 1}])
        assert [entry["step"] for entry in run.metrics()] == [1]
    Run.open(tmp_path / "run").close()  # its lock was given back


def test_what_is_missing_is_one_line_with_the_mend(tmp_path, wandb, monkeypatch):
    with pytest.raises(ConfigError, match=r"no API key configured; run wandb login") as refused:
        WandbRun(tmp_path, "refused", {})
    assert "\n" not in str(refused.value)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"pip install 'deskhand\[wandb\]'"):
        WandbRun(tmp_path, "deskhand", {})


def test_tensorboard_is_written_by_default(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with Run.create(tmp_path / "run", {}) as run:
        run.commit(counts={}, metrics=[{"step": 1, "reward": 0.25, "vitals": {"sight": 0.75, "mismatch_kl": None}}])
    events = EventAccumulator(str(tmp_path / "run/tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"step", "reward", "vitals/sight"}
    assert events.Scalars("vitals/sight")[0].value == 0.75
