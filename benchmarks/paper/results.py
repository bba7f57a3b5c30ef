"""What was measured, as one JSON file: written while it grows, read by tables and figure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.paper.cells import Cell
from benchmarks.paper.together import Curves
from numpy.typing import NDArray

QUANTITIES = {"loss_std": "loss std", "loss_range": "loss range", "norm_std": "norm std", "cosine": "mean cosine"}
"""Over workers at each step: standard deviation (N - 1) and range of the loss, standard deviation of the gradient
norm, mean cosine over pairs. Units: loss, loss, gradient norm, cosine."""

DIGITS = 4
"""Significant digits that are kept of a curve; intervals over seeds are a hundred times wider."""

Floats = NDArray[np.float64]


@dataclass(slots=True)
class Results:
    """``about`` says how and where it was measured; ``trained`` holds the curves of one run a row."""

    about: dict[str, Any]
    trained: list[dict[str, Any]] = field(default_factory=list)
    coverage: list[dict[str, Any]] = field(default_factory=list)
    ddp: list[dict[str, Any]] = field(default_factory=list)

    def add(self, cell: Cell, seed: int, curves: Curves) -> None:
        """Keep the dispersions of one run."""
        self.trained.append({**dataclasses.asdict(cell), "seed": seed, **_dispersions(curves)})

    def has(self, cell: Cell, seed: int) -> bool:
        """Whether that run is there already."""
        return any(_is_of(row, cell) and row["seed"] == seed for row in self.trained)

    def curves(self, cell: Cell, quantity: str) -> Floats:
        """One of ``QUANTITIES``, or ``loss_mean``: float64 [seeds, T], in the order of the seeds."""
        rows = sorted((row for row in self.trained if _is_of(row, cell)), key=lambda row: row["seed"])
        return np.array([row[quantity] for row in rows])

    def texts(self) -> list[str]:
        """What was trained on, in the order in which it was."""
        return list(dict.fromkeys(row["text"] for row in self.trained))

    def write(self, path: Path) -> None:
        """Write everything, one row a line."""
        parts = [f'"{name}": [\n{_lines(getattr(self, name))}\n]' for name in ("trained", "coverage", "ddp")]
        path.write_text("{" + ",\n".join([f'"about": {json.dumps(self.about)}', *parts]) + "}\n", encoding="utf-8")


def read_results(path: Path) -> Results:
    """The results in ``path``; raises OSError or ValueError where there are none."""
    return Results(**json.loads(path.read_text(encoding="utf-8")))


def _lines(rows: Iterable[dict[str, Any]]) -> str:
    return ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)


def _is_of(row: dict[str, Any], cell: Cell) -> bool:
    return all(row[key] == value for key, value in dataclasses.asdict(cell).items())


def _dispersions(curves: Curves) -> dict[str, list[float]]:
    found_T = {
        "loss_mean": curves.losses_TN.mean(axis=1),
        "loss_std": curves.losses_TN.std(axis=1, ddof=1),
        "loss_range": np.ptp(curves.losses_TN, axis=1),
        "norm_std": curves.norms_TN.std(axis=1, ddof=1),
        "cosine": curves.cosine_T,
    }
    return {name: [float(f"{value:.{DIGITS}g}") for value in values_T] for name, values_T in found_T.items()}
