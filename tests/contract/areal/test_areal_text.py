"""A text model goes through AReaL's whole update on accessibility trees of real desktops."""

from __future__ import annotations

import areal_models
import torch
from fake_sglang import listening
from text_server import text_server


def test_a_text_model_completes_an_update_from_accessibility_trees(probe, tmp_path):
    from transformers import Qwen3ForCausalLM

    torch.set_num_threads(1)
    checkpoint = areal_models.save_text_checkpoint(tmp_path / "model")
    with listening(text_server(Qwen3ForCausalLM.from_pretrained(checkpoint).eval())) as address:
        found = probe("text_probe.py", tmp_path, str(checkpoint), address.removeprefix("http://"))
    assert "multi_modal_input" not in found["keys"]
    assert "mm_token_type_ids" not in found["keys"]
    assert max(longest for _, longest in found["rows"]) > 200, "accessibility trees are long"
    assert found["gap"] < 1e-5
    assert found["update"]["ppo_actor/update/update_successful"] == 1.0
    assert found["update"]["ppo_actor/update/grad_norm"] > 0
