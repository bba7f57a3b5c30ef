"""A job whose checkpoints stay as they are: what it would save outside of a folder is not written, and it ends soon.

A script that saves may next put the file in the place of an older one, or delete what is older still. So from the first
save that is left out on, nothing around its place is replaced, moved or deleted, and the job ends with its next update,
on all ranks: the one that saves leaves a word for the others, who come to that update only with it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from trueline.capture.model import patches
from trueline.capture.model.framework_update import after_update
from trueline.capture.model.untraced import Hook
from trueline.capture.model.world import own_rank

FILE = "saved.json"
"""In the folder: after which update what would have been saved."""
CHANGES_FILES = {os: ("replace", "rename", "remove", "unlink", "rmdir"), shutil: ("rmtree", "move")}


class KeptCheckpoints:
    """Lets a job save in ``folder`` only."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder).resolve()
        self._around: Path | None = None
        self._num_updates = 0

    def install(self) -> None:
        """Put it in place, before anything imports what saves by its name."""
        patches.Patch(torch, "save", patches.calling(self._around_save), also=torch.serialization).install()
        with contextlib.suppress(ImportError):
            safetensors = importlib.import_module("safetensors.torch")
            for name in ("save_file", "save_model"):
                patches.Patch(safetensors, name, patches.calling(self._around_save)).install()
        register_optimizer_step_post_hook(Hook(self._after_update))

    def _around_save(self, original: Callable[..., Any], values: Any, *args: Any, **options: Any) -> Any:
        target = options.get("f", options.get("filename", args[0] if args else None))
        path = _path_of(values, target)
        if path is None or self._is_free(path):
            return original(values, *args, **options)
        if self._around is None:
            self._around = path.parent.parent.resolve()
            self._write(path)
            for module, names in CHANGES_FILES.items():
                for name in names:
                    patches.Patch(module, name, patches.calling(self._around_change)).install()
        return None

    def _around_change(self, original: Callable[..., Any], *args: Any, **options: Any) -> Any:
        paths = [Path(arg).resolve() for arg in (*args, *options.values()) if isinstance(arg, str | os.PathLike)]
        # a Run goes on: its files are in the folder
        if any(self._around in path.parents and not self._is_free(path) for path in paths):
            return None
        return original(*args, **options)

    def _is_free(self, path: Path) -> bool:
        return self._folder in path.resolve().parents

    def _write(self, path: Path) -> None:
        document = {"updates": self._num_updates, "path": str(path), "rank": own_rank()}
        part = self._folder / f"{FILE}.{own_rank()}"
        part.write_text(json.dumps(document), encoding="utf-8")
        part.replace(self._folder / FILE)

    def _after_update(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._num_updates += 1
        path = self._folder / FILE
        # a rank that is behind makes this update with the others
        if path.exists() and self._num_updates > json.loads(path.read_text(encoding="utf-8"))["updates"]:
            after_update(_end)


def _end() -> NoReturn:
    raise SystemExit(0)


def _path_of(values: Any, target: Any) -> Path | None:
    """Where values are saved; of a checkpoint that goes to memory first, as Lightning's, anywhere."""
    if isinstance(target, str | os.PathLike):
        return Path(target)
    name = getattr(target, "name", None)
    if isinstance(name, str):
        return Path(name)
    is_of_lightning = isinstance(values, dict) and "pytorch-lightning_version" in values
    return Path("/a checkpoint of Lightning") if is_of_lightning else None
