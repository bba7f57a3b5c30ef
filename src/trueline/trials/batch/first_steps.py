"""What runs of a job measured of its first step, and how far two of them are apart.

Letters: W ranks, M backward passes of the step.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Losses = NDArray[np.float64]
Gradients = Mapping[tuple[int, str], NDArray[np.float64]]
"""Sketches of the gradient, by rank and name of the parameter."""


@dataclass(frozen=True)
class FirstStep:
    """``losses`` [W * M] rank by rank, what ``backward`` was called on; ``facts`` of each rank, as
    ``capture.trial.first_step`` wrote them.
    """

    losses: Losses
    gradients: Gradients
    facts: Sequence[Mapping[str, Any]]

    @property
    def is_finite(self) -> bool:
        """Whether losses and gradients are finite."""
        return bool(np.isfinite(self.losses).all()) and math.isfinite(_norm(self.gradients))

    def fact(self, name: str) -> Any:
        """The first that is not empty, over ranks, of one fact."""
        return next((facts[name] for facts in self.facts if facts[name]), self.facts[0][name])

    @property
    def batches(self) -> list[Mapping[str, Any]]:
        """The batch that each backward pass read, rank by rank; empty where they are not one to one."""
        batches = [batch for facts in self.facts for batch in facts["batches"]]
        return batches if len(batches) == len(self.losses) else []


def read_first_step(folder: Path) -> FirstStep | None:
    """Read what all ranks left in ``folder``; None where one of them left nothing."""
    losses: list[Losses] = []
    gradients: dict[tuple[int, str], NDArray[np.float64]] = {}
    facts: list[Mapping[str, Any]] = []
    for rank, file_path in enumerate(sorted(folder.glob("rank*.npz"), key=lambda path: int(path.stem[4:]))):
        with np.load(file_path) as arrays:
            losses.append(arrays["losses"])
            facts.append(json.loads(str(arrays["facts"])))
            gradients |= {(rank, name): arrays[name] for name in arrays.files if name.startswith("gradient/")}
    if not facts or len(facts) < facts[0]["world_size"]:
        return None
    return FirstStep(np.concatenate(losses), gradients, facts)


def losses_apart(base: Losses, changed: Losses) -> float:
    """|base - changed| / |base|; infinite where they are not as many."""
    if base.shape != changed.shape:
        return math.inf
    return _ratio(float(np.linalg.norm(base - changed)), float(np.linalg.norm(base)))


def gradients_apart(base: Gradients, changed: Gradients) -> float:
    """|base - changed| / |base| over all parameters and ranks; infinite where these are not alike."""
    return (
        math.inf if base.keys() != changed.keys() else _ratio(_norm(mixed((1.0, base), (-1.0, changed))), _norm(base))
    )


def mixed(*parts: tuple[float, Gradients]) -> Gradients:
    """The weighted sum of gradients of the same parameters."""
    return {key: sum(weight * gradients[key] for weight, gradients in parts) for key in parts[0][1]}  # type: ignore[misc]


def share_of_first(whole: Gradients, first: Gradients, second: Gradients) -> float:
    """The f for which f · first + (1 - f) · second is nearest to the whole (least squares)."""
    difference, target = mixed((1.0, first), (-1.0, second)), mixed((1.0, whole), (-1.0, second))
    square = _norm(difference) ** 2
    return sum(float(difference[key] @ target[key]) for key in difference) / square if square else math.nan


def most_apart(base: Gradients, changed: Gradients, count: int = 3) -> list[str]:
    """Names of the parameters that have most of the square of the difference, and its share."""
    squares: dict[str, float] = {}
    for (_, name), values in mixed((1.0, base), (-1.0, changed)).items():
        squares[name] = squares.get(name, 0.0) + float(values @ values)
    total = sum(squares.values()) or 1.0
    worst = sorted(squares, key=lambda name: -squares[name])[:count]
    return [f"{name.removeprefix('gradient/')} ({squares[name] / total:.0%})" for name in worst]


def _norm(gradients: Gradients) -> float:
    return math.sqrt(sum(float(gradient @ gradient) for gradient in gradients.values()))


def _ratio(difference: float, whole: float) -> float:
    return difference / whole if whole else (math.inf if difference else 0.0)
