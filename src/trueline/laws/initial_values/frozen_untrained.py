"""A part of the model is frozen, and its values look as an initialiser drew them.

What it finds
-------------
A new head that is frozen together with the base: an adapter without `modules_to_save`, a loop that sets `requires_grad`
to False for all names but some. A layer that the checkpoint did not hold, among frozen ones that it did.

Why it matters
--------------
Nothing will ever train it. The rest of the model learns to live with random numbers at its end, and hardly learns at
all.

How it decides
--------------
Before the first update, by mean, spread, kurtosis and the largest magnitude of up to 16,384 elements: values that end
at the bound of a usual uniform initialiser (torch's own, Xavier's, Kaiming's), or those of a normal distribution with a
usual standard deviation, beside a bias that is zero or in 4,096 elements and more. Such a matrix is for you to confirm
where no parameter that is trained comes after it in the model; or where nine tenths of the other frozen matrices, and
four at least, do not look so, since they were loaded.

What it may miss
----------------
Initialisers of one's own, a part that is frozen by a `detach`, and a random part in front of trained ones in a model
whose other parts are random too. A fixed random projection is meant so, and is reported.

Example
-------
classifier is frozen, and its values look as an initialiser drew them: nothing that is trained comes after it.

Wrong and right
---------------
Wrong:

```python
model = get_peft_model(model, LoraConfig(target_modules=["query", "value"]))
```

Right:

```python
model = get_peft_model(model, LoraConfig(target_modules=["query", "value"], modules_to_save=["classifier"]))
```
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from trueline.judge.compared_ranks import MAX_SITES, sites_of
from trueline.laws.initial_values.columns import NUM_FIELDS, FrozenParam, InitialValues, frozen_params
from trueline.laws.initial_values.drawn import looks_drawn
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import named_some, ranks_text
from trueline.store.reader import Run

CODE = "frozen-untrained"
CALLS = {"": ("requires_grad_", "get_peft_model")}
QUESTION = "start"
NEEDS: tuple[str, ...] = ("frozen_params", "frozen_values")
ACROSS_RANKS = False

FEWEST_LOADED, LOADED_SHARE = 4, 0.9
"""Other frozen matrices that do not look drawn, and their share, where the rest was loaded."""

Kind = Literal["end", "among"]


def check(run: Run) -> list[Finding]:
    """A Finding on frozen parts that look drawn; raises ``CannotTell`` where nothing is frozen, or training had begun
    before.
    """
    texts, values = run.texts("frozen_params"), run.lists("frozen_values")
    attempts = run.manifest.attempts
    if not texts:
        raise CannotTell("no parameter is frozen", reason="by-design")
    if min(step for step, _ in texts) > 0 or (attempts and attempts[0].updates):
        raise CannotTell("training had begun before it was watched", reason="by-design")
    modules: dict[int, tuple[Kind, list[str]]] = {}
    for (step, rank), text in texts.items():
        rows = np.asarray(values.get((step, rank), ()), dtype=np.float64).reshape(-1, NUM_FIELDS).tolist()
        drawn = _drawn(frozen_params(text), [InitialValues(*row) for row in rows])
        if drawn:
            modules[rank] = drawn
    return [_finding(run, modules)] if modules else []


def _drawn(params: Sequence[FrozenParam], values: Sequence[InitialValues]) -> tuple[Kind, list[str]] | None:
    """The modules whose matrix looks drawn, at the end of the model or among loaded ones; None without any."""
    biases = {param.name: value for param, value in zip(params, values, strict=False) if len(param.shape) == 1}
    matrices = [
        (param, looks_drawn(value, param.shape, biases.get(f"{_module_of(param.name)}.bias")))
        for param, value in zip(params, values, strict=False)
        # a vector, also of shape [1, 1, d], has no fan-in that the bound of an initialiser would follow from
        if sum(size > 1 for size in param.shape) > 1
    ]
    at_end = [param.name for param, is_drawn in matrices if is_drawn and param.is_behind]
    if at_end:
        return "end", list(dict.fromkeys(map(_module_of, reversed(at_end))))
    drawn = [param.name for param, is_drawn in matrices if is_drawn]
    num_loaded = len(matrices) - len(drawn)
    if drawn and num_loaded >= max(FEWEST_LOADED, LOADED_SHARE * len(matrices)):
        return "among", list(dict.fromkeys(map(_module_of, drawn)))
    return None


def _module_of(name: str) -> str:
    return name.rpartition(".")[0] or name


def _finding(run: Run, modules: dict[int, tuple[Kind, list[str]]]) -> Finding:
    ranks = tuple(sorted(modules))
    kind, names = modules[ranks[0]]
    is_are, its_their = ("is", "its") if len(names) == 1 else ("are", "their")
    pronoun = "it" if len(names) == 1 else "them"
    beside = (
        f"nothing that is trained comes after {pronoun} in the model"
        if kind == "end"
        else "the other frozen matrices do not"
    )
    return Finding(
        code=CODE,
        severity="confirm",
        claim=f"{named_some([f'`{name}`' for name in names])} {is_are} frozen, and {its_their} values look as an "
        f"initialiser drew them: {beside} ({ranks_text(ranks, all_ranks=run.ranks)}).",
        ranks=ranks,
        step_first=0,
        step_last=0,
        sites=sites_of(0, ranks[:2], phase="param", names=names[: MAX_SITES // 2]),
        measured=float(len(names)),
        expected=0.0,
        unit="frozen modules with values as they were drawn",
        false_alarm_rate=None,
        evidence={"kind": kind, "names": names[:100]},
        next=(
            "Train it: requires_grad_(True) before the optimizer is made; with adapters name it in modules_to_save, "
            "or pass the task_type.",
            "If it was to be loaded, look for its name among the missing keys of the checkpoint.",
        ),
    )
