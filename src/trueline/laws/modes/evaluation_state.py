"""A forward pass that trains nothing finds state of the model that is not ready, or changes it.

What it finds
-------------
An evaluation before training whose spectral norms still have the random vectors that they begin with. A forward pass in
evaluation mode that changes buffers: running means, codebooks or averages of a layer that forgets to ask for the mode,
batch normalisation that `eval()` does not reach. Statistics, or values that a layer takes from the first batch that it
sees (ActNorm), that were made before the first step.

Why it matters
--------------
A weight is divided by a number that is not its norm, so that outputs are too large by a factor for each layer: the
first numbers of a job mean nothing. What an evaluation changes leaks held-out data into the model, and how often
somebody evaluates changes what is trained. A layer that was set by a batch of zeros starts from there.

How it decides
--------------
By what is there, at the passes at which `evaluation-draws` looks, and at the first four before training in training
mode.

- A spectral norm of torch divides by u' W v. That is compared with what eight iterations of the power method lead to,
  which is at most the norm: less than half of it is told, for you to confirm. One forward pass in training mode makes
  it more than half as a rule; `parametrizations.spectral_norm` begins with 15 iterations and is silent, unless the
  weight is set anew afterwards.
- Buffers that are saved with the model, and before training its parameters, are known by their versions and identity:
  one that a pass in evaluation mode writes is told, for you to confirm. Whole numbers, buffers that are not saved
  (caches), and observers of quantization are left out.
- What a pass in training mode changes before the first step is an information: many warm up so on purpose.

What it may miss
----------------
Spectral norms of other libraries; state that is kept outside of buffers; evaluations that `evaluation-draws` does not
see. A buffer that is written with the values that it has counts as changed.

Example
-------
An evaluation before the first step finds the spectral norm of 4 weights at its start: `conv1.weight` is divided by
0.02, where its norm is 0.897 or more.

Wrong and right
---------------
Wrong:

```python
validate(model.eval())  # before any training
train(model)
```

Right:

```python
with torch.no_grad():
    for x, _ in islice(batches, 20):
        model.train()(x)  # lets the spectral norms find their vectors
validate(model.eval())
```
"""

from __future__ import annotations

from collections.abc import Sequence

from trueline.judge.compared_ranks import sites_of
from trueline.laws.modes.evaluations import SeenPass, seen_passes, steps_of, when_text
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, named_some, ranks_text
from trueline.store.reader import Run

CODE = "evaluation-state"
CALLS = {"": ("eval",)}
QUESTION = "configuration"
NEEDS: tuple[str, ...] = ("evaluations", "evaluation_values")
ACROSS_RANKS = False

HALF = 0.5
"""Share of the spectral norm from which on a weight is divided by about that."""


def check(run: Run) -> list[Finding]:
    """A Finding of each kind at most; raises ``CannotTell`` where no such pass was seen."""
    passes = seen_passes(run)
    findings: list[Finding] = []
    evaluations = [seen_pass for seen_pass in passes if not seen_pass.facts.training]
    # In training mode a pass makes a step of the power iteration, and norms mend themselves.
    if norms_off := [evaluation for evaluation in evaluations if _divided_too_little(evaluation)]:
        findings.append(_norm_finding(run, norms_off))
    if changing := [seen_pass for seen_pass in evaluations if seen_pass.facts.changed]:
        findings.append(_change_finding(run, changing))
    before_training = [seen_pass for seen_pass in passes if seen_pass.facts.training and seen_pass.is_first]
    if changing := [seen_pass for seen_pass in before_training if seen_pass.facts.changed]:
        findings.append(_before_training_finding(run, changing))
    return findings


def _divided_too_little(seen_pass: SeenPass) -> dict[str, tuple[float, float]]:
    """Weights that are divided by less than ``HALF`` of their norm."""
    return {name: (divisor, norm) for name, (divisor, norm) in seen_pass.norms.items() if abs(divisor) < HALF * norm}


def _norm_finding(run: Run, passes: Sequence[SeenPass]) -> Finding:
    names = list(dict.fromkeys(name for seen_pass in passes for name in _divided_too_little(seen_pass)))
    # Reversed, so that of each weight the first pass stays.
    worst = {name: pair for seen_pass in passes[::-1] for name, pair in _divided_too_little(seen_pass).items()}
    name = min(worst, key=lambda weight: abs(worst[weight][0]) / worst[weight][1])
    divisor, norm = worst[name]
    weights = counted(len(names), "weight")
    start = (
        f"An evaluation before the first step left the spectral norm of {weights} at its start"
        if passes[0].is_first
        else f"An evaluation {when_text(passes)} divides {weights} by less than half of the spectral norm"
    )
    return _finding(
        run,
        passes,
        kind="norm-off",
        claim=f"{start}: `{name}` is divided by {divisor:.2g}, where its norm is {norm:.3g} or more"
        f" ({named_some(names)}; {ranks_text(_ranks(passes), all_ranks=run.ranks)}).",
        names=names,
        measured=abs(divisor) / norm,
        expected=1.0,
        unit="share of the spectral norm that a weight is divided by",
        next=(
            "Take no number from this evaluation. Make some forward passes in training mode before it (20, under "
            "no_grad), or use torch.nn.utils.parametrizations.spectral_norm, which begins with 15 iterations.",
            "If the weights come from a checkpoint, load the vectors of the norms (weight_u, weight_v) with them.",
        ),
    )


def _change_finding(run: Run, passes: Sequence[SeenPass]) -> Finding:
    names = _changed_by(passes)
    return _finding(
        run,
        passes,
        kind="changed-in-evaluation",
        claim=f"A forward pass in evaluation mode changes {named_some([f'`{name}`' for name in names])}: "
        f"{when_text(passes)}, on {ranks_text(_ranks(passes), all_ranks=run.ranks)}.",
        names=names,
        measured=float(len(names)),
        expected=0.0,
        unit="buffers that evaluations change",
        next=(
            "Update it only `if self.training`; where it is batch normalisation, look why eval() does not reach it.",
            "If it counts what it sees on purpose, register it with persistent=False, or leave this.",
        ),
    )


def _before_training_finding(run: Run, passes: Sequence[SeenPass]) -> Finding:
    names = _changed_by(passes)
    return _finding(
        run,
        passes,
        kind="changed-before-training",
        claim=f"{'A forward pass' if len(passes) == 1 else 'Forward passes'} in training mode before the first step "
        f"changed {named_some([f'`{name}`' for name in names])} on "
        f"{ranks_text(_ranks(passes), all_ranks=run.ranks)}.",
        names=names,
        measured=float(len(names)),
        expected=None,
        unit="buffers and parameters that passes before training change",
        next=(
            "If it was a dry run on made-up inputs, call it in evaluation mode, or put the buffers back "
            "(reset_running_stats()): training starts from these values.",
        ),
        by_design=True,
    )


def _changed_by(passes: Sequence[SeenPass]) -> list[str]:
    """Names of the buffers and parameters that any of ``passes`` changed, the first first."""
    return list(dict.fromkeys(name for seen_pass in passes for name in seen_pass.facts.changed))


def _ranks(passes: Sequence[SeenPass]) -> tuple[int, ...]:
    return tuple(sorted({seen_pass.rank for seen_pass in passes}))


def _finding(
    run: Run,
    passes: Sequence[SeenPass],
    *,
    kind: str,
    claim: str,
    names: Sequence[str],
    measured: float,
    expected: float | None,
    unit: str,
    next: tuple[str, ...],
    by_design: bool = False,
) -> Finding:
    ranks, (first, last) = _ranks(passes), steps_of(run, passes)
    return Finding(
        code=CODE,
        severity="info" if by_design else "confirm",
        claim=claim,
        ranks=ranks,
        step_first=first,
        step_last=last,
        sites=sites_of(first, ranks[:2], phase="fwd", names=names[:4]),
        measured=measured,
        expected=expected,
        unit=unit,
        false_alarm_rate=0.0,
        evidence={"kind": kind, "names": list(names[:100])},
        next=next,
    )
