"""Which of an ordered line of versions is the first that has a fault, from runs that show it by chance.

Of versions 0 to n - 1 the last is known to have it and the first not to. Hypothesis k (1 to n - 1): version k is the
first. Rates are integrated over, as in ``chance``. The version that is run next best halves what is believed, among
those that can be run (as in Google's flake-aware culprit finding: Henderson et al., ICST 2023).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trueline.trials.frame.chance import Counts, log_if_absent, log_if_present

Floats = NDArray[np.float64]


class Line:
    """Beliefs about the first bad one of ``size`` versions; ``weights`` [n] are prior ones."""

    def __init__(self, size: int, weights: Sequence[float] | None = None) -> None:
        if size < 2:
            raise ValueError(f"A line has a good end and a bad one, got {size} versions.")
        prior_n = np.array(weights if weights is not None else [1.0] * size, dtype=np.float64)
        prior_n[0] = 0.0
        # version 0 has prior 0, whose log is -inf
        with np.errstate(divide="ignore"):
            self._log_prior_n = np.log(prior_n / prior_n.sum())
        self.counts = [Counts()] * size
        self.untestable: set[int] = set()

    def tell(self, version: int, showed: bool | None) -> None:
        """One more run of a version; None: it cannot be run."""
        if showed is None:
            self.untestable.add(version)
        else:
            self.counts[version] = self.counts[version].with_one(showed)

    def posterior(self) -> Floats:
        """[n] probability of each version to be the first bad one; 0 for version 0."""
        runs_n = np.array([(counts.runs, counts.showed) for counts in self.counts])
        before_n = np.concatenate([np.zeros((1, 2), dtype=np.int64), np.cumsum(runs_n, axis=0)[:-1]])
        after_n = runs_n.sum(0) - before_n
        log_n = self._log_prior_n + np.array(
            [
                log_if_absent(Counts(int(good[0]), int(good[1]))) + log_if_present(Counts(int(bad[0]), int(bad[1])))
                for good, bad in zip(before_n, after_n, strict=True)
            ]
        )
        chances_n = np.exp(log_n - log_n.max())
        return chances_n / chances_n.sum()

    def credible(self, error: float) -> list[int]:
        """Versions that together have a probability of 1 - ``error``, in their order: the likeliest, each with those
        before it that cannot be run, which nothing tells apart from it.
        """
        chances_n, cells = self.posterior(), self._cells()
        chance_of = [float(chances_n[list(cell)].sum()) for cell in cells]
        versions: list[int] = []
        sure = 0.0
        for cell_index in sorted(range(len(cells)), key=lambda cell: -chance_of[cell]):
            versions += cells[cell_index]
            sure += chance_of[cell_index]
            if sure >= 1 - error:
                break
        return sorted(versions)

    def is_settled(self, error: float) -> bool:
        """Return whether one version, with those before it that cannot be run, has a probability of 1 - ``error``."""
        chances_n = self.posterior()
        return max(float(chances_n[list(cell)].sum()) for cell in self._cells()) >= 1 - error

    def next(self) -> int:
        """The version that can be run and best halves what is believed."""
        is_bad_n = np.cumsum(self.posterior())  # that version v has it: the first bad one is v or before
        can = [cell[-1] for cell in self._cells()][:-1]
        return min(can, key=lambda version: abs(float(is_bad_n[version]) - 0.5))

    def _cells(self) -> list[range]:
        """Versions from after one that can be run up to the next that can; the last can."""
        ends = [version for version in range(1, len(self.counts)) if version not in self.untestable]
        return [range(before + 1, end + 1) for before, end in zip([0, *ends], ends, strict=False)]
