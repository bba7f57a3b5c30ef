"""Measure what `frozen-model-drops` says of healthy trainings with a second model or a frozen part, and how often it
sees a teacher in training mode; writes teachers.md.

    python -m studies.laws.teachers

About an hour on one core. Nothing is downloaded: models of transformers are made from configurations, smaller than
published ones, with the probabilities of dropout that they come with.
"""

from __future__ import annotations

import copy
import gc
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from studies.laws.constants import watched
from studies.laws.initial_values import VOCABULARY, of_transformers, within_patience
from benchmarks.page import arguments, head, table, write
from gallery.scoring import upper_bound
from torch import Tensor, nn
from torch.nn import functional

import trueline
from trueline.laws.modes.frozen_model_drops import check
from trueline.laws.modes.probe import dropping_parts

STEPS, ROWS, LENGTH = 7, 2, 12
After = Callable[[], object]
Job = tuple[nn.Module, Callable[[Tensor], Tensor], After]
"""A model, its loss on ids [B, T], and what follows an update."""


def said(job: Job) -> list[str]:
    """Severities of what is found in a training, watched by the default plan."""
    model, loss_of, after = job
    gc.collect()

    def loss_at(_: int) -> Tensor:
        return loss_of(torch.randint(3, VOCABULARY, (ROWS, LENGTH)))

    with watched((model, loss_at), steps=STEPS, after=after) as out:
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
    return taught(model, teacher, after=lambda: follow(teacher, model))


def follow(teacher: nn.Module, model: nn.Module) -> None:
    """Move the teacher's weights towards the model's."""
    for mine, theirs in zip(teacher.parameters(), model.parameters(), strict=True):
        mine.data.lerp_(theirs.data, 0.1)


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


class Held(nn.Module):
    """A model and a frozen one, and a head; ``loss_of`` is made of them and ids [B, T]."""

    def __init__(self, model: nn.Module, loss_of: Callable[[Any, Tensor], Tensor], *, widths: int = 1) -> None:
        super().__init__()
        self.student, self.teacher = model, copy.deepcopy(model)
        width = made(model, torch.full((ROWS, LENGTH), 3)).shape[-1]
        self.head, self.loss_of = nn.Linear(widths * width, 4), loss_of

    def forward(self, ids: Tensor) -> Tensor:
        """The loss of ids [B, T]."""
        return self.loss_of(self, ids)


def inside(
    model: nn.Module,
    loss_of: Callable[[Any, Tensor], Tensor],
    *,
    frozen: bool = True,
    teaches: bool = True,
    average: bool = False,
    **settings: Any,
) -> Job:
    """A training of one module that holds a frozen one; ``teaches``: it is called, else the student is it."""
    held = Held(model, loss_of, **settings).train()
    (held.teacher if teaches else held.student).requires_grad_(not frozen)
    return held, held, lambda: follow(held.teacher, held.student) if average else None


def apart(held: Any, ids: Tensor) -> Tensor:
    """How far the student is from the teacher."""
    with torch.no_grad():
        target = made(held.teacher, ids)
    return functional.mse_loss(made(held.student, ids), target)


def apart_later(held: Any, ids: Tensor) -> Tensor:
    """The same; nothing but frozen parameters keeps gradients from the teacher."""
    return functional.mse_loss(made(held.student, ids), made(held.teacher, ids))


def apart_evaluated(held: Any, ids: Tensor) -> Tensor:
    """The same with a teacher in evaluation mode."""
    held.teacher.eval()
    return apart(held, ids)


def features(held: Any, ids: Tensor) -> Tensor:
    """A head on what the frozen model makes without gradients."""
    with torch.no_grad():
        of_frozen = made(held.teacher, ids)
    return held.head(of_frozen.mean(1)).square().mean()


def joined(held: Any, ids: Tensor) -> Tensor:
    """A head on what both make."""
    with torch.no_grad():
        of_frozen = made(held.teacher, ids)
    return held.head(torch.cat([of_frozen, made(held.student, ids)], -1)).square().mean()


def headed(held: Any, ids: Tensor) -> Tensor:
    """A head on the student."""
    return held.head(made(held.student, ids)).square().mean()


class LowRank(nn.Module):
    """A frozen layer and a change of low rank."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer, self.drop = layer, nn.Dropout(0.1)
        self.down, self.up = nn.Linear(layer.in_features, 2), nn.Linear(2, layer.out_features)

    def forward(self, x: Tensor) -> Tensor:
        """Of [..., in_features]."""
        return self.layer(x) + self.up(self.down(self.drop(x)))


def of_low_rank(model: nn.Module) -> Job:
    """LoRA on every second linear layer."""
    model.requires_grad_(False)
    layers = [name for name, part in model.named_modules() if type(part) is nn.Linear]
    for name in layers[::2]:
        model.set_submodule(name, LowRank(model.get_submodule(name)))  # type: ignore[arg-type]
    return model, lambda ids: made(model, ids).square().mean(), lambda: None


def half_frozen(model: nn.Module) -> Job:
    """The first half of the parameters is frozen."""
    params = list(model.parameters())
    for param in params[: len(params) // 2]:
        param.requires_grad_(False)
    return model, lambda ids: made(model, ids).square().mean(), lambda: None


HEALTHY: dict[str, Callable[[nn.Module], Job]] = {
    "a teacher in evaluation mode": in_evaluation_mode,
    "the trained model itself, without gradients": by_itself,
    "a mean teacher that drops": averaged,
    "reentrant checkpointing": checkpointed,
    "Monte Carlo dropout of a teacher": sampled,
    "a head on features of a frozen model": behind,
    "a model that is trained in turn": against,
    "inside: a teacher in evaluation mode": lambda model: inside(model, apart_evaluated),
    "inside: a mean teacher that drops": lambda model: inside(model, apart, average=True),
    "inside: a head on features of a frozen model": lambda model: inside(model, features),
    "inside: a head on features of a frozen model and of a trained one": lambda model: inside(model, joined, widths=2),
    "inside: a frozen backbone under a head": lambda model: inside(model, headed, teaches=False),
    "inside: the first half is frozen": half_frozen,
    "inside: LoRA on every second linear layer": of_low_rank,
}
FAULTY: dict[str, Callable[[nn.Module], Job]] = {
    "a teacher in training mode": lambda model: taught(model, copy.deepcopy(model)),
    "the same, given a copy of the batch": lambda model: taught(model, copy.deepcopy(model), copies=True),
    "inside: a teacher in training mode": lambda model: inside(model, apart, frozen=False),
    "inside: the same, frozen, and called without no_grad": lambda model: inside(model, apart_later),
}


def main() -> None:
    """Measure all and write the page."""
    parser = arguments(__doc__)
    parser.add_argument("--every", type=int, default=1, help="take one model of so many")
    parser.add_argument("--models", type=int, default=10_000, help="at most so many")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    options = f"--every {chosen.every} --models {chosen.models}"
    command = f"python -m studies.laws.teachers {options}"
    about = head("Models beside the trained one, or frozen inside it, that drop values", command=command)
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
        "The last four rows are faults. Some models have a probability that nothing uses.",
        table(("training", "tried", "warned of", "for information"), rows, right={1, 2, 3}),
        name="teachers.md",
    )


def dict_of(told: Counter[tuple[str, str]], kind: str) -> dict[str, int]:
    """How often what was said of a kind of training."""
    return {said_of: count for (one, said_of), count in told.items() if one == kind}


if __name__ == "__main__":
    main()
