"""The shipped experiments load by AReaL's own parser and add up; what is wrong in one is told before anything
starts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from areal_cpu_server import ROOT


@pytest.fixture(scope="module")
def parsed(found):
    return found["parsed"].result()


def test_every_shipped_experiment_and_profile_loads_and_adds_up(parsed):
    shipped = {name: said for name, said in parsed["found"].items() if not name.startswith("a ")}
    assert len(shipped) == 11
    assert set(shipped.values()) == {""}, shipped


def test_every_key_that_areal_knows_can_be_set_where_the_file_lacks_it(parsed):
    assert parsed["found"]["a LoRA"] == ""
    assert parsed["unset"]["count"] > 200
    assert parsed["unset"]["unchanged"]


def test_ray_and_slurm_are_taken_by_areal_s_parser(parsed):
    assert parsed["found"]["a ray cluster"] == parsed["found"]["a slurm cluster"] == ""


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("a typo", "Key 'eps_clipp' not in"),
        ("a typo in no section", "Key 'actr' not in"),
        ("a removed key", "rejection_sampling"),
        ("a group of AReaL", "gconfig.n_samples"),
        ("a wrong workflow", "groupsize"),
        ("a reference model", "ref.attn_impl sdpa"),
    ],
)
def test_problems_are_reported(parsed, name, word):
    assert word in parsed["found"][name]


def test_a_text_profile_shows_no_images_and_keeps_the_other_settings(parsed):
    assert parsed["words"] == "a11y_tree"
    assert parsed["max_tokens"] == 512


def test_the_command_line_wins_over_the_profile_in_areal_s_parser(parsed):
    assert parsed["told"] == [6, 4]


def test_a_server_must_have_as_many_desktops_as_concurrent_episodes(parsed):
    assert parsed["desktops"] == [64, 4, 4, 16, 4, 4, 4, 2, 2, 64]


def test_forked_workers_may_take_longer_and_a_second_change_is_refused(parsed):
    assert parsed["slow"] == [True, False, [500.0]]


def test_a_worker_that_is_forked_is_ours_unless_it_is_a_proxy(parsed):
    assert parsed["forked"] == [
        "deskhand.integrations.areal.worker",
        "areal.experimental.openai.proxy.proxy_rollout_server",
    ]


def test_a_worker_that_ended_is_not_taken_for_who_answers_at_its_port(parsed):
    assert "WorkerFailedError: Worker 'actor/0' failed with exit code 1" in parsed["dead"]


def test_two_runs_of_one_seed_draw_ports_of_their_own(parsed):
    by_seed, by_chance = parsed["ports"]
    assert by_seed[0] == by_seed[1], "AReaL draws other ports in every run by now: areal.ports is not needed any more"
    assert by_chance[0] != by_chance[1]


def test_the_doctor_reports_what_is_there_and_fixes_nothing_if_nothing_is_missing(parsed):
    code, said, trouble = parsed["doctor"]
    assert code == 0, said + trouble
    assert not [line for line in said.splitlines() if line.startswith("done")]
    assert "ok    areal" in said
    assert "ok    proxy" in said


def test_the_doctor_names_the_script_where_there_is_no_environment(tmp_path):
    environment = {**os.environ, "DESKHAND_VENV_DIR": str(tmp_path)}
    words = [sys.executable, "-m", "deskhand", "areal", "doctor"]
    done = subprocess.run(words, env=environment, check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert "scripts/environment areal" in done.stdout
