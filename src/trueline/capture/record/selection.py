"""Which calls of a step a Plan wants recorded."""

from __future__ import annotations

import fnmatch

from trueline.schema.plan import Plan


class Selection:
    """Decides by phase, by globs over names, and by the stretch ``between`` two calls. One decision a name is kept."""

    def __init__(self, plan: Plan) -> None:
        self._asked = plan.phases
        self.phases = frozenset(plan.phases) | {"save"}
        self._begun = self.phases | ({"fwd"} if "bwd" in self.phases else frozenset())
        self._steps, self._every = plan.steps, plan.every or 1
        self._globs = plan.names
        self._between = plan.between
        self._known: dict[str, bool] = {}
        self.begin()

    def wants_step(self, step: int) -> bool:
        """Whether ``step`` is one of those that the Plan asks for."""
        first, end = self._steps
        return first <= step and (end is None or step < end) and (step - first) % self._every == 0

    def nothing_of(self, step: int) -> str:
        """What is to be said where no call of ``step`` was chosen."""
        return (
            f"Nothing of step {step} has one of the names {list(self._globs)} in the phases {list(self._asked)}: "
            "nothing was recorded."
        )

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
