"""Ray Train: a wrapper of the function that a ``TorchTrainer`` runs on each rank."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import ray.train

from trueline.integrations.attached import Attached


def watched(
    train_loop_per_worker: Callable[..., Any], out: str | os.PathLike[str] = "runs/latest", **options: Any
) -> Callable[..., Any]:
    """``train_loop_per_worker``, watched on each rank into a Run at ``out``, which all nodes must share; arguments as
    of ``trueline.watch``. A relative ``out`` is below the directory of the driver.

    Training that Ray begins again from a checkpoint goes on with its Run.
    """
    run_path = os.path.abspath(out)

    @functools.wraps(train_loop_per_worker)
    def on_each_rank(*args: Any, **kwargs: Any) -> Any:
        goes_on = {} if ray.train.get_checkpoint() is None else {"resume": True, "overwrite": False}
        attached = Attached(run_path, **options | goes_on)
        try:
            return train_loop_per_worker(*args, **kwargs)
        finally:
            attached.ends()

    return on_each_rank
