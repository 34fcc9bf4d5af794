"""The comparison of two commits finds no difference where there is none, and a weight that one of them changes."""

import dataclasses
import shutil

from safetensors.numpy import load_file, save_file

from benchmarks import versions
from benchmarks.thresholds import ROOT, Thresholds


def missed_by(first: versions.Tree, second: versions.Tree) -> list[str]:
    thresholds = Thresholds()
    versions.trainer(versions.SIZES["smoke"], (first, second), versions.Comparison(thresholds))
    return thresholds.missed


def test_a_weight_that_differs_in_one_tree_is_found(tmp_path):
    tree = versions.Tree("this tree", ROOT, ROOT / versions.CHECKPOINT)
    changed = dataclasses.replace(tree, name="changed", checkpoint=tmp_path / "changed")
    shutil.copytree(tree.checkpoint, changed.checkpoint)
    weights = load_file(changed.checkpoint / "model.safetensors")
    name = next(name for name in weights if name.endswith("language_model.layers.0.mlp.down_proj.weight"))
    weights[name][0, 0] += 0.05
    save_file(weights, changed.checkpoint / "model.safetensors", {"format": "pt"})
    assert "log-probs" in missed_by(tree, changed)
    assert "log-probs" not in missed_by(tree, tree)
