"""Which AReaL is installed, and what its proxy exports, is read from the AReaL that is imported.

No source with upstream's #1694 (images through the v2 stack) and #1643 (through vLLM) is at hand: for these, modules
with the names and parameters that the pull requests describe stand in. tests/contract/areal tests #1606 on its source.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CLIENT = "class ArealOpenAI:\n    def __init__(self, engine, tokenizer{more}): pass\n"
WITH_PROCESSOR = CLIENT.format(more=", processor=None, require_multimodal_processor=False")
ROOT = Path(__file__).parents[3]


def areal(folder: Path, client: str = CLIENT.format(more=""), proxy: str = "pass", vllm: str = "") -> Path:
    files = {
        "experimental/openai/client.py": client,
        "v2/inference_service/data_proxy/tokenizer_proxy.py": f"class TokenizerProxy:\n    {proxy}\n",
        "engine/vllm_remote.py": f"def build_generation_request(req):\n    return {{{vllm}}}\n",
    }
    for name, text in files.items():
        path = folder / "areal" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for package in path.relative_to(folder).parents[:-1]:
            (folder / package / "__init__.py").touch()
    return folder


def asked(folder: Path, expression: str) -> str:
    """What an expression of `installed_areal` is in a process that imports the AReaL of `folder`."""
    program = f"from deskhand.integrations.areal.installed_areal import *; print({expression})"
    words = [sys.executable, "-c", program]
    paths = {"PYTHONPATH": f"{folder}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=paths)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


IMAGES = "[exports_images('sglang:d4'), exports_images('sglang:d4', 'v2'), exports_images('vllm:d4')]"


@pytest.mark.parametrize(
    ("made", "exports"),
    [
        ({}, [False, False, False]),
        ({"proxy": "processor = None", "vllm": "'expected_token_ids': 1"}, [False, False, False]),
        ({"client": WITH_PROCESSOR}, [True, False, False]),
        ({"client": WITH_PROCESSOR, "proxy": "processor = None"}, [True, True, False]),
        ({"client": WITH_PROCESSOR, "vllm": "'expected_token_ids': 1"}, [True, False, True]),
    ],
)
def test_a_proxy_exports_images_where_client_stack_and_server_can(tmp_path, made, exports):
    assert asked(areal(tmp_path, **made), IMAGES) == str(exports)


@pytest.mark.parametrize("number", ["1.0.4", "2.0.0", "2.1.0"])
def test_a_source_tree_has_the_version_of_its_project_file(tmp_path, number):
    areal(tmp_path)
    (tmp_path / "pyproject.toml").write_text(f'[project]\nname = "areal"\nversion = "{number}"\n')
    assert asked(tmp_path, "version()") == number


def test_an_installed_package_has_the_version_of_its_metadata(tmp_path):
    about = areal(tmp_path) / "areal-2.0.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: areal\nVersion: 2.0.0\n")
    assert asked(tmp_path, "version()") == "2.0.0"


@pytest.mark.parametrize("number", ["1.0.3", "3.0.0", "0.5.1"])
def test_another_version_is_refused_with_those_that_are_supported(tmp_path, number):
    areal(tmp_path)
    (tmp_path / "pyproject.toml").write_text(f'[project]\nname = "areal"\nversion = "{number}"\n')
    said = asked(tmp_path, "version()")
    assert f"AReaL {number} is not supported, only 1.0.4 and 2.x" in said
