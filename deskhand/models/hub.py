"""Files of models on the Hugging Face hub: which are fetched, how large they are, and whether the disk has room.

Used by `models.load`, and through it by everything that reads a checkpoint. Where the weights are not needed, only the
small files are fetched.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from deskhand.errors import ConfigError

AGENT_FILE = "agent_config.json"
"""File of an exported checkpoint with the agent's settings that it was trained with (`recipes.model_defaults`)."""
CONFIG_FILES = ("config.json", "preprocessor_config.json", "adapter_config.json", AGENT_FILE)
"""What estimates and the choice of the agent's settings read."""
SMALL_FILES = ("*.json", "*.jinja")
"""Everything but the weights."""
WEIGHTS = ".safetensors"
ALL_FILES = (*SMALL_FILES, f"*{WEIGHTS}")


def is_hub_id(source: str) -> bool:
    """Return whether a source is a hub id (owner/name), which every machine resolves in its own cache."""
    return source.count("/") == 1 and not source.startswith((".", "/", "~")) and not Path(source).exists()


def fetch(source: str, files: Sequence[str] = ALL_FILES) -> Path:
    """Download the files that match, unless cached, and return their folder. Raises `ConfigError`."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(source, allow_patterns=list(files)))
    except Exception as error:
        raise ConfigError(f"{source}: no local folder, and the download failed ({line_of(error)})") from error


def missing_bytes(source: str) -> int | None:
    """Return the bytes of weights that are not cached; None if the hub does not answer."""
    from huggingface_hub import HfApi, try_to_load_from_cache

    try:
        found = HfApi().model_info(source, files_metadata=True)
    except Exception:  # without a network the cache may have everything; if not, the download says what fails
        return None
    sizes = {file.rfilename: file.size or 0 for file in found.siblings or () if file.rfilename.endswith(WEIGHTS)}
    cached = (name for name in sizes if isinstance(try_to_load_from_cache(source, name, revision=found.sha), str))
    return sum(sizes.values()) - sum(sizes[name] for name in cached)


def describe_download(source: str) -> str:
    """Return a line with the size of the weights to download; empty if there are none or the size is unknown.

    Raises `ConfigError` if the disk of the cache has less room.
    """
    wanted = missing_bytes(source)
    if not wanted:
        return ""
    folder = _cache_folder()
    free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.is_dir())).free
    if free < wanted:
        raise ConfigError(
            f"{source}: the weights have {wanted / 1e9:.1f} GB, but the disk of {folder} has {free / 1e9:.1f} GB free; "
            "free disk space, or set HF_HOME to another disk"
        )
    return f"downloading {source}: {wanted / 1e9:.1f} GB to {folder}"


def _cache_folder() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def line_of(error: Exception) -> str:
    """Return the first line of an error's text, shortened."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]
