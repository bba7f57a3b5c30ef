"""Where a number was seen: one text form used as CLI argument, URL, alert and error text."""

from __future__ import annotations

import re

from trueline.schema.errors import SiteError
from trueline.schema.fact import fact

SITE_FORM = "step.micro-batch/rank/phase/name#call:slot"
"""The fields of a site, as screens explain them where the first site is shown."""

_FORM = re.compile(
    r"^(?P<step>\d+)\.(?P<micro>\d+)/r(?P<rank>\d+)/(?P<phase>[a-z_]+)/(?P<name>[^#]*)#(?P<call>\d+):(?P<slot>[A-Za-z_0-9.]+)$"
)


@fact(order=True)
class Site:
    """One place in one run, ``120.0/r3/fwd/layers.7.attn.qkv#0:out0`` in text.

    ``step`` is the optimizer step, ``micro`` the micro-batch within it, ``rank`` the global rank,
    ``phase`` one of ``batch fwd bwd loss grad reduce param buffer opt``, ``name`` an FQN,
    ``call`` the zero-based index of the call of that name in the phase, ``slot`` which of its values.
    """

    step: int
    micro: int
    rank: int
    phase: str
    name: str
    call: int = 0
    slot: str = "out0"

    def __str__(self) -> str:
        return f"{self.step}.{self.micro}/r{self.rank}/{self.phase}/{self.name}#{self.call}:{self.slot}"

    @classmethod
    def parse(cls, text: str) -> Site:
        """The Site that ``text`` spells; raises ``SiteError`` where it spells none."""
        match = _FORM.match(text)
        if match is None:
            raise SiteError(
                f"'{text}' is not a site. Expected step.micro/rRANK/phase/name#call:slot, "
                "for example 120.0/r3/fwd/layers.7.attn.qkv#0:out0."
            )
        part = match.groupdict()
        return cls(
            step=int(part["step"]),
            micro=int(part["micro"]),
            rank=int(part["rank"]),
            phase=part["phase"],
            name=part["name"],
            call=int(part["call"]),
            slot=part["slot"],
        )
