"""Outside of AReaL's episodes `aiohttp_session` is one real aiohttp session for each event loop."""

from __future__ import annotations

from areal_jobs import probe


def test_all_of_a_loop_share_one_aiohttp_session_until_it_is_closed(areal_python, tmp_path):
    found = probe(areal_python, "clients_probe.py", tmp_path)
    assert not found["areal"], "in AReaL's episodes the session is AReaL's"
    in_a_loop = {"kind": True, "timeout_s": 600.0, "shared": True, "said": ["here"], "closed": True}
    assert found["loops"] == [{**in_a_loop, "new": True, "closed_again": True, "left": 0}] * 2
    assert found["other"], "a session of a closed loop was handed out again"
    assert found["unclosed"] == []
