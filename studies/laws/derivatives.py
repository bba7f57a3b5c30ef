"""Measure the law that a gradient is the derivative of its loss, on models of transformers; writes derivatives.md.

    python -m studies.laws.derivatives

About twenty minutes on one core. Nothing is downloaded: models are made from configurations, smaller than published
ones, in float32, and judged by the code of ``trueline trial batch --law gradient`` without processes in between.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from studies.laws.initial_values import VOCABULARY, of_transformers, within_patience
from benchmarks.page import arguments, head, table, write
from gallery.scoring import upper_bound
from torch import Tensor, nn

from trueline.capture.trial.moved_weights import Trained, signs_of, still_rows
from trueline.comparison.expect.rounding import UNIT_ROUNDOFF
from trueline.trials.batch.first_steps import FirstStep
from trueline.trials.batch.gradient import Direction, judge_gradient
from trueline.trials.batch.laws import LawJudgement

ROWS, LENGTH = 4, 16


class _Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient / 2


FAULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "the output is detached": Tensor.detach,
    "its backward halves": _Halved.apply,  # type: ignore[dict-item]
    "its backward lacks 10 %": lambda x: 0.9 * x + 0.1 * x.detach(),
}

EFFECTS = (0.0, 0.01, 0.05, 0.25, np.inf)
"""Bounds of how much of the gradient a fault changes, each parameter's weighed by the size of its weights."""


ABOUT = (
    "What is denied is told as it is: the router of PhiMoE and the attention of YOSO have a backward of their own that "
    "estimates, on purpose."
)


class Job:
    """A first step of ``model``, as often as it is asked for. ``fault`` is put on the output of one module."""

    def __init__(self, model: nn.Module, seed: int) -> None:
        stream = torch.Generator().manual_seed(seed)
        ids = torch.randint(3, VOCABULARY, (ROWS, LENGTH), generator=stream)
        self.model, self._batch = model.eval(), {"input_ids": ids, "labels": ids}  # no dropout, as in the trial
        named = [(name, param) for name, param in model.named_parameters() if param.requires_grad]
        still, called = still_rows(model), dict[int, int]()

        def note(module: nn.Module, _: Any) -> None:
            for param in module.parameters(recurse=False):
                called.setdefault(id(param), len(called))

        handles = [module.register_forward_pre_hook(note) for module in model.modules()]
        self.model(**self._batch)
        for handle in handles:
            handle.remove()
        named.sort(key=lambda each: called.get(id(each[1]), len(called)))
        self.trained = [
            Trained.of_param(name, param, index=place, still=still.get(id(param)))
            for place, (name, param) in enumerate(named)
        ]

    def step(
        self, direction: Direction = "across", move: float = 0.0, among: Sequence[int] = (), *, nudge: float = 0.0
    ) -> FirstStep:
        before = [each.param.detach().clone() for each in self.trained]
        with torch.no_grad():
            for each in self.trained if nudge else ():
                each.param.add_(each.param * signs_of(each.param, seed=each.index) * nudge)
        for place in among:
            self.trained[place].move(move, self._signs.get(place) if direction == "along" else None)
        self.model.zero_grad()
        torch.manual_seed(0)
        loss = self.model(**self._batch).loss
        slopes: list[dict[str, Any]] = []
        if not among:
            loss.backward()
            slopes = [each.slope() for each in self.trained]
        if not among and not nudge:
            packed = {each.index: each.packed() for each in self.trained}
            self._signs = {place: signs for place, signs in packed.items() if signs is not None}
        with torch.no_grad():
            for each, kept in zip(self.trained, before, strict=True):
                each.param.copy_(kept)
        facts = {"slopes": slopes, "unit": UNIT_ROUNDOFF["float32"]}
        return FirstStep(np.array([float(loss.detach().double())]), {}, [facts])

    def judged(self, base: FirstStep) -> LawJudgement:
        """What the trial says, after it has run the job as it does."""
        return judge_gradient(base, self.step(nudge=UNIT_ROUNDOFF["float32"]), self.step)


def main() -> None:
    """Measure all and write the page."""
    parser = arguments(__doc__)
    parser.add_argument("--models", type=int, default=10_000, help="at most so many")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    healthy, power, near = Counter[str](), Counter[tuple[str, float, str]](), Counter[str]()
    why: list[str] = []
    for seed, (name, make) in enumerate(of_transformers()):
        if healthy.total() >= chosen.models:
            break
        torch.manual_seed(seed)
        job = within_patience(lambda make=make, seed=seed: _job(make, seed))
        if job is None:
            continue
        base = job.step()
        if not base.is_finite or not any(each["size"] for each in base.facts[0]["slopes"]):
            continue
        judged = job.judged(base)
        healthy[str(judged.holds)] += 1
        if not judged.holds:
            why.append(f"{name}: {judged.says}")
        for fault in FAULTS if judged.holds else ():
            _with_fault(job, base, fault, random.Random(seed), power, near)
        print(seed, name, judged.holds, dict(healthy), flush=True)
    _write(healthy, why, power, near, chosen.models)


def _job(make: Callable[[], nn.Module], seed: int) -> Job:
    job = Job(make(), seed)
    job.step()  # raises where the model has no loss of these inputs
    return job


def _with_fault(
    job: Job,
    sound: FirstStep,
    fault: str,
    chance: random.Random,
    power: Counter[tuple[str, float, str]],
    near: Counter[str],
) -> None:
    inside = [module for module in job.model.modules() if next(module.parameters(), None) is not None]
    module = chance.choice(inside[1:])
    change = FAULTS[fault]

    def wrong(_: nn.Module, __: Any, output: Any) -> Any:
        return change(output) if isinstance(output, Tensor) and output.requires_grad else None

    handle = module.register_forward_hook(wrong)
    with contextlib.suppress(RuntimeError):  # nothing is left that has a gradient
        base = job.step()
        pairs = zip(sound.facts[0]["slopes"], base.facts[0]["slopes"], strict=True)
        apart = np.linalg.norm([one["across"] - other["across"] for one, other in pairs])
        effect = float(apart / np.linalg.norm([one["size"] for one in sound.facts[0]["slopes"]]))
        if effect > 1e-6:
            judged = job.judged(base)
            bound = next(bound for bound in EFFECTS[1:] if effect < bound)
            said = "found" if judged.holds is False else "nothing" if judged.holds else "cannot tell"
            said = "found" if "times that of" in judged.says else said
            power[fault, bound, said] += 1
            if judged.holds is False:
                near[_near(job, module, judged.says)] += 1
    handle.remove()


def _near(job: Job, module: nn.Module, says: str) -> str:
    """How far behind the last parameter of the faulty module the last one is that is named, of all parameters."""
    if "It is wrong in " not in says:
        return "none named"
    where = says.split("It is wrong in ")[1].removeprefix("one of ").split(", and right")[0].rstrip(".")
    places = {each.name: each.index for each in job.trained}
    own = max(place for place, each in enumerate(job.trained) if any(each.param is one for one in module.parameters()))
    first, last = (places[name] for name in (where.split(" … ") * 2)[:2])
    return "in it" if first <= own <= last else "behind it" if first > own else "in front of it"


def _write(
    healthy: Counter[str], why: list[str], power: Counter[tuple[str, float, str]], near: Counter[str], models: int
) -> None:
    told = healthy["True"] + healthy["False"]
    said = (
        f"{healthy.total()} healthy models: the gradient is that of the loss in {healthy['True']}, is not in "
        f"{healthy['False']}, and it cannot be told in {healthy['None']}. With 95 % confidence it is denied in at most "
        f"{upper_bound(healthy['False'], told):.1%} of such models."
    )
    rows: list[list[Any]] = []
    for fault in FAULTS:
        for low, high in itertools.pairwise(EFFECTS):
            counts = [power[fault, high, answer] for answer in ("found", "nothing", "cannot tell")]
            if sum(counts):
                of = f"{low:.0%} to {high:.0%}" if np.isfinite(high) else f"{low:.0%} and more"
                rows.append([fault, of, sum(counts), *counts])
    header = ["at the output of a module drawn at random", "of the gradient's size", "models", "found", "nothing"]
    write(
        __file__,
        head(
            "Is a gradient the derivative of its loss?",
            command=f"python -m studies.laws.derivatives --models {models}",
        ),
        said,
        *why,
        ABOUT,
        "## Power",
        table([*header, "cannot tell"], rows),
        f"Parameters named when it was found: of the faulty module {near['in it']}, in front of it "
        f"{near['in front of it']}, behind it {near['behind it']}; none {near['none named']}.",
        name="derivatives.md",
    )


if __name__ == "__main__":
    main()
