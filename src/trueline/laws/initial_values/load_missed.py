"""A checkpoint is loaded, and what it holds has no place in the model.

What it finds
-------------
Names that have another prefix in the checkpoint than in the model (`module.` of DDP, `_orig_mod.` of torch.compile,
`model.` of Lightning, `backbone.`), a checkpoint whose weights stand below a key of it, and a dict of the model's own
state into which nothing was merged. `load_state_dict(strict=False)` passes over all of these in silence, and
`from_pretrained` with a warning.

Why it matters
--------------
The model is trained from random values, or a part of it is, and everybody believes that it was pretrained or that the
job goes on. It trains all the same, more slowly and to a worse end.

How it decides
--------------
By names and shapes. Of each load before the first update, what `load_state_dict` returns as missing and unexpected (of
`from_pretrained`, what it knows of that): a warning where at least half of both, under one renaming (a prefix
more, less, or in the place of another; a part of the name more or less), are the same names with the same shapes. For
you to confirm where these are fewer, or where nothing of a checkpoint had a place and no renaming is known. A tensor
that a later load fills is missing no more. What is missing alone (a new head, an adapter that is loaded by itself), or
unexpected alone (a part that was dropped), is no finding, nor is a head of another shape.

A prefix in the place of another has to make all tensors below the two fit, with two matrices at least, as parts of two
models may be alike by chance.

What it may miss
----------------
Loads without `load_state_dict`, as loops that copy by hand; those before `trueline.watch` where the job is not started
by `trueline run`; parameters that are renamed altogether among others that fit; weights that fit, and are wrong.

Example
-------
load_state_dict(strict=False) put 0 of 62 tensors into Encoder (train.py:31): 62 keys of the checkpoint
('module.layer1.weight', …) have no place in it, and fit without the prefix 'module.'.

Wrong and right
---------------
Wrong:

```python
model.load_state_dict(torch.load("ddp.pt"), strict=False)
```

Right:

```python
state = torch.load("ddp.pt")
model.load_state_dict({name.removeprefix("module."): value for name, value in state.items()})
```
"""

from __future__ import annotations

from dataclasses import dataclass

from trueline.judge.compared_ranks import MAX_SITES, sites_of
from trueline.laws.initial_values.columns import Load, loads_from
from trueline.laws.initial_values.renaming import FEWEST_MATRICES, Renaming, renaming_of
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, ranks_text
from trueline.store.reader import Run

CODE = "load-missed"
CALLS = {"": ("load_state_dict", "from_pretrained")}
QUESTION = "start"
NEEDS: tuple[str, ...] = ()
ACROSS_RANKS = False

MOST_FINDINGS = 3


@dataclass(frozen=True, slots=True)
class _Miss:
    """``kind`` of a load that went past its module, and the renaming by which it would not have."""

    load: Load
    kind: str
    renaming: Renaming | None

    @property
    def is_most(self) -> bool:
        """True where the renaming explains half of what has no place, and half of what was not filled."""
        num = 0 if self.renaming is None else len(self.renaming.pairs)
        return 2 * num >= max(len(self.load.unexpected), len(self.load.missing))


def check(run: Run) -> list[Finding]:
    """Findings on loads, at most ``MOST_FINDINGS``; raises ``CannotTell`` where none were looked at."""
    texts = run.texts("loads") if run.has("loads") else {}
    if not texts:
        raise CannotTell(run.manifest.only_from_start("what was loaded before training"), reason="not-recorded")
    by_load: dict[tuple[int, Load], list[int]] = {}
    for (step, rank), text in sorted(texts.items()):
        for load in loads_from(text):
            by_load.setdefault((step, load), []).append(rank)
    findings: list[Finding] = []
    for (step, load), ranks in by_load.items():
        miss = _miss(load)
        if miss is not None:
            findings.append(_finding(run, miss, step, tuple(ranks)))
    return findings[:MOST_FINDINGS]


def _miss(load: Load) -> _Miss | None:
    missing = {name for name, _ in load.missing}
    if load.nested and any(name in missing for name, _ in load.unexpected):
        return _Miss(load, "nested", None)
    renaming = renaming_of(load.unexpected, load.missing)
    if renaming:
        kind = "nested" if load.nested else "own" if load.num_own else "renamed"
        miss = _Miss(load, kind, renaming)
        # a head that was dropped and is drawn anew may be that of a second copy in the checkpoint
        return miss if miss.is_most or renaming.num_matrices >= FEWEST_MATRICES else None
    if load.nested or load.num_own:
        return None
    # state of another kind than weights, as of a module that has none, is no checkpoint
    return _Miss(load, "nothing", None) if load.num == len(load.unexpected) > 1 and load.missing else None


def _finding(run: Run, miss: _Miss, step: int, ranks: tuple[int, ...]) -> Finding:
    load, renaming = miss.load, miss.renaming
    num_put = 0 if load.nested else load.num - (load.num_own or len(load.unexpected))
    at_restart = f" at the restart at step {step}" if step in run.restarts else ""
    where = f" ({load.line})" if load.line else ""
    of_job = "" if load.name is not None else ", which is no part of the model that is trained"
    on = "" if len(ranks) == len(run.ranks) else f" on {ranks_text(ranks)}"
    names = [missing for _, missing in renaming.pairs] if renaming else [name for name, _ in load.missing]
    severity = "warning" if miss.is_most or miss.kind == "nested" else "confirm"
    return Finding(
        code=CODE,
        severity=severity,
        claim=f"{load.call} put {num_put:,} of {counted(load.num, 'tensor')} into {load.into}{where}{at_restart}{on}"
        f"{of_job}: {_why(miss)}.",
        ranks=ranks,
        step_first=step,
        step_last=step,
        sites=sites_of(step, ranks[:1], phase="param", names=names[:MAX_SITES]),
        measured=float(num_put),
        expected=float(load.num),
        unit="tensors that were loaded",
        false_alarm_rate=None,
        evidence={"kind": miss.kind, "names": names[:100], "num_missing": len(load.missing)},
        next=_advice(miss),
    )


def _why(miss: _Miss) -> str:
    load, renaming = miss.load, miss.renaming
    fits = f"{renaming.words}" if renaming else ""
    if miss.kind == "nested":
        return f"they stand below its key '{load.nested}'" + (f", and fit {fits}" if fits else "")
    names = [name for name, _ in renaming.pairs] if renaming else [name for name, _ in load.unexpected]
    more = ", …" if len(names) > 1 else ""
    if miss.kind == "own":
        file = f"'{load.file}'" if load.file else "the file that was read last"
        return (
            f"{counted(load.num_own, 'value')} it was given are its own, and {len(names):,} of {file} "
            f"('{names[0]}'{more}) would fit {fits}"
        )
    one = len(names) == 1
    keys = (
        f"{counted(len(names), 'key')} of the checkpoint ('{names[0]}'{more}) {'has' if one else 'have'} no place in it"
    )
    if renaming:
        return f"{keys}, and {'fits' if one else 'fit'} {fits}"
    return f"{keys}, and {len(load.missing):,} of its {load.num_tensors:,} tensors were not loaded"


def _advice(miss: _Miss) -> tuple[str, ...]:
    load = miss.load
    if miss.kind == "nested":
        first = f"Load what stands there: model.load_state_dict(checkpoint['{load.nested}'])."
    elif miss.renaming is not None:
        first = "Rename the keys before the load: names of the checkpoint fit the module's " + miss.renaming.words + "."
    else:
        first = "Compare the names of the checkpoint with those of model.state_dict()."
    return first, "Print what load_state_dict(…, strict=False) returns, or leave strict=False out, which then raises."
