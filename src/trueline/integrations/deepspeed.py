"""DeepSpeed: a block around training, as its engine calls nobody back."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from deepspeed import DeepSpeedEngine

from trueline.integrations.attached import Attached


@contextlib.contextmanager
def watched(engine: DeepSpeedEngine, out: str | os.PathLike[str] = "runs/latest", **options: Any) -> Iterator[None]:
    """A block in which training of ``engine`` is watched on each rank, into a Run at ``out``; arguments as of
    ``trueline.watch``.

    To be entered once the engine has loaded its checkpoint, if any: training that goes on goes on with its Run.
    """
    attached = Attached(out, **options)
    attached.begins([engine.optimizer], step=engine.global_steps, trains=list(engine.module.parameters()))
    try:
        yield
    finally:
        attached.ends()
