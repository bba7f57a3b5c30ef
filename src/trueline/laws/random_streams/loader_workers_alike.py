"""The workers of a DataLoader draw the same random numbers.

What it finds
-------------
A generator that the data set makes once, `self.rng = np.random.default_rng(seed)`, and draws from as it reads a sample:
every loader worker has a copy of it in one state, on every rank that was given the same seed, and begins again with
that state in each epoch. To confirm: a `worker_init_fn` that gives all workers one seed; epochs that seed their
workers by one number.

Why it matters
--------------
Augmentations, crops and negatives come in groups of as many equal ones as there are workers, and the same in each
epoch. Nothing fails, and the variety that they are for is smaller than it looks.

How it decides
--------------
By reading, once, what the loader, the data set and its transforms hold, without calling anything. torch itself seeds
the global streams of torch and Python, and in recent releases of NumPy, differently in each worker. A generator that is
an attribute is not among these. It counts where the code that reads a sample (`__getitem__`, `__call__`, the
methods that these name) uses the attribute, seeds nothing and does not ask for the number of its worker, and where
`worker_init_fn` does not name it either. That each worker has an equal copy is how processes are started, and exact.

A `worker_init_fn` counts where its code seeds, never uses the number that it is given, and names nothing that is
another one in each worker (`initial_seed`, `get_worker_info`).

Where workers end with the epoch and what they read by draws from global streams, the number that torch seeds them by is
noted at the beginning of the first 8 epochs. Two epochs with one number draw alike: it is drawn from the loader's
generator, or torch's own, which somebody seeds again. Numbers of 63 bits that are drawn are equal once in 1e18 pairs.
Where such epochs have one order, too, and declare to shuffle, `epochs-alike` says so.

What it may miss
----------------
Generators in global variables or deeper in other objects, streams (`IterableDataset`), code that is no Python.

Example
-------
Each of the 4 loader workers has a copy of `Noisy.rng` in one state, and draws from it as it reads a sample: they draw
alike, and begin again in each epoch.

Wrong and right
---------------
Wrong:

```python
class Noisy(Dataset):
    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __getitem__(self, i):
        return self.x[i] + self.rng.normal(size=20)
```

Right:

```python
class Noisy(Dataset):
    def __getitem__(self, i):
        return self.x[i] + np.random.normal(size=20)  # which torch seeds in each worker
```
"""

from __future__ import annotations

from typing import Any

from trueline.judge.compared_ranks import data_parallel_ranks
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding, Severity
from trueline.schema.text.words import counted, listed
from trueline.store.reader import Run

CODE = "loader-workers-alike"
CALLS = {"": ("DataLoader",)}
QUESTION = "streams"
NEEDS: tuple[str, ...] = ()
ACROSS_RANKS = False


def check(run: Run) -> list[Finding]:
    """A Finding on generators that workers have copies of, and one on a seed that all are given; raises ``CannotTell``
    where no loader workers were seen.
    """
    data = {rank: run.env[rank].data for rank in data_parallel_ranks(run) if rank in run.env}
    workers = {rank: facts for rank, facts in data.items() if facts.get("num_workers")}
    if not workers:
        raise CannotTell("no DataLoader of torch with workers was gone through", reason="by-design")
    if not any("copied_generators" in facts for facts in workers.values()):
        raise CannotTell("it was not looked at what the loader workers draw from", reason="not-recorded")
    copied = {rank: facts for rank, facts in workers.items() if facts.get("copied_generators") and _come_again(facts)}
    seeded = {rank: facts for rank, facts in workers.items() if facts.get("workers_seeded_alike")}
    again = {rank: facts for rank, facts in workers.items() if len(_epochs_with_one_seed(facts)) > 1}
    findings = [_of_copies(run, copied)] if copied else []
    findings += [_of_seed(run, seeded)] if seeded else []
    return findings + ([_of_epochs(run, again)] if again else [])


def _come_again(facts: dict[str, Any]) -> bool:
    """True but for a single worker that lives on: it has the only copy."""
    return facts["num_workers"] > 1 or not facts.get("persistent_workers")


def _of_copies(run: Run, copied: dict[int, dict[str, Any]]) -> Finding:
    facts = copied[min(copied)]
    names = listed([f"`{name}`" for name in facts["copied_generators"]])
    again = "" if facts.get("persistent_workers") else ", and begin again in each epoch"
    num = facts["num_workers"]
    claim = (
        f"Each of the {num} loader workers has a copy of {names} in one state, and draws from it as it reads a "
        f"sample: they draw alike{again}."
        if num > 1
        else f"The loader worker of each epoch has a copy of {names} in one state, and draws from it as it reads a "
        "sample: each epoch draws as the one before."
    )
    advice = (
        "Draw from numpy.random, random or torch in place of it: torch seeds these by worker and epoch. Or make the "
        "generator in the worker, from torch.initial_seed().",
    )
    return _finding(run, copied, "warning", claim, "copies", float(num), advice)


def _epochs_with_one_seed(facts: dict[str, Any]) -> list[int]:
    """Epochs whose workers are seeded by the number that most are; of those that begin in one order, and declare to
    shuffle, one.
    """
    orders = facts.get("orders", ())
    epochs_by_seed: dict[str, dict[str, int]] = {}
    for epoch, seed in enumerate(facts.get("worker_seeds", ())):
        order = orders[epoch] if epoch < len(orders) and facts.get("shuffles") is True else ""
        epochs_by_seed.setdefault(seed, {}).setdefault(order or str(epoch), epoch)
    return max((list(epochs.values()) for seed, epochs in epochs_by_seed.items() if seed), key=len, default=list[int]())


def _of_epochs(run: Run, again: dict[int, dict[str, Any]]) -> Finding:
    facts = again[min(again)]
    num_epochs = len(_epochs_with_one_seed(facts))
    claim = (
        f"{num_epochs} of the first {counted(len(facts['worker_seeds']), 'epoch')} seed their loader workers by one "
        "number: each of them draws the same random numbers, as of augmentations."
    )
    advice = (
        "Seed once, before the first epoch: look for torch.manual_seed in the loop over epochs, or a DataLoader that "
        "is made anew with a generator in one state.",
    )
    return _finding(run, again, "confirm", claim, "epochs", float(num_epochs), advice)


def _of_seed(run: Run, seeded: dict[int, dict[str, Any]]) -> Finding:
    num = seeded[min(seeded)]["num_workers"]
    claim = (
        f"`worker_init_fn` seeds {counted(num, 'loader worker')} and does not use the worker's number: what they draw "
        "is the same in all of them, and in each epoch."
    )
    advice = (
        "Leave worker_init_fn out, as torch seeds its workers, or seed by torch.initial_seed() % 2**32, which goes by "
        "worker and epoch. If nothing is drawn as samples are read, leave it.",
    )
    return _finding(run, seeded, "confirm", claim, "seed", float(num), advice)


def _finding(
    run: Run,
    data: dict[int, dict[str, Any]],
    severity: Severity,
    claim: str,
    kind: str,
    measured: float,
    advice: tuple[str, ...],
) -> Finding:
    return Finding(
        code=CODE,
        severity=severity,
        claim=claim,
        ranks=tuple(sorted(data)),
        step_first=int(run.steps[0]) if len(run.steps) else None,
        step_last=int(run.steps[-1]) if len(run.steps) else None,
        measured=measured,
        expected=1.0,
        unit="loader workers that draw alike",
        false_alarm_rate=0.0 if severity == "warning" else None,
        evidence={"kind": kind, "generators": list(data[min(data)].get("copied_generators", ()))},
        next=advice,
    )
