"""How a job begins to write a Run: at once, or where an earlier start of the same job left it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trueline.schema.files.run_manifest import Manifest


@dataclass(frozen=True)
class Job:
    """What a job says of itself as it begins. ``step`` is the number that it wants for its first step, ``updates`` how
    many updates the state of its optimizer counts already; None where nobody knows.
    """

    world_size: int
    adapter: str
    params: tuple[str, ...]
    plan: dict[str, Any] = field(default_factory=dict[str, Any])
    step: int | None = None
    updates: int | None = None


@dataclass(frozen=True)
class Start:
    """The ``attempt``-th start of a job, from 0: its first step has the number ``step``, and the Plan was changed
    ``revision`` times before. ``keeps_plan`` says that the Plan in its plan file is still asked for. ``manifest`` is
    what the Run says from now on, None at a first start. ``job`` is a text that all starts of this job have in common,
    and no other job has.
    """

    attempt: int = 0
    step: int = 0
    revision: int = 0
    keeps_plan: bool = False
    manifest: Manifest | None = None
    job: str = ""


FIRST = Start()
"""Of a job that was not started before."""
