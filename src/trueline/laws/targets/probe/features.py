"""Look for the target of a sample among the numbers that the model reads of it.

Letters: B samples, F numbers of a sample.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from trueline.capture.model.graph import is_hooked
from trueline.capture.model.layout import local
from trueline.capture.model.untraced import in_backward
from trueline.capture.probes.arguments import named_tensors
from trueline.capture.probes.around_update.sampling import Waiting
from trueline.capture.probes.at_backward import BackwardProbe
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.losses import descent
from trueline.capture.probes.losses.loss_inputs import functions_of
from trueline.capture.probes.parts import ProbeParts
from trueline.schema.columns.batch_features import is_target
from trueline.schema.columns.target_features import names_text

LOOKS = 24
"""Steps that are looked at."""
MOST_NUMBERS = 1 << 18
"""Numbers of a batch that are looked at: of each sample the first ones and the last ones."""
ROUNDINGS = 8.0
"""Of what a script does to a feature or a target before the model reads it, as to scale it."""

_FUNCTIONS = {
    "MseLoss": "mse_loss",
    "SmoothL1Loss": "smooth_l1_loss",
    "HuberLoss": "huber_loss",
    "NllLoss": "cross_entropy",
    "BinaryCrossEntropyWithLogits": "binary_cross_entropy_with_logits",
    "BinaryCrossEntropy": "binary_cross_entropy",
}


class TargetFeatureProbe(BackwardProbe):
    """The columns ``target_feature_names`` and ``target_features``, of the first backward pass of early steps."""

    name = "features of targets"
    moments = ("output", "gradients")
    between = None

    def __init__(self, parts: ProbeParts) -> None:
        self._looks_left = LOOKS
        self._text = ""
        self._waiting = Waiting[str]()
        self._seen: tuple[Tensor, Tensor] | None = None
        super().__init__(parts.guard, parts.contributions)

    def begin(self, step: Step) -> bool:
        if not self._looks_left:
            return False
        return super().begin(step)

    def take(self, moment: Moment, step: Step) -> dict[str, Tensor]:
        """``target_features``, float64 [11]; absent where no sample has one target."""
        if moment == "output":
            if self._inputs is None and step.module is not None and not (in_backward() or self._passes.is_over):
                self._inputs = list(_inputs(step))
            return {}
        numbers, self._numbers = self._numbers, None
        self._forget(due=False)
        if numbers is None:
            return {}
        self._waiting.add(step.number, self._text)
        return {"target_features": numbers}

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        text = self._waiting.take(step.number)
        if text is None or "target_features" not in host:
            return {}
        return {"target_feature_names": text, "target_features": host["target_features"].tolist()}

    def _forget(self, *, due: bool) -> None:
        super()._forget(due=due)
        self._inputs: list[tuple[str, Tensor]] | None = None
        self._numbers: Tensor | None = None

    def _at_backward(self, tensors: Any, *args: Any, **kwargs: Any) -> None:
        if not self._due or self._passes.backward_pass is None or not self._inputs or self._numbers is not None:
            return
        inputs, self._inputs = self._inputs, []
        with self._guard(self.name), torch.no_grad():
            num_samples = len(inputs[0][1])
            inputs = [(name, x) for name, x in inputs if len(x) == num_samples and x.device == inputs[0][1].device]
            function, target_B = _target(descent.roots_of(tensors), num_samples)
            if target_B is None or target_B.device != inputs[0][1].device:
                return
            self._look(function, target_B, inputs)

    def _look(self, function: str, target_B: Tensor, inputs: list[tuple[str, Tensor]]) -> None:
        """Look at one more batch, if it is like the first."""
        parts = [(name, _ends(x.reshape(len(x), -1), MOST_NUMBERS // len(x) // len(inputs))) for name, x in inputs]
        text = names_text(function, [(name, x.shape[1]) for name, x in parts])
        if self._seen is not None and text != self._text:
            return
        self._looks_left -= 1
        eps = max((torch.finfo(x.dtype).eps for _, x in parts if x.is_floating_point()), default=0.0)
        x_BF = torch.cat([x.double() for _, x in parts], 1)
        eps_target = torch.finfo(target_B.dtype).eps if target_B.is_floating_point() else 0.0
        target_B = target_B.double()
        nats_KF = torch.stack([_affine(x_BF, target_B, eps, eps_target), *_grouped(x_BF, target_B)])
        counts_2 = torch.stack([torch.full_like(target_B[0], len(x_BF)), _num_different(target_B)])
        if self._seen is not None:
            # -infinity stays: one sample is enough to say that a number is not the target
            nats_KF = nats_KF + self._seen[1]
            counts_2 = torch.stack([counts_2[0] + self._seen[0][0], counts_2[1].maximum(self._seen[0][1])])
        self._seen, self._text = (counts_2, nats_KF), text
        best = [torch.stack([(row > 0).sum().double(), row.argmax().double(), row.amax()]) for row in nats_KF]
        self._numbers = torch.cat([counts_2, *best])


def _inputs(step: Step) -> Iterable[tuple[str, Tensor]]:
    """What the model reads of each sample, two numbers of it or more, that autograd has not made and is no label."""
    assert step.module is not None
    for name, x in named_tensors(step.module, step.args, step.kwargs):
        plain = not x.requires_grad and x.layout == torch.strided and not x.is_complex()
        if plain and x.dim() > 1 and len(x) > 1 and x.numel() >= 2 * len(x) and not is_target(name):
            yield name, local(x).detach()


def _target(roots: list[Tensor], num_samples: int) -> tuple[str, Tensor | None]:
    """The one target of each sample, [B], and the function that is given it."""
    for node, operation, _ in functions_of(roots):
        function = _FUNCTIONS.get("NllLoss" if operation.startswith("NllLoss") else operation, "")
        if function and not is_hooked(node._raw_saved_target) and node._saved_target.numel() == num_samples:
            return function, node._saved_target.detach().flatten()
    return "", None


def _ends(x_BF: Tensor, most: int) -> Tensor:
    """Of each sample so many numbers: the first ones and the last ones."""
    half = max(most // 2, 1)
    return x_BF if x_BF.shape[1] <= 2 * half else torch.cat([x_BF[:, :half], x_BF[:, -half:]], 1)


def _affine(x_BF: Tensor, target_B: Tensor, eps: float, eps_target: float) -> Tensor:
    """Float64 [F]: how much speaks against chance of numbers that are the target but for a factor and an offset, in
    nats; 0 where the target says nothing, -infinity where they are not.
    """
    apart_B = target_B - target_B.mean()
    size = apart_B.square().sum()
    factor_F = apart_B @ (x_BF - x_BF.mean(0)) / size
    rest_F = (x_BF - x_BF.mean(0) - factor_F * apart_B[:, None]).abs().amax(0)
    rounding_F = ROUNDINGS * (eps * x_BF.abs().amax(0) + eps_target * factor_F.abs() * target_B.abs().amax())
    num_apart = _num_different(target_B)
    # of so many different numbers each but two has to lie on the line that these give
    nats = (num_apart - 2).clamp(min=0) * math.log(2)
    is_target_F = (rest_F <= rounding_F) & (factor_F.abs() * apart_B.abs().amax() > 4 * rounding_F)
    nats_F = torch.where(is_target_F, nats, -math.inf)
    return torch.where((size > 0) & (num_apart > 2), nats_F, torch.zeros_like(nats_F))


def _num_different(target_B: Tensor) -> Tensor:
    return (target_B.sort().values.diff() != 0).sum().double() + 1


def _grouped(x_BF: Tensor, target_B: Tensor) -> tuple[Tensor, Tensor]:
    """The same of numbers that are one for all samples of one target, and not one for all; and of those among them that
    are another one for each target.

    Of samples in the order of their targets, numbers change at so many places. Those that have nothing to do with the
    target change at the border of two targets as often as borders are among all places; a run of equal numbers has two
    ends, of which one is where the other leaves it.
    """
    target_B, order = target_B.sort(stable=True)
    changes_BF = x_BF[order].diff(dim=0) != 0
    is_border_B = target_B.diff() != 0
    is_target_F = ~(changes_BF & ~is_border_B[:, None]).any(0)
    num_borders = is_border_B.sum()
    nats_F = changes_BF.sum(0) / 2 * (len(is_border_B) / num_borders.clamp(min=1)).log()
    nats_F = torch.where(is_target_F, nats_F.double(), -math.inf)
    is_other_F = (x_BF.sort(0).values.diff(dim=0) != 0).sum(0) == num_borders
    return nats_F, torch.where(is_other_F, nats_F, -math.inf)


def make_probe(parts: ProbeParts) -> TargetFeatureProbe:
    """The probe of this law for one watched model."""
    return TargetFeatureProbe(parts)
