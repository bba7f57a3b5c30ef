"""Measure what `frozen-model-drops` says of healthy trainings with a second model, and how often it sees a teacher in
training mode; writes teachers.md.

    python -m benchmarks.laws.teachers

About half an hour on one core. Nothing is downloaded: models of transformers are made from configurations, smaller than
published ones, with the probabilities of dropout that they come with.
"""

from __future__ import annotations

import copy
import gc
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.laws.initial_values import VOCABULARY, of_transformers, within_patience
from benchmarks.page import arguments, head, table, write
from torch import Tensor, nn
from torch.nn import functional

import trueline
from trueline.analyze.checks.steps.frozen_model_drops import check
from trueline.capture.probes.other_models import dropping_parts
from trueline.testing.gallery import upper_bound

STEPS, ROWS, LENGTH = 7, 2, 12
After = Callable[[], object]
Job = tuple[nn.Module, Callable[[Tensor], Tensor], After]
"""A model, its loss on ids [B, T], and what follows an update."""


def said(job: Job) -> list[str]:
    """Severities of what is found in a training, watched by the default plan."""
    model, loss_of, after = job
    gc.collect()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        watch = trueline.watch(model, optimizer, out=out)
        for _ in range(STEPS):
            loss_of(torch.randint(3, VOCABULARY, (ROWS, LENGTH))).backward()
            optimizer.step()
            optimizer.zero_grad()
            after()
        watch.close()
        run = trueline.open_run(out)
        assert run.measured("other_models").any()
        return [finding.severity for finding in check(run)]


def first_of(output: Any) -> Tensor:
    """The first floating-point tensor that a model returns: logits, or hidden states."""
    values = [output] if isinstance(output, Tensor) else list(output.values())
    return next(each for each in values if isinstance(each, Tensor) and each.is_floating_point())


def made(model: nn.Module, ids: Tensor) -> Tensor:
    """What a model makes of ids."""
    return first_of(model(input_ids=ids))


def taught(model: nn.Module, teacher: nn.Module, *, after: After = lambda: None, copies: bool = False) -> Job:
    """Distillation from what the teacher makes without gradients."""

    def loss_of(ids: Tensor) -> Tensor:
        with torch.no_grad():
            target = made(teacher, ids.clone() if copies else ids)
        return functional.mse_loss(made(model, ids), target)

    return model, loss_of, after


def in_evaluation_mode(model: nn.Module) -> Job:
    """A teacher or reference as it should be."""
    return taught(model, copy.deepcopy(model).eval())


def by_itself(model: nn.Module) -> Job:
    """Old values of the trained model, as of a policy."""
    return taught(model, model)


def averaged(model: nn.Module) -> Job:
    """A mean teacher that drops, too."""
    teacher = copy.deepcopy(model).requires_grad_(False)

    def follow() -> None:
        for mine, theirs in zip(teacher.parameters(), model.parameters(), strict=True):
            mine.data.lerp_(theirs.data, 0.1)

    return taught(model, teacher, after=follow)


def checkpointed(model: nn.Module) -> Job:
    """Activation checkpointing, which calls layers without gradients first."""
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})  # type: ignore[operator]
    model.enable_input_require_grads()  # type: ignore[operator]
    return model, lambda ids: made(model, ids).square().mean(), lambda: None


def sampled(model: nn.Module) -> Job:
    """Monte Carlo dropout of a teacher."""
    teacher = copy.deepcopy(model)

    def loss_of(ids: Tensor) -> Tensor:
        with torch.no_grad():
            target = torch.stack([made(teacher, ids) for _ in range(3)]).mean(0)
        return functional.mse_loss(made(model, ids), target)

    return model, loss_of, lambda: None


def behind(model: nn.Module) -> Job:
    """A head on features of a frozen model in training mode."""
    width = made(model, torch.full((ROWS, LENGTH), 3)).shape[-1]
    head_of = nn.Linear(width, 4)

    def loss_of(ids: Tensor) -> Tensor:
        with torch.no_grad():
            features = made(model, ids)
        return head_of(features).square().mean()

    return head_of, loss_of, lambda: None


def against(model: nn.Module) -> Job:
    """A critic of what another model, which it is trained with in turn, makes."""
    other = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(other.parameters(), lr=1e-4)

    def train_other() -> None:
        optimizer.zero_grad()
        made(other, torch.randint(3, VOCABULARY, (ROWS, LENGTH))).square().mean().backward()
        optimizer.step()

    return taught(model, other, after=train_other)


HEALTHY: dict[str, Callable[[nn.Module], Job]] = {
    "a teacher in evaluation mode": in_evaluation_mode,
    "the trained model itself, without gradients": by_itself,
    "a mean teacher that drops": averaged,
    "reentrant checkpointing": checkpointed,
    "Monte Carlo dropout of a teacher": sampled,
    "a head on features of a frozen model": behind,
    "a model that is trained in turn": against,
}
FAULTY: dict[str, Callable[[nn.Module], Job]] = {
    "a teacher in training mode": lambda model: taught(model, copy.deepcopy(model)),
    "the same, given a copy of the batch": lambda model: taught(model, copy.deepcopy(model), copies=True),
}


def main() -> None:
    """Measure all and write the page."""
    parser = arguments(__doc__)
    parser.add_argument("--every", type=int, default=1, help="take one model of so many")
    parser.add_argument("--models", type=int, default=10_000, help="at most so many")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    options = f"--every {chosen.every} --models {chosen.models}"
    command = f"python -m benchmarks.laws.teachers {options}"
    about = head("Models beside the trained one that drop values", command=command)
    tried, told = Counter[str](), Counter[tuple[str, str]]()
    num_models, alarms = 0, list[str]()
    for seed, (name, make) in enumerate(of_transformers()):
        if num_models == chosen.models:
            break
        if seed % chosen.every:
            continue
        torch.manual_seed(seed)
        first = within_patience(make)
        if first is None or not any(dropping_parts(first)):
            continue
        num_models += 1
        for kind, job_of in (HEALTHY | FAULTY).items():

            def tried_once(job_of: Callable[[nn.Module], Job] = job_of, model: nn.Module = first) -> Any:
                return said(job_of(copy.deepcopy(model).train()))

            severities = within_patience(tried_once)
            if severities is not None:
                tried[kind] += 1
                told[kind, max(severities, default="nothing")] += 1
                if kind in HEALTHY and "warning" in severities:
                    alarms.append(f"{name}: {kind}")
        print(seed, name, {kind: dict_of(told, kind) for kind in tried}, flush=True)
    total = sum(tried[kind] for kind in HEALTHY)
    rows = [[kind, tried[kind], *(told[kind, each] for each in ("warning", "info"))] for kind in HEALTHY | FAULTY]
    write(
        __file__,
        about,
        f"Of {total} healthy trainings of {num_models} models of transformers that come with dropout, {STEPS} steps "
        f"each, {len(alarms)} are warned of: at most {upper_bound(len(alarms), total):.1%} (Clopper-Pearson, 95 %, "
        "one-sided, as if trainings of one model were independent).",
        f"Warned of: {'; '.join(alarms) or 'none'}.",
        "The last two rows are faults. Some models have a probability that nothing uses.",
        table(("training", "tried", "warned of", "for information"), rows, right={1, 2, 3}),
        name="teachers.md",
    )


def dict_of(told: Counter[tuple[str, str]], kind: str) -> dict[str, int]:
    """How often what was said of a kind of training."""
    return {said_of: count for (one, said_of), count in told.items() if one == kind}


if __name__ == "__main__":
    main()
