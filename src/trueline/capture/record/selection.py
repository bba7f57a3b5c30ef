"""Which calls of a step a Plan wants recorded."""

from __future__ import annotations

import fnmatch

from trueline.schema.plan import Plan


class Selection:
    """Decides by phase, by globs over names, and by the stretch ``between`` two calls. One decision a name is kept."""

    def __init__(self, plan: Plan) -> None:
        self.phases = frozenset(plan.phases) | {"save"}
        self._begun = self.phases | ({"fwd"} if "bwd" in self.phases else frozenset())
        self._globs = plan.names
        self._between = plan.between
        self._known: dict[str, bool] = {}
        self.begin()

    def begin(self) -> None:
        """A step begins: the stretch ``between`` is before its first call again."""
        self._inside = self._between is None

    def wants(self, name: str) -> bool:
        """Whether the name matches one of the Plan's globs."""
        wanted = self._known.get(name)
        if wanted is None:
            wanted = self._known[name] = any(fnmatch.fnmatchcase(name, glob) for glob in self._globs)
        return wanted

    def enters(self, phase: str, name: str) -> bool:
        """Whether a call that begins now is recorded, or in phase fwd its gradients alone; it may be the one that opens
        the stretch.
        """
        if self._between is not None and not self._inside and fnmatch.fnmatchcase(name, self._between[0]):
            self._inside = True
        return self._inside and phase in self._begun and self.wants(name)

    def leaves(self, name: str) -> None:
        """A call has ended; it may be the one that closes the stretch."""
        if self._between is not None and self._inside and fnmatch.fnmatchcase(name, self._between[1]):
            self._inside = False
