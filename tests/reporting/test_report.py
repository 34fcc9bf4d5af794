"""The one-file report: hostile text stays text, nothing is asked of the network, and every figure in it is one that
was given."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html.parser
import io
import json
import re
from pathlib import Path

import pytest
from PIL import Image

from deskhand.errors import ConfigError
from deskhand.reporting import charts, html_report, time_charts
from deskhand.reporting.charts import EvaluationView
from deskhand.reporting.html_report import ReportView
from deskhand.rollout.eval_loop import EvalReport
from deskhand.rollout.success_rates import Proportion

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&<!--]]>"


def png() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (32, 24), (10, 20, 30)).save(buffer, "PNG")
    return buffer.getvalue()


def training_step(step: int, reward: float | None, success: float | None, elapsed_s: float) -> dict:
    return {
        "step": step,
        "version": step,
        "train/num_episodes": 16,
        "perf/episodes_per_minute": 120.0,
        "reward/mean": reward,
        "reward/success_rate": success,
        "episodes/errored_frac_total": 0.125,
        "time/elapsed": elapsed_s,
    }


def evaluation(label: str, step: int, hits: int, text: str, *, own: bool = True, total: int = 8) -> EvaluationView:
    rate = Proportion(hits, total)
    return EvaluationView(label, step, step, EvalReport(label, rate, {text: rate}, rate, 0.5), own=own)


def sample(text: str = "Press Save") -> ReportView:
    token = {"text": text, "logprob": -0.25, "version": 3}
    step = {"frame": "aa", "text": text, "tokens": [token], "marks": [], "error": text}
    return ReportView(
        title=text,
        facts={text: text},
        steps=(training_step(1, 0.5, 0.25, 95.0),),
        evaluations=(
            evaluation("before", 0, 4, text),
            evaluation("after", 1, 7, text),
            evaluation(text, 0, 4, text, own=False),
        ),
        episodes=({"id": text, "instruction": text, "steps": [step], "last_frame": "bb"},),
        frames={"aa": png(), "bb": png()},
        episode_counts={text: 3},
        num_hidden_episodes=2,
        updates=(),
    )


class Elements(html.parser.HTMLParser):
    """What a browser would make of the page: elements with their attributes, and text per script."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self.open = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.open = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.open = ""

    def handle_data(self, data: str) -> None:
        if self.open == "script":
            self.scripts[-1] += data
        else:
            self.text += data


def data_of(page: str) -> dict:
    return json.loads(Elements(page).scripts[0])


def test_the_time_of_steps_is_shown_by_part() -> None:
    times = {"time/rollout_wait": 6.0, "time/train_step": 3.0, "time/publish": 1.0, "time/other": -1e-9}
    steps = [{**training_step(n, 0.5, 0.5, 9.0 * n), "time/step": 10.0, **times} for n in range(1, 151)]
    chart = Elements(time_charts.step_times(steps)).elements
    bars = [attributes for tag, attributes in chart if tag == "rect"]
    assert len(bars) == 50 * len(time_charts.PHASES), "three steps each"
    heights = [float(str(bar["height"])) for bar in bars[:4]]
    assert heights == pytest.approx([heights[0], heights[0] / 2, heights[0] / 6, 0.0], abs=0.1)
    page = html_report.render(dataclasses.replace(sample(), steps=tuple(steps)))
    assert "Time of a step" in page
    assert "steps 1 to 3, mean: training 3 s" in page
    assert "Time of a step" not in html_report.render(sample()), "earlier runs did not measure it"


def test_what_engine_and_episodes_did_during_the_steps_is_shown_with_their_time() -> None:
    times = {
        "time/step": 10.0,
        "time/rollout_wait": 6.0,
        "time/train_step": 4.0,
        "perf/busy_slots_frac": 0.75,
        "time/engine_vision": 1.0,
        "time/engine_prefill": 1.5,
        "time/engine_decode": 2.5,
        "time/episode_setup": 0.5,
        "time/episode_solve": 1.0,
        "time/episode_model": 0.25,
        "time/episode_judge": 0.5,
    }
    steps = [{**training_step(n, 0.5, 0.5, 9.0 * n), **times} for n in (1, 2)]
    chart = time_charts.mean_times(steps)
    text = Elements(chart).text
    for title in ("a step, 10 s", "engine, busy 50 %", "episode slots, busy 75 %", "an episode, 2 s"):
        assert title in text
    for part in ("vision 1 s", "decode 2.5 s", "model 0.25 s", "acting 0.75 s", "judge 0.5 s"):
        assert part in text
    widths = [
        float(str(attributes["width"]))
        for tag, attributes in Elements(chart).elements
        if tag == "rect" and str(attributes["class"]).startswith("share")
    ]
    assert widths[0] / widths[4] == pytest.approx(6, abs=0.15), "six seconds of waiting, one of the vision tower"
    assert chart in html_report.render(dataclasses.replace(sample(), steps=tuple(steps)))
    unmeasured = [{name: value for name, value in step.items() if "engine" not in name} for step in steps]
    assert "engine" not in time_charts.mean_times(unmeasured)


def test_hostile_text_never_becomes_markup() -> None:
    plain, hostile = Elements(html_report.render(sample())), Elements(html_report.render(sample(HOSTILE)))
    assert [tag for tag, _ in hostile.elements] == [tag for tag, _ in plain.elements]
    assert not [
        attribute for _, attributes in hostile.elements for attribute in attributes if attribute.startswith("on")
    ]
    assert len(hostile.scripts) == 2
    assert hostile.scripts[1] == plain.scripts[1]


def test_hostile_text_arrives_unchanged_in_the_data() -> None:
    episode = data_of(html_report.render(sample(HOSTILE)))["episodes"][0]
    assert episode["instruction"] == episode["steps"][0]["text"] == episode["steps"][0]["tokens"][0]["text"] == HOSTILE


def test_the_script_builds_no_markup_from_text() -> None:
    script = Elements(html_report.render(sample())).scripts[1]
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", script)


def test_the_page_allows_its_own_script_only_and_no_request() -> None:
    page = Elements(html_report.render(sample()))
    policy = next(attributes["content"] for tag, attributes in page.elements if attributes.get("http-equiv"))
    assert policy is not None
    digest = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    links = [
        value
        for _, attributes in page.elements
        for name, value in attributes.items()
        if name in ("src", "href", "action")
    ]
    assert not links


def test_screenshots_are_in_the_data_and_decode() -> None:
    frames = data_of(html_report.render(sample()))["frames"]
    assert sorted(frames) == ["aa", "bb"]
    assert base64.b64decode(frames["aa"].removeprefix("data:image/png;base64,")) == png()


def test_the_page_states_the_figures_that_it_was_given() -> None:
    text = Elements(html_report.render(sample())).text
    for expected in ("50 %", "88 %", "+38 points, 8 episodes each", "4/8", "7/8", "1 min 35 s", "2 more", "12 %"):
        assert expected in text, expected


def test_another_policy_has_a_row_of_its_own_and_no_place_on_the_learning_curve() -> None:
    page = html_report.render(sample("oracle"))
    assert page.count('class="whisker') == 2
    assert re.search(r"<td>oracle</td><td>held out</td><td>50 %</td><td>22 % to 78 %</td><td>8</td>", page)
    alone = dataclasses.replace(sample("oracle"), steps=(), evaluations=sample("oracle").evaluations[2:])
    assert "Learning curve" not in html_report.render(alone)
    assert "<td>oracle</td>" in html_report.render(alone)


def test_a_step_before_which_no_episode_ended_has_no_reward_and_no_dot() -> None:
    """Not a reward of zero."""
    view = sample()
    page = html_report.render(dataclasses.replace(view, steps=(*view.steps, training_step(2, None, None, 96.0))))
    assert page.count('class="dot success"') == 1
    assert re.search(r"<td>2</td><td>2</td><td>1 min 36 s</td><td>16</td><td>120.0</td><td></td><td></td>", page)


def test_the_updates_of_a_warm_start_are_its_steps() -> None:
    page = html_report.render(
        dataclasses.replace(sample(), steps=(), updates=({"step": 2, "loss": 0.25}, {"step": 4, "loss": 0.125}))
    )
    assert "No training steps yet" not in page
    assert "<tr><td>4</td><td>0.125</td></tr>" in page


def test_sides_of_different_sizes_are_both_named() -> None:
    view = sample()
    evaluations = (evaluation("before", 0, 3, "a", total=6), *view.evaluations[1:])
    assert "6 and 8 episodes" in html_report.render(dataclasses.replace(view, evaluations=evaluations))


def test_an_evaluation_without_a_score_has_no_number() -> None:
    none, after, other = (
        evaluation("before", 0, 0, "a", total=0),
        evaluation("after", 1, 7, "a"),
        sample().evaluations[2],
    )
    for evaluations in ((none,), (none, after), (dataclasses.replace(other, report=none.report),)):
        page = html_report.render(dataclasses.replace(sample(), evaluations=evaluations))
        assert "nan" not in page.split("<body>")[1].split("<script")[0]
        assert "–" in Elements(page).text


def test_a_run_without_any_result_still_has_a_report() -> None:
    page = html_report.render(ReportView("empty"))
    assert "No training steps yet." in page
    assert data_of(page) == {"episodes": [], "groups": {}, "frames": {}}


def test_a_run_before_its_last_evaluation_shows_the_first() -> None:
    view = sample()
    page = html_report.render(ReportView("half", {}, view.steps, view.evaluations[:1]))
    assert "50 % (4/8, 95 % interval 22 % to 78 %)" in Elements(page).text


def test_a_report_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = html_report.write(sample(), tmp_path / "deep" / "report.html")
    assert path.read_text().endswith("</html>\n")
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]


def test_a_report_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ConfigError, match=r"file/report\.html: the report cannot be written .*choose another path"
    ) as caught:
        html_report.write(sample(), tmp_path / "file" / "report.html")
    assert "\n" not in str(caught.value)


def test_the_axis_has_at_most_nine_ticks() -> None:
    for last in (1, 5, 8, 9, 40, 77, 333, 9999):
        ticks = charts.step_ticks(last)
        assert 2 <= len(ticks) <= 9
        assert ticks[0] == 0
        assert ticks[-1] <= last


def test_smoothing_starts_at_the_first_value_and_keeps_a_constant() -> None:
    assert charts.smoothed([0.5, 0.5, 0.5]) == pytest.approx([0.5, 0.5, 0.5])
    assert charts.smoothed([1.0, 0.0])[1] == pytest.approx(1 - charts.SMOOTHING)
