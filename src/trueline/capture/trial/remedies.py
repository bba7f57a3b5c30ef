"""Remedies: changes to a module of a job that knows nothing of it, to see whether they make the job well.

==========  ================================================================================================
kind        what
==========  ================================================================================================
``fp32``    the module computes in float32: parameters, buffers and inputs of 16 bits are cast, autocast is off
``cpu``     it computes on the CPU; parameters stay where they are, and gradients go back there
``clip``    before each update the gradient of its parameters is scaled down to a norm of at most ``norm``
==========  ================================================================================================

The sham does the same to another module: of the same class and as near in size as there is, neither inside the first
nor around it, with no tensor of it, nor one that was chosen before.
"""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.stateless import _reparametrize_module
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils import _pytree as pytree

from trueline.capture.model import patches
from trueline.capture.model.untraced import Hook

_WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
_HALF = (torch.float16, torch.bfloat16)


class Remedy:
    """Does ``kind`` to the modules whose names match the glob ``module``, or, where it is a ``sham``, to others.
    ``tell`` is given a word for each that was found, as ``remedy:fp32 layers.3``.
    """

    def __init__(
        self, kind: str, module: str, *, sham: bool = False, norm: float = 1.0, tell: Callable[[str], None]
    ) -> None:
        self._kind, self._glob, self._sham, self._norm, self._tell = kind, module, sham, norm, tell
        self._looked_at: set[int] = set()
        self._clipped: list[list[nn.Parameter]] = []

    def install(self) -> None:
        """Wait for the first call of a model that has the module."""
        patches.module_call.add(self._at_call, keep=True)
        if self._kind == "clip":
            register_optimizer_step_pre_hook(Hook(self._clip))

    def _at_call(self, model: nn.Module, *args: Any, **kwargs: Any) -> None:
        if not torch.is_grad_enabled() or id(model) in self._looked_at:
            return
        self._looked_at.add(id(model))
        module_of = {_plain(name): module for name, module in model.named_modules() if name}
        names = [name for name in module_of if fnmatch.fnmatchcase(name, self._glob)]
        if not names:
            return
        patches.module_call.remove(self._at_call)
        self._tell(f"remedy:there {len(names)}")
        for name in others_like(names, module_of) if self._sham else names:
            self._tell(f"remedy:{self._kind} {name}")
            self._treat(module_of[name])

    def _treat(self, module: nn.Module) -> None:
        if self._kind == "clip":
            self._clipped.append([param for param in module.parameters() if param.requires_grad])
        else:
            module.forward = computing(module, module.forward, self._kind)  # type: ignore[method-assign]

    def _clip(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        param_ids = {id(param) for group in optimizer.param_groups for param in group["params"]}
        for params in self._clipped:
            grads = [param.grad for param in params if param.grad is not None and id(param) in param_ids]
            if grads:
                norm = torch.nn.utils.get_total_norm(grads)
                torch._foreach_mul_(grads, torch.clamp(self._norm / (norm + 1e-6), max=1.0))


def others_like(names: Sequence[str], module_of: dict[str, nn.Module]) -> list[str]:
    """For each of the modules ``names`` another one: of the same class if there is any, nearest in its number of
    elements, the first of these; neither inside of any that was found nor around it, nor with a tensor of it. Fewer
    where there are no more.
    """
    shams: list[str] = []
    # a head that is tied to its embedding would do to the embedding what the remedy does
    treated = {storage for name in names for storage in _storages(module_of[name])}
    module_of = {name: module for name, module in module_of.items() if name in names or not treated & _storages(module)}
    for name in names:
        excluded = (*names, *shams)
        free = [candidate for candidate in module_of if not any(_related(candidate, name_) for name_ in excluded)]
        free = [candidate for candidate in free if _size(module_of[candidate])]
        alike = [candidate for candidate in free if type(module_of[candidate]) is type(module_of[name])] or free
        size = _size(module_of[name])
        if alike:
            shams.append(min(alike, key=lambda candidate: abs(_size(module_of[candidate]) - size)))
    return shams


def computing(module: nn.Module, forward: Callable[..., Any], kind: str) -> Callable[..., Any]:
    """``forward``, computed in another way: ``fp32``, ``cpu`` or ``float64``. What it returns is on the device that it
    would be on, and has the dtype of the module where no autocast lets others take float32.
    """

    def passing(*args: Any, **kwargs: Any) -> Any:
        sample = next((x for x in pytree.tree_leaves((args, kwargs, list(module.parameters()))) if _floats(x)), None)
        if sample is None:
            return forward(*args, **kwargs)
        device = sample.device
        casts = torch.is_autocast_enabled(device.type)
        change = {"fp32": _to_float32, "cpu": _to_cpu, "float64": _to_float64}[kind]
        dtype = torch.get_autocast_dtype(device.type) if casts else sample.dtype
        back = (lambda x: x) if kind == "fp32" and casts else _back(None if kind == "cpu" else dtype, device)
        new_args, new_kwargs = pytree.tree_map(change, (args, kwargs))
        with _with_changed_state(module, change), torch.autocast(device.type, enabled=casts and kind == "cpu"):
            return pytree.tree_map(back, forward(*new_args, **new_kwargs))

    return passing


@contextlib.contextmanager
def _with_changed_state(module: nn.Module, change: Callable[[Any], Any]) -> Iterator[None]:
    """The module with its parameters and buffers changed; what it writes into buffers is kept."""
    buffers = dict(module.named_buffers(remove_duplicate=False))
    tensors: dict[str, Tensor] = {**dict(module.named_parameters(remove_duplicate=False)), **buffers}
    changed = {name: new for name, tensor in tensors.items() if (new := change(tensor)) is not tensor}
    with _reparametrize_module(module, changed):
        yield
    with torch.no_grad():
        for name, buffer in buffers.items():
            if name in changed:
                buffer.copy_(changed[name])


def _to_float32(x: Any) -> Any:
    return x.float() if isinstance(x, Tensor) and x.dtype in _HALF else x


def _to_float64(x: Any) -> Any:
    return x.double() if _floats(x) else x


def _to_cpu(x: Any) -> Any:
    return x.cpu() if isinstance(x, Tensor) else x


def _back(dtype: torch.dtype | None, device: torch.device) -> Callable[[Any], Any]:
    def back(x: Any) -> Any:
        return x.to(device, dtype if dtype is not None and _floats(x) else x.dtype) if isinstance(x, Tensor) else x

    return back


def _floats(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def _plain(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "") if name.startswith(wrapper) or f".{wrapper}" in name else name
    return name


def _related(name: str, other_name: str) -> bool:
    return name == other_name or name.startswith(f"{other_name}.") or other_name.startswith(f"{name}.")


def _storages(module: nn.Module) -> set[int]:
    """Storages of its parameters; on the meta device, or where a wrapper has none, the tensors themselves."""
    return {_storage(param) for param in module.parameters()}


def _storage(param: nn.Parameter) -> int:
    try:
        return param.untyped_storage().data_ptr() or id(param)
    except (RuntimeError, NotImplementedError):
        return id(param)


def _size(module: nn.Module) -> int:
    return sum(param.numel() for param in module.parameters())
