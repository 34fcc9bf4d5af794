"""The file of the quota state: wrong entries are dropped, the others stay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deskhand.desktop.remote.quota import QuotaManager
from deskhand.desktop.remote.quota_file import saved_summary

WRONG_STATES = (
    {"refusals": "a"}, {"refusals": -1}, {"max_held": "3"}, {"max_held": float("nan")}, {"max_held": 10**400},
    {"max_held": 0}, {"max_held": True}, {"refusals": float("inf")}, {"closed_until": float("inf")},
    {"closed_until": [1]}, {"reason": 7}, [], 3, None,
)  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG_STATES)
async def test_a_wrong_entry_of_the_quota_file_is_dropped_and_the_others_stay(wrong: object, tmp_path: Path) -> None:
    file = tmp_path / "quota.json"
    lot = QuotaManager(file, seed=1)
    good, bad = (lot.gate(f"http://{name}").name for name in ("good", "bad"))
    names = {gate.name: key for key, gate in lot._gates.items()}
    state = {names[good]: {"refusals": 5, "max_held": 2.5, "reason": "429"}, names[bad]: wrong, "wait_s": {"429": 3.0}}
    file.write_text(json.dumps(state))
    again = QuotaManager(file, seed=1)
    found = again.gate("http://good")
    assert (found.refusals, found.max_held, found.reason, again.total_s) == (5, 2.5, "429", 3.0)
    dropped = again.gate("http://bad")
    assert (dropped.refusals, dropped.max_held, dropped.reason, dropped.closed_until) == (0, None, "", None)
    again.changed(save=True)
    assert json.loads(file.read_text())[names[good]]["refusals"] == 5


@pytest.mark.parametrize("now", [
    3, {"written": 1e300, "gates": []}, {"written": 1.0, "gates": [None]},
    {"written": 1.0, "gates": [{"endpoint": "a", "waiting": 1, "reason": "", "since_s": "x", "next_try_s": 0}]},
])  # fmt: skip
def test_a_wrong_summary_in_the_quota_file_is_none(now: object, tmp_path: Path) -> None:
    file = tmp_path / "quota.json"
    for text in (json.dumps({"now": now, "wait_s": {"429": "x"}}), "{broken", "[" * 100_000, "\xff"):
        file.write_bytes(text.encode("latin-1"))
        assert saved_summary(file) == ""
        assert QuotaManager(file).total_s == 0
