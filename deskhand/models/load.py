"""Loading of checkpoints. Used by the recipes and the trainer; start with `load`.

`load` accepts a Hugging Face folder (config.json, tokenizer.json, tokenizer_config.json, preprocessor_config.json,
model.safetensors or its shards), a folder with a peft adapter (merged into its base model), a hub id, or "tiny" for the
bundled policy. All families (`models.families`) need only Pillow for images. Torch and transformers are imported
lazily. An incomplete or inconsistent checkpoint is a `ConfigError`.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deskhand.errors import ConfigError
from deskhand.models import hub
from deskhand.models.families import FAMILIES, FULL, LINEAR, family_of
from deskhand.models.hub import is_hub_id
from deskhand.models.hub import line_of as _line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TINY_FOLDER = Path(__file__).parent / "tiny" / "weights"
DTYPES = ("float32", "bfloat16", "float16")
ADAPTER_CONFIG = "adapter_config.json"
LOADING = threading.RLock()
"""Held while transformers makes or loads a model: it replaces methods of its classes for all threads meanwhile."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A checkpoint in memory. `model` is in eval mode; its parameters require gradients."""

    model: Any
    """The `...ForConditionalGeneration` of its family."""
    tokenizer: PreTrainedTokenizerFast
    image_processor: Any
    """Pillow-based Qwen2-VL image processor, from preprocessor_config.json."""
    family: str
    """Key of `FAMILIES`."""
    source: str

    @property
    def image_token_id(self) -> int:
        return self.model.config.image_token_id

    @property
    def merge_size(self) -> int:
        """Patches per image token along each side."""
        return self.model.config.vision_config.spatial_merge_size


def load(source: str, *, dtype: str = "float32", device: str = "cpu") -> LoadedModel:
    """Load a checkpoint folder, a hub id or "tiny".

    Raises `ConfigError` if a file is missing or unreadable, the architecture is unsupported, or parts are inconsistent.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"dtype: must be one of {', '.join(DTYPES)}, got {dtype!r}")
    folder = checkpoint_folder(source)
    base = adapter_base(folder)
    if base is not None:
        return merge_adapter(load(base, dtype=dtype, device=device), folder, source)
    folder, family = check_checkpoint(source)
    preprocessing = read_json(folder / "preprocessor_config.json")
    check_device(device)
    tokenizer, image_processor = _processing(folder)
    from deskhand.models.architectures import state_shapes
    from deskhand.models.forward import check_positions
    from deskhand.models.linear_attention import check_states

    model = _model(folder, family, dtype, device)
    _check_agreement(folder, model.config, tokenizer, image_processor, preprocessing)
    check_positions(model)
    check_states(model, state_shapes(model.config.to_dict()))
    return LoadedModel(model, tokenizer, image_processor, family, source)


def load_processors(source: str, *, needs_images: bool = True) -> tuple[PreTrainedTokenizerFast, Any]:
    """Load tokenizer and image processor; weights are not downloaded. Raises `ConfigError` like `load`.

    With `needs_images` False, preprocessor_config.json is optional; the default processor is then unusable.
    """
    folder = checkpoint_folder(source, hub.SMALL_FILES)
    if needs_images or (folder / "preprocessor_config.json").is_file():
        return _processing(folder)
    return _from_pretrained(_tokenizer_class(), folder / "tokenizer.json"), _processor_class()()


def _processing(folder: Path) -> tuple[PreTrainedTokenizerFast, Any]:
    tokenizer = _from_pretrained(_tokenizer_class(), folder / "tokenizer.json")
    return tokenizer, _from_pretrained(_processor_class(), folder / "preprocessor_config.json")


def _from_pretrained(kind: Any, file: Path) -> Any:
    try:
        return kind.from_pretrained(file.parent)
    except Exception as error:
        raise ConfigError(f"{file}: unreadable ({_line(error)}); download or export it again") from error


def _tokenizer_class() -> type[PreTrainedTokenizerFast]:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast


def _processor_class() -> Any:
    """Return the Pillow-based image processor, whose name depends on the version of transformers."""
    try:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    except ModuleNotFoundError:  # transformers up to 5.3, which AReaL 1.0.4 requires
        from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

        return Qwen2VLImageProcessor
    return Qwen2VLImageProcessorPil


def adapter_base(folder: Path) -> str | None:
    """Return the base model of an adapter folder; None for a full checkpoint.

    AReaL writes config.json next to an adapter, but no weights of the base model.
    """
    is_full = any((folder / name).is_file() for name in ("model.safetensors", "model.safetensors.index.json"))
    if is_full or not (folder / ADAPTER_CONFIG).is_file():
        return None
    base = read_json(folder / ADAPTER_CONFIG).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise ConfigError(f"{folder / ADAPTER_CONFIG}: base_model_name_or_path is missing; set the base model")
    return base


def quiet_bitsandbytes() -> None:
    """Silence a warning that bitsandbytes logs on newer CPUs; call it before importing peft.

    The warning recommends a package that downloads code on import and changes no results.
    """
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


def merge_adapter(base: LoadedModel, folder: Path, source: str) -> LoadedModel:
    """Return `base`, whose weights change, with a peft adapter merged into it. Raises `ConfigError` if it misfits."""
    quiet_bitsandbytes()
    try:
        from peft import PeftModel

        model: Any = PeftModel.from_pretrained(base.model, str(folder)).merge_and_unload()
    except Exception as error:
        why = f"the adapter does not fit {base.source} ({_line(error)})"
        raise ConfigError(f"{folder}: {why}; set its own base model") from error
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    return LoadedModel(model.eval(), base.tokenizer, base.image_processor, base.family, source)


def check_checkpoint(source: str, *, download: bool = True) -> tuple[Path, str]:
    """Check that all files exist and return folder and family. Reads no tensors; raises `ConfigError` like `load`.

    With `download` False, the weights of a hub id are neither downloaded nor checked.
    """
    folder = checkpoint_folder(source, hub.ALL_FILES if download else hub.SMALL_FILES)
    base = adapter_base(folder)
    if base is not None:
        return check_checkpoint(base, download=download)
    family = family_of(read_json(folder / "config.json"), folder / "config.json")
    if download or not is_hub_id(source):
        _weight_files(folder)
    read_json(folder / "preprocessor_config.json")
    if not (folder / "tokenizer.json").is_file():
        raise ConfigError(f"{folder / 'tokenizer.json'}: missing; save the checkpoint with its fast tokenizer")
    return folder, family


def checkpoint_folder(source: str, files: Sequence[str] = hub.ALL_FILES) -> Path:
    """Return the local folder of a source. Of a hub id, the files that match are downloaded into the hub's cache.

    Raises `ConfigError`.
    """
    if source == "tiny":
        if not (TINY_FOLDER / "config.json").is_file():
            raise ConfigError(f"{TINY_FOLDER / 'config.json'}: missing; install the package again")
        return TINY_FOLDER
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists():
        raise ConfigError(f"{source}: is a file; use the checkpoint's folder")
    if not is_hub_id(source):
        raise ConfigError(f"{source}: no such folder; use a checkpoint folder, a hub id (owner/name) or tiny")
    return hub.fetch(source, files)


def download_weights(source: str, log: Callable[[str], None]) -> None:
    """Download the weights of a hub id, or of an adapter's base model, unless cached; `log` gets a line with the size.

    Raises `ConfigError` if the disk has no room, or the download fails.
    """
    base = adapter_base(checkpoint_folder(source, hub.SMALL_FILES))
    if base is not None:
        download_weights(base, log)
    if is_hub_id(source):
        if line := hub.describe_download(source):
            log(line)
        hub.fetch(source)


def _weight_files(folder: Path) -> None:
    from safetensors import SafetensorError, safe_open

    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if not single.is_file() and not index.is_file():
        raise ConfigError(f"{single}: missing; save the checkpoint with safetensors weights")
    names = [single.name] if single.is_file() else sorted(set(read_json(index).get("weight_map", {}).values()))
    for file in (folder / name for name in names):
        if not file.is_file():
            raise ConfigError(f"{file}: listed in {index.name} but missing; finish the download")
        try:
            with safe_open(file, framework="np"):
                pass
        except (SafetensorError, OSError) as error:
            why = f"unreadable weights ({_line(error)})"
            raise ConfigError(f"{file}: {why}; download or save the file again") from error


def tensors_of(folder: Path, like: LoadedModel) -> dict[str, Any]:
    """Return the weights of a checkpoint folder by the names in the model of `like`; the folder needs no tokenizer.

    Raises `ConfigError` if some are missing or have other shapes.
    """
    dtype = str(next(like.model.parameters()).dtype).removeprefix("torch.")
    return dict(_model(folder, like.family, dtype, "cpu").state_dict())


def check_device(device: str) -> None:
    """Raise `ConfigError` if this machine has no such torch device."""
    import torch

    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"device {device!r}: not a torch device; use cpu or cuda:0") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device {device!r}: no CUDA device is available; use cpu")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device {device!r}: this machine has {torch.cuda.device_count()} CUDA devices; use cuda:0")


def _model(folder: Path, family: str, dtype: str, device: str) -> Any:
    import torch
    from transformers.utils import logging as transformers_logging

    from deskhand.models.fast_layers import embed_patches_by_product, replace_linear_with_onednn
    from deskhand.models.linear_attention import separate_rows

    kind = FAMILIES[family].model_class()
    transformers_logging.disable_progress_bar()
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(logging.CRITICAL)
    try:
        with LOADING:
            model, report = kind.from_pretrained(
                folder, dtype=getattr(torch, dtype), attn_implementation="sdpa", output_loading_info=True
            )
    except Exception as error:
        raise ConfigError(f"{folder}: the weights do not fit config.json ({_line(error)})") from error
    finally:
        transformers_logging.set_verbosity(verbosity)
    for what in ("missing_keys", "mismatched_keys"):
        if found := sorted(str(key) for key in report.get(what) or ()):
            word = what.split("_")[0]
            raise ConfigError(
                f"{folder}: {len(found)} tensors {word}, first {found[0]}; use the config.json of these weights"
            )
    kinds = set(getattr(model.config.text_config, "layer_types", None) or ())
    if "sliding_attention" in kinds:
        raise ConfigError(
            f"{folder / 'config.json'}: sliding-window layers are not supported; set use_sliding_window to false"
        )
    if (unknown := kinds - {FULL, LINEAR}) or kinds == {LINEAR}:
        why = ", ".join(sorted(unknown)) or f"no {FULL}"
        raise ConfigError(f"{folder / 'config.json'}: layer_types: {why} is not supported; choose another model")
    for name, parameter in model.named_parameters():
        if name.endswith(FAMILIES[family].transposed) and parameter.shape[-1] == parameter.shape[-2]:
            raise ConfigError(f"{folder}: {name} is square, so its layout is unknown; choose another model")
    embed_patches_by_product(model)
    separate_rows(model)
    replace_linear_with_onednn(model)
    return model.to(device).eval()


def _check_agreement(
    folder: Path, config: Any, tokenizer: Any, image_processor: Any, preprocessing: dict[str, Any]
) -> None:
    vision = config.vision_config
    for key, expected in (
        ("patch_size", vision.patch_size),
        ("merge_size", vision.spatial_merge_size),
        ("temporal_patch_size", vision.temporal_patch_size),
    ):
        if getattr(image_processor, key) != expected:
            file, found = folder / "preprocessor_config.json", preprocessing.get(key)
            raise ConfigError(f"{file}: {key} must be {expected} as in config.json, got {found}")
    if not getattr(config.text_config, "norm_topk_prob", True):
        raise ConfigError(f"{folder / 'config.json'}: norm_topk_prob must be true, as transformers computes experts")
    file = folder / "tokenizer.json"
    placeholder = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    if placeholder != (expected := config.image_token_id):
        raise ConfigError(f"{file}: <|image_pad|> must have id {expected} as in config.json, got {placeholder}")
    if len(tokenizer) > (size := config.text_config.vocab_size):
        why = f"{len(tokenizer)} ids exceed vocab_size {size} of config.json"
        raise ConfigError(f"{file}: {why}; use the tokenizer of these weights")


def read_json(file: Path) -> dict[str, Any]:
    """Return a checkpoint's JSON object. Raises `ConfigError` if it is missing or unreadable."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{file}: missing; use a complete checkpoint folder") from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{file}: unreadable ({_line(error)}); download or export it again") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{file}: not a JSON object; download or export it again")
    return content
