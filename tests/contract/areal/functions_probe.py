"""Runs in AReaL's own environment: reads arrays from a file, calls AReaL's loss functions on them, writes what they
return.

`python functions_probe.py IN.npz OUT.npz`. IN holds, in float32 and bool,

- [rows, tokens]: `logprobs`, `proximal`, `old`, `advantages`, `mask`, `value`, `old_value`, `target`;
- [rows, tokens]: `sampled` (the last columns are empty), `values`, and `rewards` [rows];
- `cases` and `credits`: settings of the loss and of the advantages, lists as JSON.

Only what AReaL's functions themselves use is installed; every other library is replaced by a module that can be
imported and raises when it is used.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
import types
from typing import Any

HERE = ("areal", "torch", "numpy", "colorlog", "packaging")


class NotHere:
    """Stands for anything of a library that is not here: a decorator leaves its function alone, a base class is
    `object`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if len(arguments) == 1 and not named and isinstance(arguments[0], (type, types.FunctionType)):
            return arguments[0]
        if self._name.endswith("_available"):
            return False
        return NotHere(f"{self._name}()")

    def __getattr__(self, name: str) -> NotHere:
        if name.startswith("__"):
            raise AttributeError(name)
        return NotHere(f"{self._name}.{name}")

    def __getitem__(self, key: Any) -> NotHere:
        return self

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (object,)

    def __or__(self, other: Any) -> Any:
        return Any

    __ror__ = __or__

    def __bool__(self) -> bool:
        raise ModuleNotFoundError(f"{self._name} is not in this environment")


class Absent(types.ModuleType):
    """A library that is not here."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return NotHere(f"{self.__name__}.{name}")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Comes last: finds what nobody else finds, unless torch or numpy are only asking whether it is there."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None:
            asking = str(frame.f_globals.get("__name__", "")).split(".")[0]
            if asking in HERE:
                return importlib.machinery.ModuleSpec(name, self, is_package=True) if asking == "areal" else None
            frame = frame.f_back
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing in it."""


def main(source: str, target: str) -> None:
    import numpy as np
    import torch

    sys.meta_path.append(Finder())
    settings = importlib.import_module("areal.api.cli_args")
    functions = importlib.import_module("areal.utils.functional.functional")
    given = np.load(source)
    tensors = {name: torch.from_numpy(given[name]) for name in given.files if name not in ("cases", "credits")}
    found: dict[str, Any] = {}
    for number, case in enumerate(json.loads(str(given["cases"]))):
        bounds = case.pop("rejection")
        logprobs = tensors["logprobs"].clone().requires_grad_()
        loss, _ = functions.ppo_actor_loss_fn(
            logprobs,
            tensors["proximal"],
            tensors["old"],
            tensors["advantages"].clone(),
            loss_mask=tensors["mask"].clone(),
            rejection_sampling=settings.RejectionSamplingConfig(**bounds) if bounds else None,
            **case,
        )
        loss.backward()
        found[f"loss_{number}"], found[f"gradient_{number}"] = loss.detach().numpy(), logprobs.grad.numpy()
    for number, case in enumerate(json.loads(str(given["credits"]))):
        advantages, returns = credit(settings, tensors, **case)
        found[f"advantages_{number}"], found[f"returns_{number}"] = advantages.numpy(), returns.numpy()
    estimator = importlib.import_module("areal.utils.data").KLEstimator
    for name in ("k1", "k2", "k3"):
        found[name] = estimator(name, apply_clamp=False)(tensors["logprobs"], tensors["proximal"]).numpy()
    value, _ = functions.ppo_critic_loss_fn(
        tensors["value"], tensors["old_value"], tensors["target"], 0.2, tensors["mask"]
    )
    np.savez(target, value_loss=value.numpy(), **found)


def credit(
    settings: Any, tensors: Any, discount: float, decay: float, group: int, whitened: bool, critic: bool
) -> tuple[Any, Any]:
    """(advantages, returns) by the method of AReaL's actor, of which only what that method reads is made."""
    import torch

    actor = importlib.import_module("areal.trainer.ppo.actor")
    data = importlib.import_module("areal.utils.data")
    made = object.__new__(actor.PPOActor)
    made.config = types.SimpleNamespace(overlong_reward_penalty=False, use_decoupled_loss=True, recompute_logprob=True)
    made.reward_bias, made.reward_scaling, made.reward_clip, made.mask_no_eos_with_zero = 0.0, 1.0, 1e9, False
    made.kl_ctl, made.kl_estimator, made.discount, made.gae_lambda = 0.0, data.KLEstimator("k1"), discount, decay
    levels = {"mean_level": "group", "std_level": "group", "std_unbiased": False, "eps": 1e-6, "group_size": group}
    made.reward_norm = data.Normalization(settings.NormConfig(**levels)) if group else None
    batch = {"mean_level": "batch", "std_level": "batch", "std_unbiased": False, "eps": 1e-6}
    made.adv_norm = data.Normalization(settings.NormConfig(**batch)) if whitened else None
    sampled = tensors["sampled"]
    places = torch.arange(sampled.shape[1])
    last = torch.where(sampled, places, 0).max(1).values
    given = {
        "input_ids": torch.zeros(sampled.shape, dtype=torch.long),
        "attention_mask": places <= last[:, None],
        "loss_mask": sampled.clone(),
        "logprobs": torch.zeros(sampled.shape),
        "rewards": tensors["rewards"].clone(),
        **({"values": tensors["values"].clone()} if critic else {}),
    }
    done = made._compute_advantages(given)
    return done["advantages"], done["returns"]


if __name__ == "__main__":
    main(*sys.argv[1:])
