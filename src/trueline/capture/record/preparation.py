"""Calls outside of a training forward pass that prepare it: what they compute reaches the pass or its loss.

Scripts compute between the batch and the model: noise, masks, shifted labels. In the same place they keep moving
averages, take metrics and evaluate. Which of these a call is shows only in what is made of its result. So the calls
before a pass are recorded, and when the step ends those are dropped whose results no later one used. Storages are
followed and not values, so that a change in place reaches whoever reads that memory next, through ``.data`` too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType

from torch import Tensor, nn

from trueline.capture.record.arguments import Slots
from trueline.capture.record.calls import Call, Calls

MAX_AHEAD = 4_096
"""Calls before a pass that are kept. Where there are more, as of a script that makes its data set, they are dropped and
those that follow are kept."""

MAX_DROPS = 16
"""Number of times that this happens before one pass; then nothing before it is recorded."""

TOO_MANY = (
    f"more than {MAX_AHEAD * MAX_DROPS:,} calls were made before the forward pass: none of those before it is recorded."
)

MAX_KEPT = 65_536
"""Calls before a pass that are kept where all are asked for; then no more, as the first that differs is looked for."""

TOO_MANY_KEPT = (
    f"more than {MAX_KEPT:,} calls were made before the forward pass: those between them and the pass are not recorded."
)

_ASIDE = ("torch.optim.", "torch.serialization", "torch.amp.", "torch.nn.modules.module", "torch.nn.init")
"""Callers that load, save, reset and update: none of it prepares a batch."""

_LOADER, _OPTIMIZER = "torch.utils.data.dataloader", "torch.optim.optimizer"


@dataclass(eq=False, slots=True)
class _Outside:
    """A call before a pass, or one outside of all modules. ``takes`` and ``gives`` are addresses of storages;
    ``before`` is the micro-batch whose pass it came before, None for a call of a pass or its loss.
    """

    call: Call
    loose: bool
    before: int | None
    takes: set[int] = field(default_factory=set)
    gives: set[int] = field(default_factory=set)


class Preparation:
    """The calls of a step that are outside of its passes. ``address`` is that of a tensor's storage; ``keeps_all`` of
    them, and not only those that prepare a pass.
    """

    def __init__(self, address: Callable[[Tensor], int | None], *, keeps_all: bool = False) -> None:
        self._address, self._keeps_all = address, keeps_all
        self.begin()

    def begin(self) -> None:
        """Begin a step: the pass of its first micro-batch is to come."""
        self._before: int | None = 0
        self._outside: dict[Call, _Outside] = {}
        self._addresses_used: dict[int, set[int]] = defaultdict(set)
        self._now = self._ahead = self._drops = 0
        self.has_passes = False

    @property
    def is_under_way(self) -> bool:
        """True if the next pass has not begun."""
        return self._before is not None

    @property
    def is_first(self) -> bool:
        """True if the first pass of the step has not begun."""
        return self._before == 0

    def pass_begins(self, micro: int) -> None:
        """The forward pass of micro-batch ``micro`` begins."""
        self.has_passes = True
        self._before, self._now = None, micro

    def backward_ended(self) -> None:
        """A backward pass has ended: what follows may prepare the next micro-batch."""
        if self.has_passes:
            self._before = self._now + 1

    def add(self, call: Call, *, loose: bool) -> None:
        """A call begins, before a pass or ``loose``: outside of all modules, and numbered only when the step ends."""
        if loose or (self._before is not None and call.phase == "fwd"):
            self._outside[call] = _Outside(call, loose, self._before)
            self._ahead += loose and self._before == 0

    def takes(self, call: Call, slots: Slots) -> None:
        """Note the inputs of a call, but for parameters, which no batch is made of."""
        if self._keeps_all or not self._outside:
            return  # nothing before this pass whose results it may use
        outside = self._outside.get(call)
        addresses = self._addresses_used[self._now] if outside is None or outside.before is None else outside.takes
        addresses.update(self._addresses(slots))

    def gives(self, call: Call, slots: Slots) -> None:
        """Note the outputs of a call, and what it writes to."""
        outside = None if self._keeps_all else self._outside.get(call)
        if outside is not None and outside.before is not None:
            outside.gives.update(self._addresses(slots))

    def _addresses(self, slots: Slots) -> Iterator[int]:
        for _, x in slots:
            if type(x) is not nn.Parameter and (address := self._address(x)) is not None:
                yield address

    def overflow(self) -> dict[Call, None]:
        """The calls that are dropped now because there are too many before the first pass."""
        if self._ahead < MAX_AHEAD or self._keeps_all:
            return {}
        self._ahead = 0
        self._drops += 1
        dropped = [outside.call for outside in self._outside.values() if outside.loose]
        for call in dropped:
            del self._outside[call]
        return dict.fromkeys(dropped)

    @property
    def gives_up(self) -> bool:
        """True if too many calls came before the first pass."""
        if self._keeps_all:
            return self._ahead >= MAX_KEPT
        return self._drops >= MAX_DROPS

    def settled(self, calls: Calls) -> dict[Call, Call | None]:
        """By call the one with its final number, or None where it is dropped. Calls between two passes stay,
        in phase grad where they prepare none. Where no pass was seen all may be what is to be recorded.
        """
        keeps_all = self._keeps_all or not self.has_passes
        reaching = {id(outside) for outside in self._reaching()}
        final: dict[Call, Call | None] = {}
        for outside in self._outside.values():
            call, reaches = outside.call, keeps_all or id(outside) in reaching
            if outside.before == 0 and not reaches:
                final[call] = None
            elif outside.loose:
                prepares = outside.before is not None and id(outside) in reaching
                final[call] = calls.numbered(call, micro=outside.before if prepares else None)
        return final

    def _reaching(self) -> Iterator[_Outside]:
        """The calls before a pass whose results it used, or calls that it used the results of, from the last to the
        first.
        """
        addresses: set[int] = set()
        passes = set(self._addresses_used)
        last = self._now if self.has_passes else -1
        for outside in reversed(self._outside.values()):
            if outside.before is None or outside.before > last:
                continue
            for micro in [micro for micro in passes if micro >= outside.before]:
                addresses |= self._addresses_used[micro]
                passes.discard(micro)
            if not addresses.isdisjoint(outside.gives):
                addresses |= outside.takes
                yield outside


def is_aside(frame: FrameType) -> bool:
    """True if the call that ``frame`` makes before a pass prepares none: a loader collates in it, whose processes would
    not be seen either; or an optimizer computes, unless that calls a closure, or a model is loaded, saved or reset.
    """
    if frame.f_globals.get("__name__", "").startswith(_ASIDE):
        return True
    above: FrameType | None = frame
    while above is not None:
        name = above.f_globals.get("__name__")
        if name == _LOADER:
            return True
        if name == _OPTIMIZER and "closure" not in above.f_locals.get("kwargs", {}):
            return len(above.f_locals.get("args", ())) < 2
        above = above.f_back
    return False
