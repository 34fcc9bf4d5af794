"""A text model goes through AReaL's whole update on accessibility trees of real desktops."""

from __future__ import annotations


def test_a_text_model_completes_an_update_from_accessibility_trees(found):
    found = found["text"].result()
    assert "multi_modal_input" not in found["keys"]
    assert "mm_token_type_ids" not in found["keys"]
    assert max(longest for _, longest in found["rows"]) > 200, "accessibility trees are long"
    assert found["gap"] < 1e-5
    assert found["update"]["ppo_actor/update/update_successful"] == 1.0
    assert found["update"]["ppo_actor/update/grad_norm"] > 0
