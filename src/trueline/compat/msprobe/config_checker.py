"""msProbe's ``ConfigChecker``: packs that ``trueline diff`` and msProbe (26.2) read, and their comparison."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trueline.capture.job.configs_in_sight import configs_in_sight
from trueline.capture.job.job_facts import collect_facts, env_here
from trueline.capture.model.world import own_rank
from trueline.render.job_diff import write_xlsx
from trueline.same_job.diff import JobDiff, diff
from trueline.schema.errors import InputError
from trueline.schema.safe_logger import SafeLogger
from trueline.schema.text.documents import encode, plain
from trueline.schema.text.reading import shown
from trueline.store.job_files.config_files import SUFFIXES, read_config
from trueline.store.job_files.msprobe_pack import OWN_MEMBER

_log = SafeLogger()


class ConfigChecker:
    """Writes a pack of what this job is to ``output_zip_path``, from rank 0: variables (those that may matter, and no
    secret), packages, and what the scripts and configurations of ``shell_path`` set. With a ``model`` (or a list that
    begins with one) the pack gets its first inputs, its weights and the configurations in sight at its first forward
    pass. Raises ``InputError``.
    """

    result_filename = "result.xlsx"

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module] | None = None,
        shell_path: Sequence[str] | None = None,
        output_zip_path: str = "./config_check_pack.zip",
        fmk: str = "pytorch",
    ) -> None:
        _require_pytorch(fmk)
        first = model[0] if isinstance(model, list | tuple) and model else model
        if first is not None and not isinstance(first, nn.Module):
            raise InputError(f"model is {shown(first)}. Pass a torch.nn.Module, or a list that begins with one.")
        if not isinstance(output_zip_path, str) or not output_zip_path.endswith(".zip"):
            raise InputError(
                f"output_zip_path is {shown(output_zip_path)}. Pass the name of a file that ends with .zip."
            )
        if isinstance(shell_path, str) or not all(isinstance(each, str) for each in shell_path or ()):
            raise InputError(f"shell_path is {shown(shell_path)}. Pass a list of files.")
        self.path = Path(output_zip_path)
        self._handle: Any = None
        if own_rank() != 0:
            return
        self._pack(shell_path or ())
        if isinstance(first, nn.Module):
            self._handle = first.register_forward_pre_hook(self._at_first_forward, with_kwargs=True)

    @staticmethod
    def apply_patches(fmk: str = "pytorch") -> None:
        """Nothing is patched: Megatron's arguments are read where it keeps them, and states of random streams are in a
        Run. msProbe's stacks of random calls are not collected. Raises ``InputError`` for another framework.
        """
        _require_pytorch(fmk)

    @staticmethod
    def compare(bench_zip_path: str, cmp_zip_path: str, output_path: str) -> JobDiff:
        """What differs between two packs; written to ``result.xlsx`` in the directory ``output_path``. Raises
        ``InputError`` for what is no pack, or where XlsxWriter is missing.
        """
        job_diff = diff(cmp_zip_path, bench_zip_path)
        folder = Path(output_path)
        folder.mkdir(parents=True, exist_ok=True)
        write_xlsx(folder / ConfigChecker.result_filename, job_diff)
        return job_diff

    def _pack(self, files: Sequence[str]) -> None:
        static: dict[str, Any] = {}
        for file in files:
            if Path(file).suffix not in SUFFIXES:
                raise InputError(f"shell_path has '{file}'. Pass files of {', '.join(SUFFIXES)}.")
            static |= read_config(Path(file))
        env = env_here(sys.argv, [Path(file) for file in files])
        assert env.facts is not None
        members = {
            OWN_MEMBER: encode(env.model_dump(mode="json")).decode(),
            "env": _json(env.environ),
            "pip": "".join(f"{name}={version}\n" for name, version in env.facts.packages.items()),
        }
        if static:
            members["hyperparameters/hyperparameters_static.json"] = _json(static)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(self.path, "w", zipfile.ZIP_DEFLATED) as pack:
            for name, text in members.items():
                pack.writestr(name, text)

    def _at_first_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Add what is only known now, once; training goes on whatever becomes of it."""
        self._handle.remove()
        try:
            configs = configs_in_sight(module)
            inputs = {"args": _features(args), "kwargs": _features(kwargs)}
            weights = {name: _of_tensor(param) for name, param in module.named_parameters()}
            facts = collect_facts(torch.device("cpu"), command=sys.argv, configs=configs)
            with zipfile.ZipFile(self.path, "a", zipfile.ZIP_DEFLATED) as pack:
                pack.writestr("dataset/step0/rank0/dataset.json", _json(inputs))
                pack.writestr("weights/step0/rank0/weight.json", _json(weights))
                if facts.configs:
                    merged = {k: v for config in reversed(facts.configs.values()) for k, v in config.items()}
                    pack.writestr("hyperparameters/hyperparameters_dynamic.json", _json(merged))
        except Exception as error:
            _log.warning("trueline: the pack '%s' lacks the first step: %s", self.path, error)


def _require_pytorch(fmk: Any) -> None:
    if fmk != "pytorch":
        raise InputError(f"fmk is {shown(fmk)}, which is not supported. Pass 'pytorch'.")


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=1, default=plain)


def _features(value: Any) -> Any:
    """Statistics of each tensor, in the nesting of the arguments, as msProbe has them."""
    if isinstance(value, torch.Tensor):
        return _of_tensor(value)
    if isinstance(value, list | tuple):
        return {str(index): _features(inner) for index, inner in enumerate(value)}
    return {str(key): _features(inner) for key, inner in value.items()} if isinstance(value, Mapping) else ""


@torch.no_grad()
def _of_tensor(tensor: torch.Tensor) -> dict[str, float | None]:
    if not tensor.numel() or tensor.is_complex():
        return dict.fromkeys(("max", "min", "mean", "norm"))
    values = tensor.detach().float()
    numbers = torch.stack([values.max(), values.min(), values.mean(), values.norm()]).tolist()
    return dict(zip(("max", "min", "mean", "norm"), numbers, strict=True))
