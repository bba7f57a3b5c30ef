"""Faults of single tensors: of a weight, of an update, of a gradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trueline.capture.model.layout import local
from trueline.capture.trial.faults.planted import PlantedFault

_EXPONENTS = {torch.float32: (torch.int32, 23), torch.bfloat16: (torch.int16, 7), torch.float16: (torch.int16, 10)}
"""By dtype the integer of its size, and the place of the lowest bit of its exponent."""


class _OfParameter(PlantedFault):
    """Something of the largest parameter that has a gradient: whatever becomes of that, matters."""

    target: Tensor | None = None

    def after_update(self, params: Sequence[Tensor]) -> None:
        trained = [param for param in params if param.grad is not None]
        if self.target is None and trained:
            self.target = max(trained, key=Tensor.numel)


class FlippedBit(_OfParameter):
    """The lowest bit of the exponent of one weight of one rank is flipped, once: it is doubled or halved."""

    _is_done = False

    @torch.no_grad()
    def at_call(self, module: nn.Module) -> None:
        if not self.is_on or self.target is None or self._is_done:
            return
        self._is_done = True
        weights = local(self.target.detach())
        if weights.dtype not in _EXPONENTS or not weights.numel():
            return
        flat, (integers, bit) = weights.view(-1), _EXPONENTS[weights.dtype]
        place = int(flat.abs().argmax())
        before = float(flat[place])
        flat[place : place + 1].view(integers).bitwise_xor_(1 << bit)
        self.touch(f"{self.name_of(self.target)}, element {place}: {before:.4g}, then {float(flat[place]):.4g}")


class LostUpdate(_OfParameter):
    """One update of one parameter is lost on one rank."""

    _weights: Tensor | None = None
    _is_done = False

    def after_backward(self) -> None:
        if self.is_on and not self._is_done and self.target is not None:
            self._weights = local(self.target.detach()).clone()

    def after_update(self, params: Sequence[Tensor]) -> None:
        super().after_update(params)
        target, before = self.target, self._weights
        if before is None or target is None or all(param is not target for param in params):
            return
        self._is_done, self._weights = True, None
        weights = local(target.detach())
        self.touch(self.name_of(target), int(not torch.equal(weights, before)))
        weights.copy_(before)


class _OfGradient(_OfParameter):
    """Something of a gradient as it comes, before anything reduces it."""

    _is_hooked = False
    in_pass = False
    """True within a backward pass of the job: those of others leave the job's gradients alone."""

    def at_call(self, module: nn.Module) -> None:
        if self.has_begun and self.target is not None and not self._is_hooked:
            self._is_hooked = True
            self.target.register_hook(self._at_gradient)

    def of_loss(self, loss: object) -> object:
        self.in_pass = True
        return loss

    def after_backward(self) -> None:
        self.in_pass = False

    def _at_gradient(self, gradient: Tensor) -> Tensor | None:
        return self.in_place_of(gradient) if self.in_pass else None

    def in_place_of(self, gradient: Tensor) -> Tensor | None:
        """What comes in place of ``gradient``; None: that."""
        raise NotImplementedError


class NotANumber(_OfGradient):
    """One element of one gradient of one rank is NaN, at one step."""

    _is_done = False

    def in_place_of(self, gradient: Tensor) -> Tensor | None:
        if not self.is_here or self._is_done:
            return None
        self._is_done = True
        changed = gradient.clone(memory_format=torch.contiguous_format)
        changed.view(-1)[:1] = float("nan")
        self.touch("" if self.target is None else self.name_of(self.target))
        return changed


class NotReduced(_OfGradient):
    """Each rank updates one parameter by its own gradient: that is not reduced."""

    _own: Tensor | None = None

    def in_place_of(self, gradient: Tensor) -> None:
        self._own = gradient.detach().clone() if self._own is None else self._own + gradient.detach()

    def after_backward(self) -> None:
        super().after_backward()
        if self._own is None or self.target is None or self.target.grad is None:
            return
        reduced = self.target.grad
        if reduced.shape == self._own.shape:
            self.touch(self.name_of(self.target), int(not torch.equal(reduced, self._own)))
            reduced.copy_(self._own)

    def after_update(self, params: Sequence[Tensor]) -> None:
        super().after_update(params)
        self._own = None
