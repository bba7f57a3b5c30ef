"""The parameters of one model while it trains: what changes on this rank, and the Layout that all ranks measure by.

Ranks add up sketches, so they all measure by one Layout. It stays when a rank freezes, drops or replaces a parameter:
that has no gradient from there on, the others are compared as before. It changes when all ranks have
reported that the same one would fit their models, from a step on that all of them know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from trueline.capture.model.layout import Apart, Layout, local, named_parameters
from trueline.schema.errors import CaptureError
from trueline.schema.files.run_manifest import ParamChange, ParamState

_MANAGED = "_is_fsdp_managed_module"
"""Where FSDP marks a module whose parameters it has, for `torch.compile` (private)."""
Named = Sequence[tuple[str, nn.Parameter]]
"""Parameters with their names."""


class Parameters:
    """Holds the ``layout`` in force on this rank of a team, and ``changes`` since watching began. ``make`` makes a
    Layout of the model as it is, leaving out what it is given.
    """

    def __init__(self, model: nn.Module, *, make: Callable[[Apart], Layout], apart: Apart) -> None:
        self.layout = make(apart)
        self.wants = self.layout.digest
        """Digest of the Layout that would fit the model as it is."""
        self.changes: list[ParamChange] = []
        named = named_parameters(model)
        self._states = _states(named, whole=self.layout.mesh.shards == 1)
        self.apart = [state for name, state in self._states.items() if name in apart.shape or name in apart.frozen]
        """Those that not all ranks held alike when watching began, as they are on this one."""
        self._model = model
        self._make = lambda: make(Apart(shape=apart.shape))
        self._ids = _ids(named)
        self._known = {self.layout.digest: self.layout}
        self._agreed: list[tuple[int, int]] = []
        self._moved = False
        self._lost = False
        self._managed = _is_managed_by_fsdp(model)
        self.cut = False
        """Whether FSDP took the parameters only after watching had begun: what the Layout knows are not whole ones."""

    def look(self, step: int) -> None:
        """Add to ``changes`` what has changed since the last look, as of ``step``."""
        # FSDP1 may leave the same objects in their places.
        late = not self._managed and _MANAGED in self._model.__dict__
        if self._lost or (not late and self.layout.fits()):
            return
        try:
            self._note(step)
        except Exception:
            self._lost, self.wants = True, self.layout.digest
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
        named = named_parameters(self._model)
        before, states, ids = self._states, _states(named, whole=whole), _ids(named)
        swapped = {name for name in ids if whole and self._ids.get(name, ids[name]) != ids[name]}
        self._states, self._ids, self._moved = states, ids, True
        found = [
            ParamChange(**states.get(name, ParamState(name=name)).model_dump(), step=step, replaced=name in swapped)
            for name in dict.fromkeys([*before, *states])
            if before.get(name) != states.get(name) or name in swapped
        ]
        self.changes = [*self.changes, *found]
        self.wants = self._fitting()

    def receive(self, digest: int | None, *, known: int) -> None:
        """Take the digest of the Layout that all workers want, if they agree, as all know before step ``known``."""
        if digest is not None:
            self._agreed.append((known, digest))

    def follow(self, step: int, *, alone: bool) -> None:
        """Put the ``layout`` in force that holds from ``step`` on, over the objects that the model has now. Call it
        before every step, in order. A worker that is ``alone`` need not agree with any.
        """
        if alone:
            self._agreed = [(step, self.wants)]
        due = [digest for known, digest in self._agreed if known <= step]
        self._agreed = [entry for entry in self._agreed if entry[0] > step]
        digest = due[-1] if due else self.layout.digest
        if digest == self.layout.digest and not self._moved:
            return
        self._moved = False
        self.layout = self._known[digest].held_by(self._model)
        kept = {digest, self.wants, *(other for _, other in self._agreed)}
        self._known = {key: layout for key, layout in self._known.items() if key in kept} | {digest: self.layout}

    def _fitting(self) -> int:
        """The digest of the Layout in force, unless the model now trains what that does not know."""
        known = dict(zip(self.layout.names, self.layout.shapes, strict=True))
        try:
            wanted = self._make()
        except CaptureError:  # nothing is trained any more
            return self.layout.digest
        if all(known.get(name) == shape for name, shape in zip(wanted.names, wanted.shapes, strict=True)):
            return self.layout.digest
        self._known[wanted.digest] = wanted
        return wanted.digest


def _states(named: Named, *, whole: bool) -> dict[str, ParamState]:
    """Of each parameter by name; FSDP swaps ``whole`` ones and shards, of other dtypes, so these are left out there."""
    return {
        name: ParamState(
            name=name,
            trains=param.requires_grad,
            dtype=str(param.dtype) if whole else "",
            shape=list(local(param).shape) if whole else [],
        )
        for name, param in named
    }


def _is_managed_by_fsdp(model: nn.Module) -> bool:
    """Whether FSDP of either kind has parameters of ``model``."""
    return any(_MANAGED in vars(module) for module in model.modules())


def _ids(named: Named) -> dict[str, int]:
    return {name: id(param) for name, param in named}
