"""Run the first forward pass of a step again on the same batch, with all that it may change put back before and after,
and compare bits: twice before the update, with a backward pass each, and once after it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trueline.capture.model.layout import clean_name, compiled_inside, unwrap
from trueline.capture.model.outputs import differentiable
from trueline.capture.model.random_streams import RandomStreams
from trueline.capture.model.untraced import (
    compiled_in_place,
    in_backward,
    in_transform,
    num_dispatch_modes,
)
from trueline.capture.probes.around_update.sampling import Waiting
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.batch import tensors_inside
from trueline.capture.probes.parts import ProbeParts
from trueline.laws.replays.columns import Replayed, odd_one
from trueline.laws.replays.probe.neighbours import Batch, Neighbours, moved
from trueline.laws.replays.probe.outside import reached_objects, users_thread
from trueline.laws.replays.probe.passes import (
    Origin,
    Pass,
    copied,
    digest_as,
    digest_of,
    format_of,
    in_precision,
    listen,
    precision_of,
    present,
    quiet,
    reshard,
    weights_for,
)
from trueline.laws.replays.probe.stored_state import NotStorable, StoredState
from trueline.tensor.digest import digest_each

ADAPTERS = ("single", "ddp", "manual", "deepspeed")
"""Where a forward and backward pass of the model inside of the wrapper needs no other rank."""
FORWARD_ONLY = ("fsdp2",)
"""Where a forward pass without gradients is one that evaluation makes too, in which all ranks take part."""
REPLICATED = ("ddp", "manual", "deepspeed")
"""Where all ranks hold the same weights."""


RETURNED = "what the model returns"
"""Stands among the names of modules for the output of the whole model."""


class _Made(NamedTuple):
    """What is known of a step whose digests are on their way: ``names`` of the outputs, and of ``parameters``."""

    names: list[str]
    parameters: list[str]
    num_outputs: int
    device: str
    neighbour: int
    neighbour_differs: str


class ReplayProbe:
    """At the steps that the plan's ``replay`` names. Digests go to the host with the row; the device and another rank
    are waited for where ranks hand each other their batches.
    """

    name = "replay"
    moments = ("forward", "output", "update", "updated")
    between = moments

    def __init__(self, parts: ProbeParts) -> None:
        self._parts = parts
        self._needs_all = parts.watching.adapter.name in FORWARD_ONLY
        self._doubt: str | None = None
        self._roots: list[tuple[str, object]] | None = None
        self._neighbours = Neighbours(parts.watching.team)
        self._exchanges = parts.watching.adapter.name in REPLICATED
        self._waiting = Waiting[_Made]()
        self._origin: Origin | None = None
        self._due = self._is_asked = False
        self._handles: list[Any] = []

    def detach(self) -> None:
        self._forget()

    def begin(self, step: Step) -> bool:
        self._forget()
        self._due = self._is_asked = step.watched and step.plan.replays_at(step.number, age=step.age)
        if self._due and self._doubt is None:
            self._doubt = _doubt_of(self._parts)
        return self._due

    def take(self, moment: Moment, step: Step) -> dict[str, Any]:
        if self._doubt:
            due, self._due = self._due, False
            if moment == "update":
                self._decline(step.number)
            return {"replayed": Replayed(doubt=self._doubt).to_json()} if due else {}
        try:
            if moment == "forward":
                if self._due and not in_backward():
                    self._at_forward(step)
            elif moment == "output":
                self._at_output(step.output)
            elif moment == "update":
                try:
                    return self._at_update(step)
                finally:
                    self._decline(step.number)
            else:
                return self._after_update(step)
        except (NotStorable, torch.OutOfMemoryError) as error:
            self._forget()
            self._doubt = _words(error)
            return {"replayed": Replayed(doubt=self._doubt).to_json()}
        return {}

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        """``replayed``, of the digests that have arrived."""
        made = self._waiting.take(step.number)
        if made is None or "replay_outputs" not in host:
            return {}
        place, odd = odd_one(*host["replay_outputs"].tolist())
        differing, gradients = [], 0
        if "replay_gradients" in host:
            gradients = len(made.parameters)
            pairs = zip(made.parameters, *host["replay_gradients"].tolist(), strict=True)
            # backward passes come to the last parameters first
            differing = [name for name, a, b in pairs if a != b][-1:]
        replayed = Replayed(
            values=len(made.names),
            forward="" if place < 0 else made.names[place],
            odd=odd,
            gradients=gradients,
            backward="" if odd else next(iter(differing), ""),
            outputs=made.num_outputs,
            device=made.device,
            neighbour=made.neighbour,
            neighbour_differs=made.neighbour_differs,
        )
        if "replay_after" in host:
            changed = host["replay_weights"] != host["replay_weights_after"]
            replayed = replace(
                replayed,
                parameters=len(made.parameters),
                changed=int(changed.sum()),
                trained=int((changed & host["replay_trained"]).sum()) if gradients else int(changed.sum()),
                reads=bool((host["replay_after"] != host["replay_outputs"][1, -1]).any()),
            )
        return {"replayed": replayed.to_json()}

    # -- the training's own pass -----------------------------------------------------------------------------------

    def _at_forward(self, step: Step) -> None:
        self._due = False  # the first pass of a step alone
        if step.called is not None:
            raise NotStorable("the script calls parts of the model, and not the model")
        module = step.module if step.module is None else unwrap(step.module)
        if module is None:
            return
        if num_dispatch_modes() or torch._C._len_torch_function_stack() or in_transform():
            raise NotStorable("a mode of torch is on")
        if sys.getprofile() is not None or sys.gettrace() is not None or torch.autograd._profiler_enabled():
            raise NotStorable("a profiler or a debugger is on, which would see it")
        if thread_name := users_thread():
            raise NotStorable(f"the thread {thread_name} may change what is put back")
        if not module.training:
            return
        if self._roots is None:
            self._roots = reached_objects(module)
        state = StoredState(self._roots)
        device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
        self._origin = Origin(
            module,
            copied(step.args),
            copied(dict(step.kwargs)),
            state,
            RandomStreams(device),
            precision_of(device),
            self._versions(module),
            Pass(),
        )
        self._handles = listen(module, self._origin.training)

    def _at_output(self, output: Any) -> None:
        self._unhook()
        origin = self._origin
        if origin is not None and origin.training.returned is None:
            origin.training.returned = digest_of(output)

    # -- the same again --------------------------------------------------------------------------------------------

    def _at_update(self, step: Step) -> dict[str, Any]:
        origin = self._origin
        if origin is None or origin.training.returned is None or origin.first is not None:
            return {}
        if self._versions(origin.module) != origin.versions:
            self._origin = None
            doubt = "weights were changed between the forward pass and the update"
            return {"replayed": Replayed(doubt=doubt).to_json()}
        named = [(clean_name(name), x) for name, x in origin.module.named_parameters() if x.requires_grad]
        params = [x for _, x in named]
        origin.weights = digest_as(params, format_of(origin))
        if self._needs_all and not self._all_agree(step.number):
            self._origin = None
            return {"replayed": Replayed(doubt="another rank could not take part").to_json()}
        first, second = (self._again(origin, params, backward=not self._needs_all) for _ in range(2))
        if not self._needs_all and (first.gradients is None or second.gradients is None):
            self._origin = None
            return {"replayed": Replayed(doubt="what the model returns needs no gradient").to_json()}
        origin.first = first
        passes = (origin.training, first, second)
        if not origin.training.names == first.names == second.names:
            self._origin = None
            return {"replayed": Replayed(doubt="its modules run in another order each time").to_json()}
        neighbour, neighbour_differs = self._run_neighbours(origin, first, params, step.number)
        made = _Made(
            names=[*first.names, RETURNED],
            parameters=[name for name, _ in named],
            num_outputs=origin.num_outputs,
            device=str(origin.streams.device),
            neighbour=neighbour,
            neighbour_differs=neighbour_differs,
        )
        self._waiting.add(step.number, made)
        digests = [run.digests() for run in passes]
        measured = {"replay_outputs": torch.stack(digests)}
        if first.gradients is not None and second.gradients is not None:
            gradients = torch.stack([first.gradients, second.gradients])
            measured |= {"replay_gradients": gradients, "replay_trained": present(origin.trained)}
        return measured

    def _after_update(self, step: Step) -> dict[str, Any]:
        origin = self._origin
        if origin is None or origin.first is None:
            return {}
        params = [x for x in origin.module.parameters() if x.requires_grad]
        after = self._again(origin, params, backward=False)
        self._origin = None
        return {
            "replay_weights": present(origin.weights),
            "replay_weights_after": digest_as(params, format_of(origin)),
            "replay_after": present(after.returned),
        }

    def _run_neighbours(self, origin: Origin, first: Pass, params: list[nn.Parameter], step: int) -> tuple[int, str]:
        """Run the batch of another rank: (that rank, or -1; the first value that is not as that rank has it, or '')."""
        if not self._exchanges:
            return -1, ""
        digests = first.digests().tolist()
        batch = Batch(origin.args, origin.kwargs, origin.streams, origin.precision, first.names, digests)
        answer = self._answer(step, batch.packed())
        if answer is None or answer.names != first.names or answer.precision != origin.precision:
            return -1, ""
        device = origin.streams.device
        of_neighbour = replace(
            origin,
            args=moved(answer.args, device),
            kwargs=moved(answer.kwargs, device),
            streams=answer.streams.on(device),
        )
        run_here = self._again(of_neighbour, params, backward=False)
        if run_here.names != answer.names:
            return -1, ""
        pairs = zip([*answer.names, RETURNED], run_here.digests().tolist(), answer.digests, strict=True)
        differing = (name for name, digest, neighbours_digest in pairs if digest != neighbours_digest)
        return self._neighbours.rank, next(differing, "")

    def _answer(self, step: int, message: bytes) -> Batch | None:
        """Hand ``message`` to the other ranks, once a step that is asked for; the answer to one that is not empty."""
        is_asked, self._is_asked = self._is_asked, False
        return self._neighbours.exchange(step, message) if is_asked else None

    def _all_agree(self, step: int) -> bool:
        is_asked, self._is_asked = self._is_asked, False
        return is_asked and self._neighbours.all_agree(step, is_able=True)

    def _decline(self, step: int) -> None:
        """Nothing was run again at this ``step``: say so to the others, who wait for an answer."""
        if self._needs_all and self._is_asked:
            self._is_asked = False
            self._neighbours.all_agree(step, is_able=False)
        elif self._exchanges:
            self._answer(step, b"")

    def _again(self, origin: Origin, params: list[nn.Parameter], *, backward: bool = True) -> Pass:
        """The pass of ``origin`` once more; everything is afterwards as it was before."""
        result = Pass()
        now, streams_now = StoredState(self._roots or ()), RandomStreams(origin.streams.device)
        handles: list[Any] = []
        try:
            origin.state.put_back()
            origin.streams.put_back()
            # with the hooks that there were at the training's own pass, ours among them
            with quiet(origin.module), torch.set_grad_enabled(not self._needs_all), in_precision(origin):
                handles = listen(origin.module, result, heard=True)
                output = origin.module(*copied(origin.args), **copied(dict(origin.kwargs)))
                for handle in handles:
                    handle.remove()
                result.returned = digest_of(output)
                origin.num_outputs = sum(x.numel() for _, x in tensors_inside("", output))
                if backward:
                    self._backward(origin, result, output, params)
        except (NotStorable, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise NotStorable(f"a second forward pass raised {type(error).__name__}: {error}") from None
        finally:
            for handle in handles:
                handle.remove()
            if self._needs_all:
                reshard(origin.module)
            streams_now.put_back()
            now.put_back()
        return result

    @staticmethod
    def _backward(origin: Origin, result: Pass, output: Any, params: list[nn.Parameter]) -> None:
        roots = list(differentiable(output))
        if not roots or not params:
            return
        weights = [weights_for(x) for x in roots]
        gradients = torch.autograd.grad(roots, params, weights, allow_unused=True)
        result.gradients = digest_each(gradients, origin.streams.device)
        zero = torch.zeros((), dtype=torch.bool, device=origin.streams.device)
        origin.trained = torch.stack([zero if x is None else (x != 0).any() for x in gradients])

    def _versions(self, module: nn.Module) -> list[int]:
        """How often each parameter was changed in place; [] where a library puts others in their place meanwhile."""
        return [] if self._needs_all else [parameter._version for parameter in module.parameters()]

    def _forget(self) -> None:
        self._unhook()
        self._origin = None

    def _unhook(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []


def _words(error: Exception) -> str:
    if isinstance(error, torch.OutOfMemoryError):
        return "the device has not enough memory for one more forward and backward pass of a micro-batch"
    return str(error)


def _doubt_of(parts: ProbeParts) -> str:
    """Why the model of this rank can never be run again, '' where it may be."""
    adapter = parts.watching.adapter.name
    if adapter not in (*ADAPTERS, *FORWARD_ONLY):
        return f"the model is sharded ({adapter}): a pass of it needs all ranks"
    for module in parts.model.modules():
        if compiled_inside(module) is not None or compiled_in_place(module):
            return "the model is compiled"
        if isinstance(module, (nn.SyncBatchNorm, nn.DataParallel)):
            return f"{type(module).__name__} needs other ranks or devices"
    for parameter in parts.model.parameters():
        if (type(parameter.data) is not Tensor and adapter not in FORWARD_ONLY) or hasattr(parameter, "ds_id"):
            return "its parameters are sharded, or of a class of their own"
    return ""


def make_probe(parts: ProbeParts) -> ReplayProbe:
    """The probe of this law for one watched model."""
    return ReplayProbe(parts)
