"""Predictions of the updates of torch's optimizers: each state and each sampled parameter after one, in float64.

States are predicted from the states before and the gradient, parameters from the parameter before and the states
*after*, so that a fault is localised to one of them. The formulas are those of ``torch.optim`` 2.13 (for-loop, foreach
and fused agree in them).

K elements of one slice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueline.schema.formats import FORMATS

Array = NDArray[np.float64]

TOLERANCE = 8.0
"""Units of u times the sum of the magnitudes of the terms that rounding may explain: twice the worst of the healthy
settings of studies/laws."""

PARAM, GRAD = "param", "grad"
"""The names of the parameter and of its gradient among the values of a slice; the others are those of its states."""


@dataclass(frozen=True)
class Prediction:
    """Values float64 [K] and the sum of the magnitudes of the terms that each is made of, float64 [K]. ``root`` is what
    a product that may be subnormal, and so has lost digits, is divided by.
    """

    value: Array
    scale: Array
    root: Array | float = np.inf

    def excess(self, measured: Array, unit: float, tiny: float) -> Array:
        """[K] difference over what rounding may explain, by the unit roundoff and the smallest number of the format;
        0 where nothing can be told, as one of both is not finite.
        """
        allowed = TOLERANCE * unit * self.scale + 2 * tiny
        # Subnormal numbers are 2 u tiny apart: of gradients of 1e-37 Adam multiplies by its rate, then divides by eps.
        allowed = allowed + 4 * unit * _ratio(np.full_like(self.scale, tiny), np.asarray(self.root))
        with np.errstate(invalid="ignore", over="ignore"):
            excess = np.abs(measured - self.value) / allowed
        is_finite = np.isfinite(measured) & np.isfinite(self.value) & np.isfinite(allowed)
        return np.where(is_finite, excess, 0.0)


@dataclass(frozen=True)
class UpdateInputs:
    """All that goes into an update of [K] elements: hyper-parameters, values before, states after, and which update of
    these elements it is, from 1. ``unit`` is the unit roundoff of the parameter.
    """

    settings: Mapping[str, Any]
    values: Mapping[str, Array]
    after: Mapping[str, Array]
    step: float
    unit: float

    def state(self, name: str) -> Array:
        """A state before the update; zeros where there was none."""
        return self.values.get(name, np.zeros_like(self.values[PARAM]))

    @property
    def gradient(self) -> Prediction:
        """The gradient that moments are made of: negated where the loss is maximized, with weight decay where that is
        not decoupled.
        """
        grad = -self.values[GRAD] if self.settings.get("maximize") else self.values[GRAD]
        decay = 0.0 if self.settings.get("decoupled_weight_decay") else self.settings.get("weight_decay", 0.0)
        return _sum(grad, decay * self.values[PARAM])

    @property
    def decayed(self) -> Array:
        """The parameter after decoupled weight decay."""
        shrinks = self.settings.get("decoupled_weight_decay")
        rate = self.settings["lr"] * self.settings.get("weight_decay", 0.0) if shrinks else 0.0
        return self.values[PARAM] * (1 - rate)

    def moved(self, *moves: Array, times: float = 1.0) -> Prediction:
        """The parameter once it has moved by these, whose rounding errors are ``times`` as large as of one term."""
        at = self.decayed
        return Prediction(at + sum(moves), np.abs(self.values[PARAM]) + times * sum(np.abs(move) for move in moves))

    def doubt(self, *powers: float) -> float:
        """Factor on the relative error of a step where bias corrections 1 - beta^t are formed in float32, on the
        device: cancellation costs (1 + beta^t) / (1 - beta^t) roundings each.
        """
        if not (self.settings.get("capturable") or self.settings.get("differentiable")):
            return 1.0
        roundings = sum(2 * (1 + power) / max(1 - power, 1e-12) for power in powers)  # the power is rounded, too
        return 1 + roundings * FORMATS["float32"].unit / self.unit


UpdateRule = Callable[[UpdateInputs], dict[str, Prediction]]
"""Predicts each state and the parameter, by name."""


def _sum(*terms: Array) -> Prediction:
    return Prediction(np.add.reduce(terms), np.add.reduce(np.abs(terms)))


def _average(old: Array, new: Prediction, weight: float) -> Prediction:
    """An exponential average in which ``new`` has ``weight``."""
    return Prediction(
        (1 - weight) * old + weight * new.value, (1 - weight) * np.abs(old) + weight * (new.scale + np.abs(old))
    )


def _square(x: Prediction) -> Prediction:
    return Prediction(x.value**2, x.scale**2)


def _ratio(numerator: Array, denominator: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return numerator / denominator


def adam(inputs: UpdateInputs) -> dict[str, Prediction]:
    """Adam, AdamW (Loshchilov and Hutter, arXiv 1711.05101) and AMSGrad."""
    beta1, beta2 = inputs.settings["betas"]
    power1, power2 = beta1**inputs.step, beta2**inputs.step
    predicted = {
        "exp_avg": _average(inputs.state("exp_avg"), inputs.gradient, 1 - beta1),
        "exp_avg_sq": _average(inputs.state("exp_avg_sq"), _square(inputs.gradient), 1 - beta2),
    }
    second = inputs.after["exp_avg_sq"]
    if inputs.settings.get("amsgrad"):
        largest = np.maximum(inputs.state("max_exp_avg_sq"), second)
        predicted["max_exp_avg_sq"] = Prediction(largest, np.abs(largest))
        second = inputs.after["max_exp_avg_sq"]
    root = np.sqrt(second / (1 - power2)) + inputs.settings["eps"]
    move = -inputs.settings["lr"] / (1 - power1) * _ratio(inputs.after["exp_avg"], root)
    return predicted | {PARAM: replace(inputs.moved(move, times=inputs.doubt(power1, power2)), root=root)}


def sgd(inputs: UpdateInputs) -> dict[str, Prediction]:
    """SGD with momentum, Nesterov's too; the first gradient enters the buffer undamped."""
    momentum, lr, grad = inputs.settings["momentum"], inputs.settings["lr"], inputs.gradient
    if not momentum:
        return {PARAM: _moved_by(inputs, lr, grad)}
    fresh = 1.0 if "momentum_buffer" not in inputs.values else 1 - inputs.settings["dampening"]
    old = momentum * inputs.state("momentum_buffer")
    buffer = Prediction(old + fresh * grad.value, np.abs(old) + abs(fresh) * grad.scale)
    new = inputs.after["momentum_buffer"]
    applied = Prediction(new, np.abs(new))
    if inputs.settings["nesterov"]:
        applied = Prediction(grad.value + momentum * new, grad.scale + momentum * np.abs(new))
    return {"momentum_buffer": buffer, PARAM: _moved_by(inputs, lr, applied)}


def _moved_by(inputs: UpdateInputs, lr: float, direction: Prediction) -> Prediction:
    return Prediction(inputs.decayed - lr * direction.value, np.abs(inputs.values[PARAM]) + abs(lr) * direction.scale)


def adagrad(inputs: UpdateInputs) -> dict[str, Prediction]:
    """Adagrad; its sum begins with ``initial_accumulator_value``."""
    grad, square = inputs.gradient, _square(inputs.gradient)
    old = inputs.state("sum")
    rate = inputs.settings["lr"] / (1 + (inputs.step - 1) * inputs.settings["lr_decay"])
    root = np.sqrt(inputs.after["sum"]) + inputs.settings["eps"]
    direction = Prediction(_ratio(grad.value, root), _ratio(grad.scale, root))
    total = Prediction(old + square.value, np.abs(old) + square.scale)
    return {"sum": total, PARAM: replace(_moved_by(inputs, rate, direction), root=root)}


def rmsprop(inputs: UpdateInputs) -> dict[str, Prediction]:
    """RMSprop, centered and with momentum too. A variance that cancels to nothing tells nothing."""
    alpha, momentum, lr = (inputs.settings[name] for name in ("alpha", "momentum", "lr"))
    grad = inputs.gradient
    predicted = {"square_avg": _average(inputs.state("square_avg"), _square(grad), 1 - alpha)}
    variance = second = inputs.after["square_avg"]
    doubt = np.ones_like(second)
    if inputs.settings["centered"]:
        predicted["grad_avg"] = _average(inputs.state("grad_avg"), grad, 1 - alpha)
        mean2 = inputs.after["grad_avg"] ** 2
        variance = second - mean2
        # E[g²] - E[g]² cancels where gradients hardly vary: below a few roundings the variance tells nothing.
        is_resolved = variance > 4 * TOLERANCE * inputs.unit * (second + mean2)
        doubt = np.where(is_resolved, 1 + _ratio(second + mean2, np.where(is_resolved, variance, 1.0)), np.inf)
    root = np.sqrt(np.maximum(variance, 0.0)) + inputs.settings["eps"]
    direction = Prediction(_ratio(grad.value, root), doubt * _ratio(grad.scale, root))
    if momentum > 0:
        old = momentum * inputs.state("momentum_buffer")
        predicted["momentum_buffer"] = Prediction(old + direction.value, np.abs(old) + direction.scale)
        new = inputs.after["momentum_buffer"]
        direction = Prediction(new, np.abs(new))
    return predicted | {PARAM: replace(_moved_by(inputs, lr, direction), root=root)}


def adamax(inputs: UpdateInputs) -> dict[str, Prediction]:
    """Adamax (Kingma and Ba, arXiv 1412.6980, section 7.1)."""
    beta1, beta2 = inputs.settings["betas"]
    power, eps, grad = beta1**inputs.step, inputs.settings["eps"], inputs.gradient
    largest = np.maximum(beta2 * inputs.state("exp_inf"), np.abs(grad.value) + eps)
    move = -inputs.settings["lr"] / (1 - power) * _ratio(inputs.after["exp_avg"], inputs.after["exp_inf"])
    return {
        "exp_avg": _average(inputs.state("exp_avg"), grad, 1 - beta1),
        "exp_inf": Prediction(largest, np.maximum(beta2 * inputs.state("exp_inf"), grad.scale + eps)),
        PARAM: replace(inputs.moved(move, times=inputs.doubt(power)), root=inputs.after["exp_inf"]),
    }


def nadam(inputs: UpdateInputs) -> dict[str, Prediction]:
    """NAdam (Dozat, 2016), with decoupled weight decay too. ``mu_product`` is one number for all elements."""
    beta1, beta2 = inputs.settings["betas"]
    lr, decay, grad = inputs.settings["lr"], inputs.settings["momentum_decay"], inputs.gradient
    mu, mu_next = (beta1 * (1 - 0.5 * 0.96 ** (step * decay)) for step in (inputs.step, inputs.step + 1))
    product = inputs.after["mu_product"]
    power = beta2**inputs.step
    root = np.sqrt(inputs.after["exp_avg_sq"] / (1 - power)) + inputs.settings["eps"]
    now = -lr * (1 - mu) / (1 - product) * _ratio(grad.value, root)
    later = -lr * mu_next / (1 - product * mu_next) * _ratio(inputs.after["exp_avg"], root)
    by_decay = np.abs(now) * _ratio(grad.scale, np.abs(grad.value)) if inputs.settings["weight_decay"] else np.abs(now)
    doubt = inputs.doubt(power, float(product[0]), float(product[0]) * mu_next)
    whole = inputs.moved(now, later, times=doubt)
    return {
        "exp_avg": _average(inputs.state("exp_avg"), grad, 1 - beta1),
        "exp_avg_sq": _average(inputs.state("exp_avg_sq"), _square(grad), 1 - beta2),
        "mu_product": _sum(inputs.values.get("mu_product", np.ones_like(product)) * mu),
        PARAM: Prediction(whole.value, whole.scale + np.nan_to_num(by_decay), root),
    }


UPDATE_RULES: Mapping[str, UpdateRule] = {
    "Adam": adam,
    "AdamW": adam,
    "SGD": sgd,
    "Adagrad": adagrad,
    "RMSprop": rmsprop,
    "Adamax": adamax,
    "NAdam": nadam,
}
"""By the class of ``torch.optim`` whose ``step`` it is."""
