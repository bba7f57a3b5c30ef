"""What torch's optimizers make of sampled elements: each state and each parameter after an update, in float64.

States are predicted from the states before and the gradient, parameters from the parameter before and the states
*after*, so that a fault is localised to one of them. The formulas are those of ``torch.optim`` 2.13 (for-loop, foreach
and fused agree in them).

K elements of one slice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
class Predicted:
    """Values float64 [K] and the sum of the magnitudes of the terms that each is made of, float64 [K]."""

    value: Array
    scale: Array

    def excess(self, measured: Array, unit: float, tiny: float) -> Array:
        """[K] difference over what rounding may explain, by the unit roundoff and the smallest number of the format;
        0 where nothing can be told, as one of both is not finite.
        """
        allowed = TOLERANCE * unit * self.scale + 2 * tiny
        with np.errstate(invalid="ignore", over="ignore"):
            excess = np.abs(measured - self.value) / allowed
        known = np.isfinite(measured) & np.isfinite(self.value) & np.isfinite(allowed)
        return np.where(known, excess, 0.0)


@dataclass(frozen=True)
class Before:
    """What goes into an update of [K] elements: hyper-parameters, values before, states after, and which update of
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
    def gradient(self) -> Predicted:
        """What the moments are made of: the gradient, negated where it is maximized, with weight decay where that is
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

    def moved(self, *moves: Array, times: float = 1.0) -> Predicted:
        """The parameter once it has moved by these, whose rounding errors are ``times`` as large as of one term."""
        at = self.decayed
        return Predicted(at + sum(moves), np.abs(self.values[PARAM]) + times * sum(np.abs(move) for move in moves))

    def doubt(self, *powers: float) -> float:
        """How much larger the relative error of a step is where bias corrections 1 - beta^t are formed in float32, on
        the device: cancellation costs (1 + beta^t) / (1 - beta^t) roundings each.
        """
        if not (self.settings.get("capturable") or self.settings.get("differentiable")):
            return 1.0
        lost = sum(2 * (1 + power) / max(1 - power, 1e-12) for power in powers)  # the power is rounded, too
        return 1 + lost * FORMATS["float32"].unit / self.unit


Law = Callable[[Before], dict[str, Predicted]]
"""Predicts each state and the parameter, by name."""


def _sum(*terms: Array) -> Predicted:
    return Predicted(np.add.reduce(terms), np.add.reduce(np.abs(terms)))


def _average(old: Array, new: Predicted, weight: float) -> Predicted:
    """An exponential average in which ``new`` has ``weight``."""
    return Predicted(
        (1 - weight) * old + weight * new.value, (1 - weight) * np.abs(old) + weight * (new.scale + np.abs(old))
    )


def _square(x: Predicted) -> Predicted:
    return Predicted(x.value**2, x.scale**2)


def _ratio(numerator: Array, denominator: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return numerator / denominator


def adam(of: Before) -> dict[str, Predicted]:
    """Adam, AdamW (Loshchilov and Hutter, arXiv 1711.05101) and AMSGrad."""
    beta1, beta2 = of.settings["betas"]
    power1, power2 = beta1**of.step, beta2**of.step
    found = {
        "exp_avg": _average(of.state("exp_avg"), of.gradient, 1 - beta1),
        "exp_avg_sq": _average(of.state("exp_avg_sq"), _square(of.gradient), 1 - beta2),
    }
    second = of.after["exp_avg_sq"]
    if of.settings.get("amsgrad"):
        largest = np.maximum(of.state("max_exp_avg_sq"), second)
        found["max_exp_avg_sq"] = Predicted(largest, np.abs(largest))
        second = of.after["max_exp_avg_sq"]
    root = np.sqrt(second / (1 - power2)) + of.settings["eps"]
    move = -of.settings["lr"] / (1 - power1) * _ratio(of.after["exp_avg"], root)
    return found | {PARAM: of.moved(move, times=of.doubt(power1, power2))}


def sgd(of: Before) -> dict[str, Predicted]:
    """SGD with momentum, Nesterov's too; the first gradient enters the buffer undamped."""
    momentum, lr, grad = of.settings["momentum"], of.settings["lr"], of.gradient
    if not momentum:
        return {PARAM: _moved_by(of, lr, grad)}
    fresh = 1.0 if "momentum_buffer" not in of.values else 1 - of.settings["dampening"]
    old = momentum * of.state("momentum_buffer")
    buffer = Predicted(old + fresh * grad.value, np.abs(old) + abs(fresh) * grad.scale)
    new = of.after["momentum_buffer"]
    used = Predicted(new, np.abs(new))
    if of.settings["nesterov"]:
        used = Predicted(grad.value + momentum * new, grad.scale + momentum * np.abs(new))
    return {"momentum_buffer": buffer, PARAM: _moved_by(of, lr, used)}


def _moved_by(of: Before, lr: float, by: Predicted) -> Predicted:
    return Predicted(of.decayed - lr * by.value, np.abs(of.values[PARAM]) + abs(lr) * by.scale)


def adagrad(of: Before) -> dict[str, Predicted]:
    """Adagrad; its sum begins with ``initial_accumulator_value``."""
    grad, square = of.gradient, _square(of.gradient)
    old = of.state("sum")
    rate = of.settings["lr"] / (1 + (of.step - 1) * of.settings["lr_decay"])
    root = np.sqrt(of.after["sum"]) + of.settings["eps"]
    by = Predicted(_ratio(grad.value, root), _ratio(grad.scale, root))
    return {"sum": Predicted(old + square.value, np.abs(old) + square.scale), PARAM: _moved_by(of, rate, by)}


def rmsprop(of: Before) -> dict[str, Predicted]:
    """RMSprop, centered and with momentum too. A variance that cancels to nothing tells nothing."""
    alpha, momentum, lr, grad = of.settings["alpha"], of.settings["momentum"], of.settings["lr"], of.gradient
    found = {"square_avg": _average(of.state("square_avg"), _square(grad), 1 - alpha)}
    variance = second = of.after["square_avg"]
    doubt = np.ones_like(second)
    if of.settings["centered"]:
        found["grad_avg"] = _average(of.state("grad_avg"), grad, 1 - alpha)
        mean2 = of.after["grad_avg"] ** 2
        variance = second - mean2
        known = variance > 4 * TOLERANCE * of.unit * (second + mean2)
        doubt = np.where(known, 1 + _ratio(second + mean2, np.where(known, variance, 1.0)), np.inf)
    root = np.sqrt(np.maximum(variance, 0.0)) + of.settings["eps"]
    by = Predicted(_ratio(grad.value, root), doubt * _ratio(grad.scale, root))
    if momentum > 0:
        old = momentum * of.state("momentum_buffer")
        found["momentum_buffer"] = Predicted(old + by.value, np.abs(old) + by.scale)
        new = of.after["momentum_buffer"]
        by = Predicted(new, np.abs(new))
    return found | {PARAM: _moved_by(of, lr, by)}


def adamax(of: Before) -> dict[str, Predicted]:
    """Adamax (Kingma and Ba, arXiv 1412.6980, section 7.1)."""
    beta1, beta2 = of.settings["betas"]
    power, eps, grad = beta1**of.step, of.settings["eps"], of.gradient
    largest = np.maximum(beta2 * of.state("exp_inf"), np.abs(grad.value) + eps)
    move = -of.settings["lr"] / (1 - power) * _ratio(of.after["exp_avg"], of.after["exp_inf"])
    return {
        "exp_avg": _average(of.state("exp_avg"), grad, 1 - beta1),
        "exp_inf": Predicted(largest, np.maximum(beta2 * of.state("exp_inf"), grad.scale + eps)),
        PARAM: of.moved(move, times=of.doubt(power)),
    }


def nadam(of: Before) -> dict[str, Predicted]:
    """NAdam (Dozat, 2016), with decoupled weight decay too. ``mu_product`` is one number for all elements."""
    beta1, beta2 = of.settings["betas"]
    lr, decay, grad = of.settings["lr"], of.settings["momentum_decay"], of.gradient
    mu, mu_next = (beta1 * (1 - 0.5 * 0.96 ** (step * decay)) for step in (of.step, of.step + 1))
    product = of.after["mu_product"]
    power = beta2**of.step
    root = np.sqrt(of.after["exp_avg_sq"] / (1 - power)) + of.settings["eps"]
    now = -lr * (1 - mu) / (1 - product) * _ratio(grad.value, root)
    later = -lr * mu_next / (1 - product * mu_next) * _ratio(of.after["exp_avg"], root)
    by_decay = np.abs(now) * _ratio(grad.scale, np.abs(grad.value)) if of.settings["weight_decay"] else np.abs(now)
    doubt = of.doubt(power, float(product[0]), float(product[0]) * mu_next)
    whole = of.moved(now, later, times=doubt)
    return {
        "exp_avg": _average(of.state("exp_avg"), grad, 1 - beta1),
        "exp_avg_sq": _average(of.state("exp_avg_sq"), _square(grad), 1 - beta2),
        "mu_product": _sum(of.values.get("mu_product", np.ones_like(product)) * mu),
        PARAM: Predicted(whole.value, whole.scale + np.nan_to_num(by_decay)),
    }


LAWS: Mapping[str, Law] = {
    "Adam": adam,
    "AdamW": adam,
    "SGD": sgd,
    "Adagrad": adagrad,
    "RMSprop": rmsprop,
    "Adamax": adamax,
    "NAdam": nadam,
}
"""By the class of ``torch.optim`` whose ``step`` it is."""
