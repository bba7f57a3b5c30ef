"""Activation checkpointing computes something else in the backward pass than the forward pass did.

What it finds
-------------
Recomputation with other dropout masks (`preserve_rng_state=False`, or a generator of the script's own), with weights or
buffers that were changed in place meanwhile, with a counter, a global or a flag that has another value by then, in
another format (a checkpoint function that does not restore autocast), or by parts that draw noise or keep a state.

`spectral_norm` of torch keeps one by design: in training mode each pass makes a step of its power iteration, and
recomputation is one more pass. Nothing of the script is wrong then, the gradient is still not that of the loss, and the
difference falls as the iteration converges: a warning, told apart from all else.

Why it matters
--------------
The loss is that of one function, the gradient that of another. Nothing fails, all ranks share it, and the loss still
falls: more slowly, or to a higher level.

How it decides
--------------
By equality. A module that runs while autograd does is computed again, whoever asked for it: torch's `checkpoint` in
either form, FSDP's wrapper, that of Megatron or DeepSpeed. At the first 16 sampled steps, and then at every 20th, later
every 100th, 64 neighbouring elements of what up to 16 modules take and return (at first all, up to 256 values, then in
rotation those that are computed again, 4 a step from the fifth to the sixteenth) are copied in both passes. Kernels are
deterministic on equal inputs, so that both are equal bit for bit. Named is the first place at which they are not, after
one at which they are, so the fault is in between. A value is right if any forward pass of its step had it there; how
often or in which order modules ran does not matter.

Kernels that add up with atomics may return other roundings. A relative difference that the order of two million terms
explains in float32 (κ √2 u √n = 5.2e-5, docs/rounding.md), or of up to 8 units of the coarsest format that is seen
(0.031 in bfloat16, 0.0039 in float16), is no finding.

Measured on a CPU in float32, 2 or 3 layers of width 32 or 64 (of our own, and of GPT-2, LLaMA and BERT in
transformers), at the place that is named:

| fault | relative difference |
| --- | --- |
| none (either form of torch's checkpoint, nested, selective, shared layers) | 0 |
| dropout of 0.1, other masks, at the dropout or at the attention that has it | 0.15 to 0.75 |
| dropout of 0.01, other masks, at the dropout, where any of 64 elements differ | 0.016 to 0.31 |
| weights multiplied by 1.001 | 0.001 |
| `spectral_norm` by a hook (by parametrization, which begins with 15 iterations), first step | 0.096 (0.00013) |
| the same, sixth step | 0.00077 (0) |

What it may miss
----------------
Inputs of a recomputation that were changed in place, since nothing before is equal; functions that use no module;
modules that are compiled, or in evaluation mode; elements, modules and steps that were not sampled (with dropout of
0.01, 64 elements have other masks three times in four); what rounding explains. What else changes in a module that
holds both a `spectral_norm` and the place is taken for the power iteration. Where forward passes were not seen, as
those of `model.encoder(x)` before the first one of the model, modules that ran in them are left alone. It was not tried
on a GPU.

Example
-------
What activation checkpointing computes again on rank 0 at steps 0-3 is not what the forward pass computed: the output of
blocks.0.dropout and blocks.1.dropout has other zeros although the input is equal: other dropout masks.

Wrong and right
---------------
Wrong:

```python
x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)  # block has dropout
```

Right:

```python
x = checkpoint(block, x, use_reentrant=False)
```
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from trueline.judge.compared_ranks import MAX_SITES, sites_of
from trueline.laws.recomputation.columns import Apart, Recomputed, rounding_explains
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import named_some, ranks_text, steps_text
from trueline.store.reader import Run

CODE = "recompute-differs"
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("recomputed",)
ACROSS_RANKS = False

_ADVICE: Mapping[str, tuple[str, ...]] = {
    "format": (
        "Let the checkpoint function enter the autocast that the forward pass was in before it computes again.",
    ),
    "masks": (
        "Leave preserve_rng_state at True (of transformers: gradient_checkpointing_kwargs), and draw random numbers "
        "from torch's own generators, whose state a checkpoint restores.",
    ),
    "values": (
        "Look there for what the forward pass reads and something changes: a counter, a cache, a flag, a weight or "
        "buffer that is changed in place before the backward pass. If it draws random numbers, leave "
        "preserve_rng_state at True.",
        "torch.utils.checkpoint.set_checkpoint_debug_enabled(True) tells of operations that differ.",
    ),
    "iteration": (
        "Leave layers with spectral_norm out of what is checkpointed. If memory does not allow that: the difference "
        "falls as the power iteration converges.",
    ),
}
"""By kind, the most telling first."""

_ITERATION = ": spectral_norm makes a step of its power iteration in each pass, and so one more there"


def check(run: Run) -> list[Finding]:
    """A Finding of all that differs, and one of what iterates by design; raises ``CannotTell`` where nothing that was
    computed again was compared.
    """
    rows = {key: Recomputed.from_json(text) for key, text in run.texts(NEEDS[0]).items()}
    if not any(row.compared for row in rows.values()):
        raise CannotTell(
            "of what ran again in the backward pass nothing is equal to what was seen before: its forward pass was not "
            "seen, its inputs were changed since, or it begins with random numbers before any module"
            if rows
            else "no module ran again in a backward pass of a sampled step: there is no activation checkpointing, or "
            "it is compiled, or holds no modules in training mode",
            reason="undecidable" if rows else "by-design",
        )
    findings: list[Finding] = []
    for by_design in (False, True):
        by_row = {
            key: [difference for difference in row.apart if _is_by_iteration(difference, row.iterating) is by_design]
            for key, row in sorted(rows.items())
        }
        by_row = {key: differences for key, differences in by_row.items() if differences}
        findings += [_finding(by_row, rows, by_design=by_design)] if by_row else []
    return findings


def _kind(difference: Apart) -> str:
    if difference.first != difference.again:
        return "format"
    return "masks" if difference.zeros and difference.first_shape == difference.again_shape else "values"


def _is_by_iteration(difference: Apart, iterating: Sequence[str]) -> bool:
    """True where a module with a power iteration explains it: one in what holds the last equal place and this one."""
    parts = zip(difference.before.split("."), difference.name.split("."), strict=False)
    shared = [a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], parts)]
    return _kind(difference) == "values" and any(module.split(".")[: len(shared)] == shared for module in iterating)


def _finding(
    by_row: Mapping[tuple[int, int], Sequence[Apart]], rows: Mapping[tuple[int, int], Recomputed], *, by_design: bool
) -> Finding:
    """The Finding of these differences, by the most telling kind of them."""
    steps, ranks = sorted({step for step, _ in by_row}), tuple(sorted({rank for _, rank in by_row}))
    among = sorted({step for step, _ in rows})
    differences = [difference for row_differences in by_row.values() for difference in row_differences]
    # Not every sample has the module in which it begins, so the kind is that of all of them.
    kind = min(map(_kind, differences), key=list(_ADVICE).index)
    telling = [difference for difference in differences if _kind(difference) == kind]
    names = sorted({difference.name for difference in telling})
    kind, reason = ("iteration", _ITERATION) if by_design else (kind, "")
    worst = max(telling, key=lambda difference: difference.relative)
    return Finding(
        code=CODE,
        severity="warning" if by_design else "error",
        claim=f"What activation checkpointing computes again on {ranks_text(ranks)} at "
        f"{steps_text(steps, among=among)} is not what the forward pass computed: "
        f"{_difference_text(kind, telling)}{reason}.",
        ranks=ranks,
        step_first=steps[0],
        step_last=steps[-1],
        sites=sites_of(steps[0], ranks[:2], phase="fwd", names=names[: MAX_SITES // 2]),
        measured=worst.relative,
        expected=rounding_explains([worst.first, worst.again]),
        unit="relative difference, and what rounding explains (at most)",
        false_alarm_rate=0.0,
        evidence={
            "kind": kind,
            "names": names[:100],
            "places": [_difference_place(difference) for difference in differences[:100]],
            "steps": steps[:100],
        },
        next=_ADVICE[kind],
    )


def _difference_text(kind: str, differences: Sequence[Apart]) -> str:
    """``the output of a and b has other zeros``."""
    of_outputs = [difference for difference in differences if difference.is_output] or list(differences)
    names = sorted({difference.name for difference in of_outputs})
    first = min(of_outputs, key=lambda difference: difference.name)
    value = (
        f"{'the output' if first.is_output else 'what goes into'} {'of ' if first.is_output else ''}{named_some(names)}"
    )
    # Where the input of the same module is equal, the module itself computes another output.
    is_own_change = first.is_output and all(
        difference.before == difference.name and not difference.before_is_output for difference in of_outputs
    )
    origin = f", after the {_side(first.before_is_output)} of {first.before}"
    since_clause = " although the input is equal" if is_own_change else origin
    if kind == "format":
        return f"{value} is {first.again}, and was {first.first}"
    if first.first_shape != first.again_shape:
        return f"{value} has the shape {list(first.again_shape)}, and had {list(first.first_shape)}{since_clause}"
    if kind == "masks":
        return f"{value} has other zeros{since_clause}: other dropout masks"
    largest = max(difference.relative for difference in of_outputs)
    return f"{value} differs by up to {largest:.2g} of its length{since_clause}"


def _side(is_output: bool) -> str:
    return "output" if is_output else "input"


def _difference_place(difference: Apart) -> str:
    before = f"{_side(difference.before_is_output)} of {difference.before}"
    return f"{before} -> {_side(difference.is_output)} of {difference.name}: {difference.relative:.3g}"
