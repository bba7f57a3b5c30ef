"""The configurations that a training script holds while it trains, as plain options: found, never asked for.

Looked at once, in front of the first update: the functions that are running then hold the trainer and its arguments.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import enum
import os
import re
import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

import torch
from torch import nn

from trueline.capture.model.layout import part_of

_MAX_FRAMES, _MAX_DEPTH, _MAX_VALUES = 80, 6, 1_500
_NAMES = frozenset({
    "args", "cfg", "config", "conf", "hparams", "hp", "opt", "opts", "options", "job_config", "ds_config", "settings",
    "training_args", "train_args", "model_args", "data_args", "finetuning_args", "trainer_config", "hyperparameters",
})  # fmt: skip
_KINDS = re.compile(r".*(?:Config|Arguments|Args|Options|Settings|HParams|Hyperparameters)")
_NOT_THE_JOBS = sys.stdlib_module_names - {"__main__"} | {"trueline", "torch"}
"""Packages whose running functions are not the script's or a trainer's: multiprocessing has a ``_config``, too."""
_OPTIMIZED = 0x1
"""``inspect.CO_OPTIMIZED``: the frame of a function, whose ``f_locals`` is a copy (until Python 3.13)."""
_OF_TRAINER = (
    "max_epochs", "max_steps", "accumulate_grad_batches", "gradient_clip_val", "precision", "num_nodes", "num_devices",
)  # fmt: skip


def configs_in_sight(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Options by where they were found, the model's own ones last; nothing where looking fails."""
    options_by_name: dict[str, dict[str, Any]] = {}
    visited: set[int] = set()
    with contextlib.suppress(Exception):
        for where, config in _objects(model):
            if id(config) in visited:
                continue
            visited.add(id(config))
            with contextlib.suppress(Exception):
                options = options_of(config)
                if options and options not in options_by_name.values():
                    options_by_name[_free(where, options_by_name)] = options
    return options_by_name


def _free(where: str, names_used: Mapping[str, Any]) -> str:
    return (
        where
        if where not in names_used
        else next(n for n in (f"{where} {i}" for i in range(2, 99)) if n not in names_used)
    )


def _objects(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """(name, object) of what may be a configuration."""
    globals_of_megatron = sys.modules.get("megatron.training.global_vars")
    if (config := getattr(globals_of_megatron, "_GLOBAL_ARGS", None)) is not None:
        yield "megatron arguments", config
    for module in (model, _inside(model)):
        if module is None:
            continue
        engine = vars(module).get("_config")
        if (config := getattr(engine, "_param_dict", None)) is not None:
            yield "deepspeed", config
        hparams = vars(module).get("_hparams", vars(module).get("hparams"))  # Lightning has a property over the first
        if isinstance(hparams, Mapping):
            yield "hparams", hparams
    yield from _configs_of_frames()
    yield from _configs_among(vars(sys.modules["__main__"]))
    inner = model
    while (inside := _inside(inner)) is not None:
        inner = inside
    if (config := vars(inner).get("config")) is not None:
        yield "model.config", config


def _inside(model: nn.Module) -> nn.Module | None:
    """The module that ``model`` wraps under the name ``module``, which DeepSpeed keeps beside the parts."""
    wrapped = vars(model).get("module", part_of(model, "module"))
    return wrapped if isinstance(wrapped, nn.Module) else None


def locals_of_job() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Name and local variables of the script's and trainers' functions that are running, the inner ones first. Keep
    nothing of the variables: they are let go of behind each.
    """
    if sys.gettrace() is not None:  # a debugger works on the very copies that are looked at here
        return
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _NOT_THE_JOBS:
            frame_locals = frame.f_locals
            try:
                yield frame.f_code.co_name, frame_locals
            finally:  # the copy would keep this step's tensors alive for as long as the function runs
                if frame.f_code.co_flags & _OPTIMIZED and sys.version_info < (3, 13):
                    frame_locals.clear()
        frame = frame.f_back


def _configs_of_frames() -> Iterator[tuple[str, Any]]:
    """Configurations of the functions that are running, the inner ones first."""
    for _, frame_locals in locals_of_job():
        yield from list(_configs_among(frame_locals))


def _configs_among(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The configurations among named ``values``, and those of ``self``."""
    for name, value in list(values.items()):
        if _is_config(name, value):
            yield name, value
        elif name == "self" and not isinstance(value, torch.Tensor):
            attributes = getattr(value, "__dict__", {})
            yield from ((key, attribute) for key, attribute in list(attributes.items()) if _is_config(key, attribute))
            if type(value).__name__ == "Trainer" and hasattr(value, "accumulate_grad_batches"):
                yield "trainer", {key: getattr(value, key, None) for key in _OF_TRAINER} | _hooks_of_module(value)


def _hooks_of_module(trainer: Any) -> dict[str, Any]:
    """Of the module of Lightning's trainer that clips by a norm in a hook of its own, that it does, and whether it
    optimises by hand, when nobody calls the hook.
    """
    module = getattr(trainer, "lightning_module", None)
    hook = getattr(type(module), "configure_gradient_clipping", None)
    code = getattr(hook, "__code__", None)
    is_own = hook is not None and not str(hook.__module__).startswith(("lightning.", "pytorch_lightning."))
    # a hook that clips by value calls another function of torch
    if not is_own or code is None or "value" in code.co_consts:
        return {}
    return {"configure_gradient_clipping": "overridden", "automatic_optimization": bool(module.automatic_optimization)}


def _is_config(name: str, value: Any) -> bool:
    if isinstance(value, argparse.Namespace):
        return True
    kind = type(value)
    if isinstance(value, type) or kind.__module__.startswith(("trueline", "torch.")):
        return False
    has_config_name = name.lstrip("_") in _NAMES
    if isinstance(value, Mapping) or kind.__module__.startswith("omegaconf"):
        return has_config_name
    return bool(_KINDS.fullmatch(kind.__name__)) and (dataclasses.is_dataclass(value) or hasattr(value, "to_dict"))


def options_of(config: Any) -> dict[str, Any]:
    """The options that a configuration object holds: a mapping, a dataclass, a namespace of ``argparse`` (Megatron's
    arguments), ``TrainingArguments`` or what else has ``to_dict``, OmegaConf, or DeepSpeed's configuration or engine.
    Nothing of what is none of these.
    """
    config = getattr(config, "_config", config) if hasattr(getattr(config, "_config", None), "_param_dict") else config
    config = getattr(config, "_param_dict", config)
    omegaconf = sys.modules.get("omegaconf")
    if omegaconf is not None and isinstance(config, omegaconf.DictConfig):
        config = omegaconf.OmegaConf.to_container(config, resolve=False)
    elif hasattr(config, "to_dict") and not isinstance(config, Mapping):
        config = config.to_dict()
    num_left = [_MAX_VALUES]
    plain = _plain(config, 0, num_left)
    return plain if isinstance(plain, dict) else {}


def _plain(value: Any, depth: int, num_left: list[int]) -> Any:
    """The value as JSON can hold it; what is no option (a module, a tensor, a function) as the name of its type."""
    num_left[0] -= 1
    if num_left[0] < 0 or depth > _MAX_DEPTH:
        return None
    if isinstance(value, enum.Enum):
        return _plain(value.value, depth, num_left)
    if isinstance(value, bool | int | float | str | None):
        return value
    if isinstance(value, torch.dtype | torch.device | os.PathLike):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value)]
        return {name: _plain(getattr(value, name, None), depth + 1, num_left) for name in fields}
    if isinstance(value, argparse.Namespace):
        return _plain(vars(value), depth, num_left)
    if isinstance(value, Mapping):
        return {str(key): _plain(item, depth + 1, num_left) for key, item in value.items()}
    if isinstance(value, list | tuple) and len(value) <= 64:
        return [_plain(item, depth + 1, num_left) for item in value]
    return type(value).__name__
