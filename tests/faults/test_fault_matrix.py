"""The fault matrix at a small size: each row of it as it has to be. `python -m benchmarks.faults --full` has the full
sizes."""

from __future__ import annotations

import pytest

from benchmarks.fault_rows import alerts
from benchmarks.fault_rows.parts import Row
from benchmarks.faults import ROWS


def test_the_matrix_has_all_its_rows():
    assert sorted(ROWS) == list(range(1, 33))


@pytest.mark.parametrize("number", sorted(ROWS))
async def test_a_row_of_the_fault_matrix_is_as_it_has_to_be(number, tmp_path):
    row = await ROWS[number](0.0, tmp_path)
    assert row.number == number
    assert not row.wrong, row.wrong
    assert row.injected > 0
    assert row.survived == row.injected


def test_every_health_alert_has_a_fault(monkeypatch):
    assert alerts.without_fault() == []
    monkeypatch.setattr(alerts, "STEP_FAULTS", alerts.STEP_FAULTS[1:])
    assert alerts.without_fault() == ["engine_kl_images"]


def test_a_row_that_went_wrong_says_so():
    row = Row(1, "x", steps=2000, injected=3, survived=2, recovery_s=[0.5, 1.5])
    row.demand(True, "fine")
    assert row.cells() == ("1", "x", "2000", "1.5", "2 of 3", "0", "1000.0 ms", "ok")
    row.demand(False, "an action was done twice")
    assert row.cells()[-1] == "an action was done twice"
