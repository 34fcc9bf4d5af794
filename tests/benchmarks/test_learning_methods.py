"""Costs of methods, their intervals, and what they are judged by."""

import dataclasses
import math
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from benchmarks import learning_methods
from benchmarks.learning_curves import BASELINE_COLOR, BOTTOM, METHOD_COLOR, PANEL_HEIGHT, TOP, svg_of
from benchmarks.learning_methods import (
    COMPARED,
    METHODS,
    METHODS_WITH_TEACHER,
    Cost,
    FinishedRun,
    Results,
    cost_of,
    judge,
    print_tables,
    rows_of,
    settings_of,
    write_curves,
)
from benchmarks.thresholds import ROOT, Thresholds
from deskhand.config.load import load_config
from deskhand.recipes.assemble import check_plugins
from deskhand.rollout.success_rates import Proportion

SVG = "{http://www.w3.org/2000/svg}"
RUN = FinishedRun(
    ((300, Proportion(63, 90)), (450, Proportion(72, 90))), 500, 100, Proportion(60, 90), Proportion(72, 90)
)


def missed(ours: Cost, base: Cost) -> list[str]:
    thresholds = Thresholds()
    judge({"grpo": base, "together": ours}, 0.8, thresholds)
    return thresholds.missed


def test_the_interval_of_the_mean_is_students():
    cost = Cost((10, 12, 17), 3)
    deviation = math.sqrt(((10 - 13) ** 2 + (12 - 13) ** 2 + (17 - 13) ** 2) / 2)
    assert cost.interval == pytest.approx((13 - 4.303 * deviation / 3**0.5, 13 + 4.303 * deviation / 3**0.5))
    assert Cost((10,), 1).interval == (0.0, math.inf)


def test_half_the_episodes_with_intervals_apart_pass():
    base = Cost((1000, 1040, 1020), 3)
    assert missed(Cost((480, 500, 490), 3), base) == []
    assert missed(Cost((600, 610, 590), 3), base), "more than half"
    assert missed(Cost((100, 500, 900), 3), base), "intervals that touch"
    assert missed(Cost((480, 500, 490), 2), base), "a seed that never reached the threshold"


def test_a_run_that_did_not_reach_the_threshold_counts_with_all_its_episodes():
    runs = [RUN, dataclasses.replace(RUN, curve=RUN.curve[:1])]
    assert cost_of(runs) == Cost((300, 300), 2)
    assert cost_of(runs, 0.8) == Cost((450, 500), 1)
    assert str(cost_of(runs, 0.8)).startswith(">= 475 [")
    _, *costs, flat, sampled, greedy, episodes = next(iter(rows_of({"grpo": [RUN, RUN]})))
    assert costs == [str(cost_of([RUN, RUN], each)) for each in COMPARED]
    _, first, *others = next(iter(rows_of({"replay": [RUN, RUN]})))
    assert (first, others[:2]) == (costs[0], ["-", "-"]), "a run that ends at the first threshold"
    assert (flat, episodes) == ("20.0%", "500")
    assert (sampled, greedy) == (str(Proportion(120, 180)), str(Proportion(144, 180))), "pooled over the seeds"


@pytest.mark.parametrize("name", [*METHODS, *METHODS_WITH_TEACHER])
def test_the_settings_of_every_method_are_valid(name, tmp_path):
    settings = settings_of(name, tmp_path)
    config = load_config(ROOT / "configs" / "tiny_cpu.yaml", [*learning_methods.FULL, *settings])
    check_plugins(config)
    teacher = config.trainer.distillation
    assert (teacher.teacher if teacher else None) == (None if name in METHODS else str(tmp_path))


def test_a_method_with_a_teacher_has_a_table_of_its_own(capsys):
    print_tables({"grpo": [RUN], "distillation": [RUN]})
    first, second = capsys.readouterr().out.split("with a teacher")
    assert ("| grpo |" in first, "| distillation |" in first, "| distillation |" in second) == (True, False, True)
    with pytest.raises(SystemExit, match="needs --teacher"):
        settings_of("distillation", None)


def test_a_finished_run_is_found_by_its_settings_alone(tmp_path):
    results = Results(tmp_path / "more" / "results.jsonl")
    key = {"method": "grpo", "seed": 1, "settings": ["a=1"]}
    assert results.find(key) is None
    results.add(key | {"seed": 0}, dataclasses.replace(RUN, episodes=7))
    results.add(key, RUN)
    found = Results(results.file).find(key)
    assert found is not None
    assert found[0] == RUN
    assert results.machine["commit"] in found[1]
    assert results.find(key | {"settings": ["a=2"]}) is None


def test_the_chart_shows_every_seed_and_the_baseline_behind_it(tmp_path, capsys):
    file = tmp_path / "methods.svg"
    write_curves({"grpo": [RUN, RUN], "replay": [dataclasses.replace(RUN, curve=((100, Proportion(27, 90)),))]}, file)
    assert str(file) in capsys.readouterr().out
    baseline, replay = ElementTree.parse(file).getroot().findall(f"{SVG}g")
    colors = [[line.get("stroke") for line in panel.iter(f"{SVG}polyline")] for panel in (baseline, replay)]
    assert colors == [[METHOD_COLOR] * 2, [BASELINE_COLOR] * 2 + [METHOD_COLOR]]
    ends = [[dot.get("fill") for dot in panel.iter(f"{SVG}circle")] for panel in (baseline, replay)]
    assert ends == colors, "a run of one evaluation shows as a dot"
    _, ys = points_of(baseline)
    bottom = PANEL_HEIGHT - BOTTOM
    assert ys[:2] == pytest.approx([bottom - (bottom - TOP) * (each - 0.25) / 0.75 for each in (0.7, 0.8)], abs=0.1)


def test_half_the_episodes_is_the_same_distance_everywhere_in_the_chart():
    curve = [(0, 0.4), (100, 0.5), (200, 0.6), (400, 0.7), (1600, 0.8)]
    xs, _ = points_of(ElementTree.fromstring(svg_of({"grpo": [curve]}, "grpo", 0.65)))
    assert len(xs) == 4, "an evaluation before any training has no place on a logarithmic axis"
    width = (xs[3] - xs[0]) / 4
    assert [b - a for a, b in pairwise(xs)] == pytest.approx([width, width, 2 * width], abs=0.2)


def points_of(panel: ElementTree.Element) -> tuple[list[float], list[float]]:
    """Return the coordinates of all lines, across and down."""
    pairs = [pair.split(",") for line in panel.iter(f"{SVG}polyline") for pair in line.get("points", "").split()]
    return [float(x) for x, _ in pairs], [float(y) for _, y in pairs]
