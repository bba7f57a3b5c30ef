"""Part of what evaluations read is trained on as well.

What it finds
-------------
`random_split` twice, for two data sets that differ in their augmentation, without one generator; a split that is drawn
anew where the job is started again; validation rows that were cut from an array and not taken out of it; windows that
overlap; rows that a file has many times, split at random; folds of a cross-validation that share rows.

Why it matters
--------------
The validation loss is that of samples which the model has learned: it falls with the training loss, the best checkpoint
is the one that is overfitted most, and nobody sees it before the model is used.

How it decides
--------------
By equality. At some evaluations (the first four, then at twice the step of the one before) the samples of forward
passes in evaluation mode without gradients have digests, as those of every training step have. Samples that were
trained on before are counted, by values, once the training has gone through its data. Where both loaders read parts of
one data set (`Subset`, `SubsetRandomSampler`), the indices of the parts are compared, whatever an augmentation makes
of them.

To be confirmed is a part only: a twentieth at least, not all of what is evaluated (an evaluation on training samples
may be meant), nor all that is trained on (a pool that samples are chosen from). By values it must be more than such
data hold twice: the probability of equal rows is at most that of the pairs that were read as different ones, and the
chance of so many in common 1e-6. Batches that come from no DataLoader count where their samples are evaluated together
again, and hold both kinds. Of folds that follow each other, the training of each is looked at by itself.

What it may miss
----------------
Samples whose values an augmentation changes, of data sets that are no `Subset`; evaluations all of whose samples are
trained on (`trueline facts` has these); rows that are nearly equal; training that has not gone through its data yet;
models that are evaluated by a copy of them.

Example
-------
102 of the 128 samples that evaluations read were trained on before.

Wrong and right
---------------
Wrong:

```python
train, _ = random_split(augmented, [0.8, 0.2])
_, held_out = random_split(plain, [0.8, 0.2])  # another permutation
```

Right:

```python
train, _ = random_split(augmented, [0.8, 0.2], generator=torch.Generator().manual_seed(0))
_, held_out = random_split(plain, [0.8, 0.2], generator=torch.Generator().manual_seed(0))
```
"""

from __future__ import annotations

from trueline.judge.compared_ranks import sites_of
from trueline.laws.data_split.evaluated_samples import Evaluated, evaluated_of, leaking, parts_of
from trueline.schema.columns.evaluated import EvaluatedPart
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import steps_text
from trueline.store.reader import Run

CODE = "held-out-trained"
CALLS = {"": ("DataLoader", "eval")}
QUESTION = "repeats"
NEEDS: tuple[str, ...] = ("evaluated", "sample_digests")
ACROSS_RANKS = False

TWENTIETH = 0.05
"""Share below which stand rows that data have twice, as in the facts of the data."""

_ADVICE = (
    "Split once, by one list of indices or one seeded generator, and take the held-out rows out of what is trained on; "
    "keep the list with the checkpoint.",
)


def check(run: Run) -> list[Finding]:
    """One Finding at most; raises ``CannotTell`` where no evaluation was seen, or the data are not gone through yet."""
    parts = [(step, rank, part) for step, rank, part in parts_of(run) if _is_shared(part)]
    if parts:
        step, _, part = max(parts, key=lambda seen: seen[2].common)
        return [_of_indices(run, step, tuple(sorted({rank for _, rank, _ in parts})), part)]
    sources = evaluated_of(run)
    if not any(source.is_whole or source.is_trained for source in sources):
        raise CannotTell("the training has not gone through its data yet, or their values change", reason="by-design")
    worst = max(leaking(sources, least=TWENTIETH), key=lambda source: source.before, default=None)
    return [] if worst is None else [_of_values(run, worst)]


def _is_shared(part: EvaluatedPart) -> bool:
    return part.common < min(part.size, part.trained) and part.common >= TWENTIETH * part.size


def _of_indices(run: Run, step: int, ranks: tuple[int, ...], part: EvaluatedPart) -> Finding:
    return _finding(
        run,
        step,
        f"{part.common:,} of the {part.size:,} indices of the data set that evaluations read are among the "
        f"{part.trained:,} that are trained on.",
        kind="indices",
        common=part.common,
        size=part.size,
        ranks=ranks,
        false_alarm_rate=0.0,
    )


def _of_values(run: Run, source: Evaluated) -> Finding:
    where = " in batches that hold both kinds" if source.is_mixed else ""
    return _finding(
        run,
        source.steps[-1],
        f"{source.before:,} of the {source.size:,} samples that evaluations read{where} were trained on before "
        f"(looked at before {steps_text(source.steps)}).",
        kind="values",
        common=source.before,
        size=source.size,
        ranks=tuple(run.ranks),
        false_alarm_rate=source.tail,
    )


def _finding(
    run: Run,
    step: int,
    claim: str,
    *,
    kind: str,
    common: int,
    size: int,
    ranks: tuple[int, ...],
    false_alarm_rate: float,
) -> Finding:
    last = int(run.steps[-1])
    return Finding(
        code=CODE,
        severity="confirm",
        claim=claim,
        ranks=ranks,
        step_first=min(step, last),
        step_last=last,
        sites=sites_of(min(step, last), ranks[:2], phase="batch", names=("samples",), slot="in0"),
        measured=float(common),
        expected=0.0,
        unit="samples of evaluations that are trained on",
        false_alarm_rate=false_alarm_rate,
        evidence={"kind": kind, "common": common, "size": size},
        next=_ADVICE,
    )
