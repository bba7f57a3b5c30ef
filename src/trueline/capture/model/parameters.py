"""The parameters of one model while it trains: what changes on this rank, and the Layout that all ranks measure by.

Ranks add up sketches, so they all measure by one Layout. It stays when a rank freezes, drops or replaces a parameter:
that has no gradient from there on, the others are compared as before. It changes when all ranks have
reported that the same one would fit their models, from a step on that all of them know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from trueline.capture.model.layout import Layout, UnlikeParams, local, named_parameters
from trueline.schema.errors import CaptureError
from trueline.schema.files.run_manifest import ParamChange, ParamState

_MANAGED = "_is_fsdp_managed_module"
"""Attribute with which FSDP marks a module whose parameters it has, for `torch.compile` (private)."""
NamedParams = Sequence[tuple[str, nn.Parameter]]
"""(FQN, parameter) pairs."""


class Parameters:
    """Holds the ``layout`` in force on this rank of a team, and ``changes`` since watching began. ``make`` makes a
    Layout of the model as it is, leaving out what it is given.
    """

    def __init__(self, model: nn.Module, *, make: Callable[[UnlikeParams], Layout], unlike: UnlikeParams) -> None:
        self.layout = make(unlike)
        self.wants = self.layout.digest
        """Digest of the Layout that would fit the model as it is."""
        self.changes: list[ParamChange] = []
        named_params = named_parameters(model)
        self._states = _states(named_params, whole=self.layout.mesh.shards == 1)
        self.unlike = [state for name, state in self._states.items() if name in unlike.shape or name in unlike.frozen]
        """Parameters that not all ranks held alike when watching began, as they are on this one."""
        self._model = model
        self._make = lambda: make(UnlikeParams(shape=unlike.shape))
        self._ids = _ids(named_params)
        self._layouts = {self.layout.digest: self.layout}
        self._agreed: list[tuple[int, int]] = []
        self._moved = False
        self._is_lost = False
        self._managed = _is_managed_by_fsdp(model)
        self.cut = False
        """True if FSDP took the parameters only after watching had begun: those of the Layout are not whole any more.
        """

    def look(self, step: int) -> None:
        """Add to ``changes`` what has changed since the last look, as of ``step``."""
        # FSDP1 may leave the same objects in their places.
        late = not self._managed and _MANAGED in self._model.__dict__
        if self._is_lost or (not late and self.layout.fits()):
            return
        try:
            self._note(step)
        except Exception:
            self._is_lost, self.wants = True, self.layout.digest
            self.changes = [*self.changes, ParamChange(name="", step=step)]
            raise

    def _note(self, step: int) -> None:
        self.cut = not self._managed and _is_managed_by_fsdp(self._model)
        if self.cut:
            raise CaptureError(
                "FSDP wrapped the model after its first training forward pass: gradients and weights are not seen. "
                "Wrap it before, or call it under torch.no_grad()."
            )
        whole = self.layout.mesh.shards == 1
        named_params = named_parameters(self._model)
        before, states, ids = self._states, _states(named_params, whole=whole), _ids(named_params)
        swapped = {name for name in ids if whole and self._ids.get(name, ids[name]) != ids[name]}
        self._states, self._ids, self._moved = states, ids, True
        changes = [
            ParamChange(**states.get(name, ParamState(name=name)).model_dump(), step=step, replaced=name in swapped)
            for name in dict.fromkeys([*before, *states])
            if before.get(name) != states.get(name) or name in swapped
        ]
        self.changes = [*self.changes, *changes]
        self.wants = self._fitting()

    def receive(self, digest: int | None, *, from_step: int) -> None:
        """Take the digest of the Layout that all workers want, if they agree, as all know before ``from_step``."""
        if digest is not None:
            self._agreed.append((from_step, digest))

    def follow(self, step: int, *, alone: bool) -> None:
        """Put the ``layout`` in force that holds from ``step`` on, over the objects that the model has now. Call it
        before every step, in order. A worker that is ``alone`` need not agree with any.
        """
        if alone:
            self._agreed = [(step, self.wants)]
        due = [digest for from_step, digest in self._agreed if from_step <= step]
        self._agreed = [entry for entry in self._agreed if entry[0] > step]
        digest = due[-1] if due else self.layout.digest
        if digest == self.layout.digest and not self._moved:
            return
        self._moved = False
        self.layout = self._layouts[digest].rebind(self._model)
        digests = {digest, self.wants, *(agreed for _, agreed in self._agreed)}
        self._layouts = {key: layout for key, layout in self._layouts.items() if key in digests} | {digest: self.layout}

    def _fitting(self) -> int:
        """The digest of the Layout in force, unless the model now trains what that does not know."""
        shapes = dict(zip(self.layout.names, self.layout.shapes, strict=True))
        try:
            layout = self._make()
        except CaptureError:  # nothing is trained any more
            return self.layout.digest
        if all(shapes.get(name) == shape for name, shape in zip(layout.names, layout.shapes, strict=True)):
            return self.layout.digest
        self._layouts[layout.digest] = layout
        return layout.digest


def _states(named_params: NamedParams, *, whole: bool) -> dict[str, ParamState]:
    """State of each parameter by name. FSDP swaps ``whole`` ones and shards, of other dtypes: neither dtype nor shape
    is told there.
    """
    return {
        name: ParamState(
            name=name,
            trains=param.requires_grad,
            dtype=str(param.dtype) if whole else "",
            shape=list(local(param).shape) if whole else [],
        )
        for name, param in named_params
    }


def _is_managed_by_fsdp(model: nn.Module) -> bool:
    """True if FSDP of either kind has parameters of ``model``."""
    return any(_MANAGED in vars(module) for module in model.modules())


def _ids(named_params: NamedParams) -> dict[str, int]:
    return {name: id(param) for name, param in named_params}
