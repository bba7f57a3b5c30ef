"""Look at forward passes that nothing is trained on: random numbers that they draw, tensors that they change, and
spectral norms that they find.

Letters: a weight is [M, N] as its spectral norm reads it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.lazy import is_lazy
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from trueline.capture.adapters.base import Guard
from trueline.capture.model import patches
from trueline.capture.model.failures import is_users
from trueline.capture.model.object_table import ObjectTable
from trueline.capture.model.untraced import OWN_MODULES, in_backward, script_line
from trueline.capture.probes.around_update.sampling import EARLY, Waiting, gap
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.evaluated_samples import EvaluatedSamples
from trueline.capture.probes.own_draws import draws
from trueline.capture.probes.surroundings import torch_states
from trueline.capture.step.own_columns import digest_columns
from trueline.schema.columns.evaluations import UntrainedPass, evaluations_text
from trueline.schema.safe_logger import SafeLogger

_log = SafeLogger()

FIRST = 4
"""Passes of each mode that are looked at before training, and at whose end spectral norms are."""
MAX_NAMED = 8
"""Draws, buffers and weights of a pass that are named."""
MAX_PENDING = 32
"""Passes that wait for the next sampled step; of more the first are kept."""
ITERATIONS = 8
"""Of the power method, from the vector that the norm itself has: what they reach is at most the norm."""
_MASKS = ("bernoulli_", "native_dropout")
"""Operations by which torch's dropout of all kinds draws, on host and device."""
_PLAIN = (Tensor, nn.Parameter)
_DIGESTS = "evaluated_digests"
_OBSERVERS = ("torch.ao.", "torch.quantization", "torchao.")
"""Modules from here watch what flows by, in evaluation mode too."""


@dataclass(eq=False)
class _PassStart:
    """State of the model and of random streams as a pass began."""

    step: int | None
    device: torch.device
    states: list[int]
    tensors: list[tuple[str, nn.Module, str, Tensor, int]]
    """Of each buffer or parameter its full name, module, name there, itself and its version."""


class UntrainedPasses:
    """Looks at passes of one model: the ``FIRST`` of each mode, then the first in each step that has one, later now and
    then. ``passes`` are those that were looked at, each with its numbers [2 norms] float32 on the device of the model.
    """

    def __init__(self) -> None:
        self.passes: list[tuple[UntrainedPass, Tensor | None]] = []
        self._num = {True: 0, False: 0}
        self._next_step = {True: 0, False: 0}
        self._draws_at_all = False
        self._before: _PassStart | None = None
        self._drawn: dict[tuple[str, str], None] = {}
        self._drops = False

    def begins(self, module: nn.Module, *, step: int | None) -> bool:
        """A pass of ``module`` begins; True if it is looked at."""
        self.drop()
        num_passes = self._num[module.training]
        is_due = num_passes < FIRST or (step is not None and step >= self._next_step[module.training])
        if not is_due or in_backward() or _is_capturing():
            return False
        device = next((param.device for param in module.parameters()), torch.device("cpu"))
        self._num[module.training] += 1
        # before training there are no steps: the next pass is looked at whenever it comes
        self._next_step[module.training] = 0 if step is None else step + (1 if num_passes < EARLY else gap(step))
        self._before = _PassStart(
            step, device, torch_states(device), [*_versioned_tensors(module, with_params=step is None)]
        )
        if num_passes == 0 or self._draws_at_all:
            draws.add(self)
        return True

    def ended(self, module: nn.Module) -> None:
        """It has returned."""
        start = self._before
        drawn, drops = tuple(self._drawn), self._drops
        self.drop()
        if start is None:
            return
        moved = torch_states(start.device) != start.states
        self._draws_at_all = self._draws_at_all or moved
        norms = [*_spectral_norms(module)][:MAX_NAMED] if self._num[module.training] <= FIRST else []
        norm_tensors = {name for _, names, _ in norms for name in names}
        changed = [name for name, *where in start.tensors if name not in norm_tensors and _is_changed(*where)]
        untrained_pass = UntrainedPass(
            step=start.step,
            training=module.training,
            drawn=moved,
            draws=drawn if moved else (),
            drops=moved and drops,
            dropouts=tuple(_dropouts(module))[:MAX_NAMED] if moved and not module.training else (),
            changed=tuple(dict.fromkeys(changed))[:MAX_NAMED],
            norms=tuple(weight for weight, _, _ in norms),
        )
        if len(self.passes) < MAX_PENDING:
            numbers = [values().to(start.device) for _, _, values in norms]
            self.passes.append((untrained_pass, torch.cat(numbers) if numbers else None))

    def drop(self) -> None:
        """Forget a pass that has not returned."""
        if self._before is not None:
            self._before = None
            draws.remove(self)
        self._drawn, self._drops = {}, False

    def listens_to(self, generator: torch.Generator | None) -> bool:
        """To torch's own alone."""
        return generator is None

    def state_of(self, generator: torch.Generator | None) -> int | None:
        """None: states are read around the whole pass."""
        return None

    def drawn(self, operation: str, shape: tuple[int, ...], state: int | None) -> None:
        self._drops = self._drops or operation in _MASKS
        if len(self._drawn) < MAX_NAMED:
            self._drawn[_function_of_torch() or operation, script_line()] = None


class EvaluationProbe:
    """The columns ``evaluations`` and ``evaluation_values``, and ``evaluated`` and ``evaluated_digests``, at the first
    sampled step after the passes.
    """

    name = "evaluations"
    moments = ("update", "closed")
    between = None

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._recorder = UntrainedPasses()
        self._waiting = Waiting[str]()
        self._samples = EvaluatedSamples()
        self._evaluated = Waiting[str]()
        self._looks = True

    def begin(self, step: Step) -> bool:
        self._recorder.drop()
        self._looks = step.watched
        return step.sampled

    def take(self, moment: Moment, step: Step) -> dict[str, Tensor]:
        if not self._recorder.passes and not self._samples.batches:  # nearly always
            return {}
        passes, self._recorder.passes = self._recorder.passes, []
        columns: dict[str, Tensor] = {}
        if (samples := self._samples.take(trains=moment == "update")) is not None:
            text, columns[_DIGESTS] = samples
            self._evaluated.add(step.number, text)
        if not passes:
            return columns
        self._waiting.add(step.number, evaluations_text([untrained_pass for untrained_pass, _ in passes]))
        numbers = [values.to(step.layout.device) for _, values in passes if values is not None]
        return columns | {"evaluation_values": torch.cat(numbers) if numbers else torch.zeros(0)}

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        columns: dict[str, Any] = {}
        if (text := self._evaluated.take(step.number)) is not None and _DIGESTS in host:
            columns = {"evaluated": text, **digest_columns(host, _DIGESTS)}
        text = self._waiting.take(step.number)
        if text is None or "evaluation_values" not in host:
            return columns
        return columns | {"evaluations": text, "evaluation_values": host["evaluation_values"].tolist()}

    def know(self, passes: Sequence[tuple[UntrainedPass, Tensor | None]]) -> None:
        """Take what was seen before watching began."""
        self._recorder.passes = [*passes, *self._recorder.passes][:MAX_PENDING]

    def begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, step: int) -> None:
        """A pass of ``module`` on these begins."""
        if self._looks:
            with self._guard(self.name):
                self._recorder.begins(module, step=step)
                if not (module.training or torch.is_grad_enabled() or in_backward() or _is_capturing()):
                    self._samples.look(args, kwargs, step=step)

    def ended(self, module: nn.Module) -> None:
        """It has returned."""
        if self._looks:
            with self._guard(self.name):
                self._recorder.ended(module)

    def detach(self) -> None:
        self._recorder.drop()


class PassesBeforeTraining:
    """Looks at passes of models that nothing is known to train yet, the outermost call of each, without a hook of its
    own: ``at_call`` is told of every call of a module that begins.
    """

    def __init__(self) -> None:
        self._recorders = ObjectTable[nn.Module, UntrainedPasses]()
        self._open: tuple[nn.Module, UntrainedPasses] | None = None
        self._inner: set[int] = set()
        self._failed = False

    def at_call(self, module: nn.Module) -> None:
        """``module`` is about to run."""
        if self._failed or id(module) in self._inner:
            return
        try:
            self._at_call(module)
        except Exception as error:
            if is_users(error):
                raise
            self._failed = True
            self._end()
            _log.warning("trueline: passes before training are not looked at", exc_info=True)

    def _at_call(self, module: nn.Module) -> None:
        at = id(module)
        if self._open is not None and self._open[0] is not module:
            self._inner.add(at)
            return
        passes = self._recorders.get(module)
        if passes is None:
            passes = UntrainedPasses()
            self._recorders.set(module, passes)
        self._end()
        if passes.begins(module, step=None):
            self._open = module, passes
            patches.module_call.add(self._at_return, after=True)

    def passes_of(self, model: nn.Module) -> list[tuple[UntrainedPass, Tensor | None]]:
        """Passes of ``model``, and of its parts by the names that they have there; the rest is forgotten."""
        self._end()
        names = {id(module): name for name, module in model.named_modules()}
        passes_of_model = [
            (_rename_in_model(names[id(module)], untrained_pass), values)
            for module, recorder in self._recorders.items()
            if id(module) in names
            for untrained_pass, values in recorder.passes
        ]
        self._recorders.clear()
        return passes_of_model

    def _at_return(self, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        if self._open is not None and self._open[0] is module:
            _, passes = self._open
            with torch.no_grad():
                passes.ended(module)
            self._end()

    def _end(self) -> None:
        if self._open is not None:
            self._open[1].drop()
            self._open = None
            patches.module_call.remove(self._at_return)


def _rename_in_model(name: str, untrained_pass: UntrainedPass) -> UntrainedPass:
    """``untrained_pass`` with names as they are in the whole model, of which it saw the part ``name``."""
    whole = name.removeprefix("module.") if name != "module" else ""
    if not whole:
        return untrained_pass
    fields = ("dropouts", "changed", "norms")
    full_names = {field: tuple(f"{whole}.{fqn}" for fqn in getattr(untrained_pass, field)) for field in fields}
    return replace(untrained_pass, **full_names)


def _versioned_tensors(root: nn.Module, *, with_params: bool) -> Iterator[tuple[str, nn.Module, str, Tensor, int]]:
    """Buffers of ``root`` that are saved with it, and parameters that no framework moves about."""
    for prefix, module in root.named_modules():
        if type(module).__module__.startswith(_OBSERVERS):
            continue
        transient = module._non_persistent_buffers_set
        tensors = {name: buffer for name, buffer in module._buffers.items() if name not in transient}
        for name, tensor in (tensors | module._parameters if with_params else tensors).items():
            if tensor is None or type(tensor) not in _PLAIN or is_lazy(tensor) or tensor.is_inference():
                continue
            counts = isinstance(module, _NormBase) and name == "num_batches_tracked"
            if tensor.is_floating_point() or counts:
                shown_name = "running_mean" if counts else name  # kernels that update it count no version of it
                yield f"{prefix}.{shown_name}" if prefix else shown_name, module, name, tensor, tensor._version


def _is_changed(module: nn.Module, name: str, tensor: Tensor, version: int) -> bool:
    now = module._buffers.get(name, module._parameters.get(name))
    return now is not tensor or tensor._version != version


def _dropouts(root: nn.Module) -> Iterator[str]:
    """Names of dropout modules that are on."""
    for name, module in root.named_modules():
        if isinstance(module, _DropoutNd) and module.training and module.p > 0:
            yield name


def _spectral_norms(root: nn.Module) -> Iterator[tuple[str, tuple[str, ...], Callable[[], Tensor]]]:
    """Of each weight with a spectral norm its name, those of the norm's vectors, and what ``_used_and_largest`` is."""
    for prefix, module in root.named_modules():
        at = f"{prefix}." if prefix else ""
        for hook in tuple(module._forward_pre_hooks.values()):
            if isinstance(hook, SpectralNorm):
                weight, u, v = (getattr(module, f"{hook.name}_{part}", None) for part in ("orig", "u", "v"))
                if all(type(x) in _PLAIN for x in (weight, u, v)):
                    vectors = tuple(f"{at}{hook.name}_{part}" for part in ("u", "v"))
                    matrix = hook.reshape_weight_to_matrix(weight)  # type: ignore[arg-type]
                    yield f"{at}{hook.name}", vectors, _later(matrix, u, v)
        for name, parametrizations in getattr(module, "parametrizations", {}).items():
            for number, part in enumerate(parametrizations):
                weight = getattr(parametrizations, "original", None)
                if isinstance(part, _SpectralNorm) and type(weight) in _PLAIN and weight.ndim > 1:  # type: ignore[union-attr]
                    vectors = tuple(f"{at}parametrizations.{name}.{number}.{vector}" for vector in ("_u", "_v"))
                    matrix = part._reshape_weight_to_matrix(weight)  # type: ignore[arg-type]
                    yield f"{at}{name}", vectors, _later(matrix, part._u, part._v)


def _later(weight_MN: Tensor, u_M: Any, v_N: Any) -> Callable[[], Tensor]:
    return lambda: _used_and_largest(weight_MN.detach().float(), u_M.float(), v_N.float())


def _used_and_largest(weight_MN: Tensor, u_M: Tensor, v_N: Tensor) -> Tensor:
    """Float32 [2]: what the weight is divided by, and how much it lengthens a vector that ``ITERATIONS`` of the power
    method (Miyato et al. 2018, appendix A) lead to from ``v_N``: at most its spectral norm.
    """
    x_N = v_N
    for _ in range(ITERATIONS):
        x_N = nn.functional.normalize(weight_MN.mT @ (weight_MN @ x_N), dim=0)
    return torch.stack([u_M @ (weight_MN @ v_N), torch.linalg.vector_norm(weight_MN @ x_N)])


def _function_of_torch() -> str:
    """The name of the function of ``torch.nn.functional`` that draws, '' where it is none."""
    frame: FrameType | None = sys._getframe(2)
    name = ""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if not module.startswith(("torch.", *OWN_MODULES)):
            return name
        if module == "torch.nn.functional":
            name = frame.f_code.co_name
        frame = frame.f_back
    return name


def _is_capturing() -> bool:
    """True if a CUDA graph is captured, when states of generators cannot be read."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
