"""The viewer's requests: pages of episodes, what an episode, a call and a group hold, running and damaged runs."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest
from command_line import called
from viewer_client import client_of, get

from benchmarks.generated_run import GROUP_SIZE, HOSTILE, extend, generate
from deskhand.algorithms.grpo import group_advantages
from deskhand.rollout.run_writer import load_result
from deskhand.store.run import TRAIN, Run
from deskhand.tasks.outcome import Finding, Outcome, Scored

EPISODES = 192


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = generate(tmp_path_factory.mktemp("viewer") / "run", EPISODES)
    with Run.open(folder, read_only=True) as run:
        yield run


@pytest.fixture
async def client(run: Run) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(run) as client:
        yield client


def failed_of(outcome: Outcome) -> tuple[Finding, ...]:
    """The clauses that did not hold; none of an episode without a score."""
    return outcome.failed if isinstance(outcome, Scored) else ()


async def test_pages_of_episodes_are_all_episodes_once(client: httpx2.AsyncClient, run: Run) -> None:
    for sort in ("started_at", "reward", "steps", "family"):
        seen: list[str] = []
        for offset in range(0, 400, 50):
            found = await get(client, "/runs/0/episodes", offset=offset, limit=50, sort=sort, descending=1)
            seen += [row["id"] for row in found["rows"]]
        assert sorted(seen) == sorted(row.id for row in run.episodes())
        assert found["total"] == len(seen)
    rewards = [row["reward"] for row in (await get(client, "/runs/0/episodes", sort="reward", descending=1))["rows"]]
    assert rewards == sorted(rewards, reverse=True)


async def test_episodes_are_found_by_each_filter(client: httpx2.AsyncClient, run: Run) -> None:
    rows = run.episodes()

    async def ids(**parameters: Any) -> set[str]:
        found = await get(client, "/runs/0/episodes", limit=500, **parameters)
        assert found["total"] == len(found["rows"])
        return {row["id"] for row in found["rows"]}

    assert await ids(family="sheet_sum") == {row.id for row in rows if row.family == "sheet_sum"}
    assert await ids(phase="version-0") == {row.id for row in rows if row.phase == "version-0"}
    assert (
        await ids(outcome="errored")
        == {row.id for row in rows if row.state == "errored"}
        == await ids(cause="infrastructure")
    )
    assert await ids(outcome="success") == {row.id for row in rows if row.value == 1}
    assert await ids(outcome="failure") == {row.id for row in rows if row.value is not None and row.value < 1}
    assert await ids(version=2) == {row.id for row in rows if row.version_max == 2}
    assert await ids(task="terminal_run/3") == {row.id for row in rows if "terminal_run/3" in row.task_id}
    group = next(row.group_id for row in rows if row.group_id)
    assert await ids(group=group) == {row.id for row in run.episodes(group_id=group)}
    assert await ids(text=rows[7].id[:12]) == {rows[7].id}
    results = {row.id: load_result(run, row.id).outcome for row in rows}
    unsaved = {name for name, outcome in results.items() if any(one.read == "no file" for one in failed_of(outcome))}
    assert await ids(reason="the file is saved") == unsaved
    alerted = {entry["step"] for entry in run.metrics() if entry["alerts"]}
    assert await ids(alert="train/entropy") == {row.id for row in rows if row.step in alerted}
    assert await ids(text="100%_") == set()
    assert await ids(text="x' OR 1=1 --") == set()


@pytest.mark.parametrize(
    "query",
    "sort=record sort=id;DROP%20TABLE limit=0 limit=501 offset=-1 offset=x version=new outcome=won".split(),  # noqa: SIM905
)
async def test_a_wrong_query_is_one_line(client: httpx2.AsyncClient, query: str) -> None:
    reply = await client.get(f"/api/runs/0/episodes?{query}")
    assert reply.status_code == 400
    assert re.match(rf"{query.split('=')[0]}: must be ", reply.json()["error"])


async def test_an_episode_says_why_it_failed_and_how_it_was_trained(client: httpx2.AsyncClient, run: Run) -> None:
    row = next(row for row in run.episodes(TRAIN, "trained") if row.value == 0)
    found = await get(client, f"/runs/0/episodes/{row.id}")
    result = load_result(run, row.id)
    first = found["findings"][0]
    assert (first["clause"], first["expected"], first["value"]) == (
        "the title of the document",
        "Quarterly report",
        0.0,
    )
    assert first["read"] in ("Quartely report", HOSTILE)
    assert found["milestones"] == [{"name": "opened", "value": 1.0, "step": 0}]
    assert [step["frame"] for step in found["steps"]] == [step.frame_sha256 for step in result.steps]
    members = [one for one in run.episodes(group_id=row.group_id) if one.reward is not None]
    expected = dict(zip((one.id for one in members), group_advantages([one.reward for one in members]), strict=True))
    assert found["advantage"] == pytest.approx(expected[row.id])
    assert f"{len(members)} rewards" in found["explained"]
    assert [call["id"] for call in found["calls"]] == result.graph.ids
    assert max(call["sequence"] for call in found["calls"]) == len(result.graph.sequences())


async def test_a_call_has_the_messages_as_the_model_read_them_and_its_tokens(
    client: httpx2.AsyncClient, run: Run
) -> None:
    results = (load_result(run, row.id) for row in run.episodes(TRAIN))
    result = next(one for one in results if len(one.graph.ids) > 2 and len(one.graph.sequences()) == 1)
    call = result.graph.calls[1]
    found = await get(client, f"/runs/0/episodes/{result.episode_id}/calls/1")
    text = "".join(part.get("text", "[image]") for turn in found["turns"] for part in turn["parts"])
    user = (
        "<|im_start|>user\n<|vision_start|>[image]<|vision_end|>Rename the document<|im_end|>\n<|im_start|>assistant\n"
    )
    assert text.startswith(f"<|im_start|>system\nUse the computer.<|im_end|>\n{user}")
    assert text.endswith(f"<|im_end|>\n{user}")
    roles = [(turn["role"], turn["is_known"]) for turn in found["turns"]]
    known = [("system", True), ("user", True), ("assistant", True)]
    assert roles == [*known, ("", False), ("user", False), ("assistant", False)]
    images = [part["image"] for turn in found["turns"] for part in turn["parts"] if "image" in part]
    assert images == [span.sha256 for span in call.spans] == [step.frame_sha256 for step in result.steps[:2]]
    assert [token["logprob"] for token in found["tokens"]] == list(call.completion.logprobs)
    assert "".join(token["text"] for token in found["tokens"]).endswith("<|im_end|>")
    assert all(token["entropy"] >= 0 for token in found["tokens"])
    assert (await client.get(f"/api/runs/0/episodes/{result.episode_id}/calls/99")).status_code == 404


@pytest.mark.parametrize("without", ["package", "file"])
async def test_without_a_tokenizer_everything_else_is_shown(tmp_path: Path, monkeypatch: Any, without: str) -> None:
    config = {"model": str(tmp_path)}
    if without == "package":
        config = {"model": "tiny"}
    else:
        (tmp_path / "tokenizer.json").write_text("{")
    with Run.open(generate(tmp_path / "run", 8, config=config), read_only=True) as run:
        if without == "package":
            monkeypatch.setitem(sys.modules, "tokenizers", None)
        name = run.episodes(TRAIN)[0].id
        async with client_of(run) as client:
            assert (await get(client, f"/runs/0/episodes/{name}"))["steps"]
            found = await get(client, f"/runs/0/episodes/{name}/calls/0")
    assert (found["has_tokenizer"], found["turns"], found["tokens"]) == (False, [], [])
    assert found["images"]


async def test_a_group_has_its_members_and_where_each_first_differs(client: httpx2.AsyncClient, run: Run) -> None:
    group = next(row.group_id for row in run.episodes(TRAIN) if row.group_id)
    found = await get(client, f"/runs/0/groups/{group}")
    results = {row.id: load_result(run, row.id) for row in run.episodes(group_id=group)}
    assert len(found["members"]) == len(results) == GROUP_SIZE
    best = results[found["best"]]
    assert best.reward == max(one.reward for one in results.values() if one.reward is not None)
    for member in found["members"]:
        steps = [(step.ops, step.error, step.frame_sha256) for step in results[member["id"]].steps]
        if member["id"] == best.episode_id:
            assert member["diverges"] is None
        else:
            at = member["diverges"]
            expected = [(step.ops, step.error, step.frame_sha256) for step in best.steps]
            assert steps[:at] == expected[:at]
            assert steps[at : at + 1] != expected[at : at + 1]
    assert found["first_divergence"] == min(
        member["diverges"] for member in found["members"] if member["diverges"] is not None
    )
    assert sum(member["advantage"] or 0 for member in found["members"]) == pytest.approx(0, abs=1e-6)
    assert (await client.get("/api/runs/0/groups/absent")).status_code == 400


async def test_the_summary_accounts_for_every_episode_with_intervals(client: httpx2.AsyncClient, run: Run) -> None:
    found = await get(client, "/runs/0")
    assert sum(row["episodes"] for row in found["stored"]) == len(run.episodes())
    scored = [row for row in run.episodes(TRAIN) if row.value is not None]
    assert sum(one["total"] for one in found["by_version"]) == len(scored)
    for one in (*found["by_version"], *(each["success"] for each in found["evaluations"])):
        assert one["interval"][0] <= one["value"] <= one["interval"][1]
    assert [(alert["metric"], alert["cause"]) for alert in found["alerts"]] == [
        ("train/entropy", "replies hardly vary")
    ]
    assert found["alerts"][0]["steps"] == [entry["step"] for entry in run.metrics() if entry["alerts"]]
    assert found["settings"]["trainer.algorithm"] == "grpo"
    counted = {(one["family"], one["clause"]): one["episodes"] for one in found["failures"] if not one["errored"]}
    failed = [
        load_result(run, row.id).outcome for row in run.episodes() if row.family == "form_fill" and row.value == 0
    ]
    wrong = sum(any(one.clause == "the title of the document" for one in failed_of(outcome)) for outcome in failed)
    assert counted[("form_fill", "the title of the document")] == wrong


async def test_tasks_are_sorted_filtered_and_paged_by_the_server(client: httpx2.AsyncClient, run: Run) -> None:
    found = await get(client, "/runs/0/tasks", by="task", phase=TRAIN, sort="reward", descending=1, limit=10)
    assert found["total"] == len({row.task_id for row in run.episodes(TRAIN)})
    rewards = [row["reward"] for row in found["rows"]]
    assert rewards == sorted(rewards, reverse=True)
    families = await get(client, "/runs/0/tasks", by="family", text="sheet")
    assert {row["name"] for row in families["rows"]} == {"sheet_sum"}
    assert (await client.get("/api/runs/0/tasks?by=color")).status_code == 400


async def test_what_a_running_process_stores_is_seen_and_reading_changes_nothing(tmp_path: Path) -> None:
    folder = generate(tmp_path / "run", 8)
    with Run.open(folder, read_only=True) as reading, Run.open(folder) as writing:
        async with client_of(reading) as client:
            before, first = await get(client, "/runs/0/revision"), (await get(client, "/runs/0/episodes"))["total"]
            assert await get(client, "/runs/0/revision") == before
            added = extend(writing, 8)
            assert (await get(client, "/runs/0/revision"))["revision"] != before["revision"]
            assert (await get(client, "/runs/0/episodes"))["total"] == first + len(added)
            stored = {path: path.read_bytes() for path in (folder / "frames").rglob("*.zst")}
            await get(client, "/runs/0")
            await get(client, f"/runs/0/episodes/{added[0]}")
            assert {path: path.read_bytes() for path in (folder / "frames").rglob("*.zst")} == stored


async def test_an_episode_in_flight_and_an_unknown_one_are_told_apart(tmp_path: Path) -> None:
    folder = generate(tmp_path / "run", 8)
    with closing(sqlite3.connect(folder / "run.sqlite")) as connection:
        connection.execute("UPDATE episodes SET state='in_flight', record=NULL, tensors=NULL WHERE rowid=1")
        connection.commit()
    with Run.open(folder, read_only=True) as run:
        async with client_of(run) as client:
            name = run.episodes(state="in_flight")[0].id
            found = await get(client, f"/runs/0/episodes/{name}")
            assert (found["has_record"], found["state"]) == (False, "in_flight")
            assert (await get(client, "/runs/0/revision"))["in_flight"] == 1
            reply = await client.get("/api/runs/0/episodes/absent")
            assert (reply.status_code, "no episode absent" in reply.json()["error"]) == (404, True)


async def test_damaged_values_are_one_line_and_the_rest_is_shown(tmp_path: Path) -> None:
    folder = generate(tmp_path / "run", 8)
    with closing(sqlite3.connect(folder / "run.sqlite")) as connection:
        names = [name for (name,) in connection.execute("SELECT id FROM episodes ORDER BY rowid LIMIT 5")]
        for name, record in zip(
            names, ("{", "[]", '{"format": 2}', '{"outcome": {"findings": 5}}', "\x00"), strict=True
        ):
            connection.execute("UPDATE episodes SET record=? WHERE id=?", (record, name))
        connection.commit()
    with Run.open(folder, read_only=True) as run:
        async with client_of(run) as client:
            assert (await get(client, "/runs/0/episodes", text="form"))["total"] >= 0
            await get(client, "/runs/0")
            for name in names:
                reply = await client.get(f"/api/runs/0/episodes/{name}")
                assert reply.status_code in (400, 503)
                assert "\n" not in reply.json()["error"]
                assert re.search(r"run\.sqlite: damaged|has format None", reply.json()["error"])
            with closing(sqlite3.connect(folder / "run.sqlite")) as connection:
                connection.execute("""UPDATE runs SET value='{"facts": 5}' WHERE key='metadata'""")
                connection.commit()
            reply = await client.get("/api/runs/0")
            assert (reply.status_code, "run.sqlite: damaged" in reply.json()["error"]) == (400, True)


def test_a_folder_that_is_no_run_or_damaged_is_one_line(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    folder = generate(tmp_path / "run", 8)
    damaged = tmp_path / "damaged"
    shutil.copytree(folder, damaged)
    (damaged / "run.sqlite").write_bytes(b"not a database" * 500)
    (tmp_path / "empty").mkdir()
    for name, said in (("absent", "no such folder"), ("empty", "not a run directory"), ("damaged", "not a run")):
        code, _, err = called(monkeypatch, capsys, "view", str(folder), str(tmp_path / name))
        assert (code, err.count("\n")) == (2, 1), err
        assert said in err


async def test_numbers_that_json_lacks_are_null(tmp_path: Path) -> None:
    folder = generate(tmp_path / "run", 8)
    with closing(sqlite3.connect(folder / "run.sqlite")) as connection:
        line = json.loads(connection.execute("SELECT line FROM metrics").fetchone()[0])
        connection.execute("UPDATE metrics SET line=?", (json.dumps({**line, "train/grad_norm": float("nan")}),))
        connection.commit()
    with Run.open(folder, read_only=True) as run:
        async with client_of(run) as client:
            assert (await get(client, "/runs/0"))["series"]["train/grad_norm"] == [None]


async def test_a_group_of_a_family_shows_the_instruction_of_each_member(tmp_path: Path) -> None:
    folder = generate(tmp_path / "run", 8)
    with closing(sqlite3.connect(folder / "run.sqlite")) as store, store:
        store.execute("UPDATE episodes SET task_id = task_id || '/' || member")
    with Run.open(folder, read_only=True) as run:
        group = next(row.group_id for row in run.episodes(TRAIN) if row.group_id)
        async with client_of(run) as client:
            found = await get(client, f"/runs/0/groups/{group}")
    assert (found["task_id"], found["instruction"], found["first_divergence"]) == (None, "", None)
    assert all(member["instruction"] and member["diverges"] is None for member in found["members"])
    assert found["best"] is not None
