"""The site and kind under which a Tolerance has the floor of a value."""

from __future__ import annotations

from trueline.comparison.expect.rounding import UNIT_ROUNDOFF
from trueline.comparison.match.names import plain_name
from trueline.judge.recorded.step_values import Value
from trueline.schema.files.tolerance import Tolerance


def kind_key(value: Value, ref_value: Value) -> str:
    """``phase/op/dtype`` of two values that are compared: ``fwd/linear/bfloat16``, ``grad/param/float32``.

    The op of a module's own values is its class. The dtype is the coarser of both.
    """
    op = "param" if value.kind == "param" else value.api.rsplit(".", 1)[-1] or value.kind
    dtype = max(value.dtype, ref_value.dtype, key=lambda name: UNIT_ROUNDOFF.get(name, 0.0))
    return f"{value.site.phase}/{op}/{dtype}"


def site_key(value: Value) -> str:
    """``micro/phase/name#call:slot`` of a value, the name without wrappers."""
    site = value.site
    return f"{site.micro}/{site.phase}/{plain_name(site.name)}#{site.call}:{site.slot}"


def floor_of(tolerance: Tolerance, value: Value, ref_value: Value, *, how: str = "statistics") -> float | None:
    """The difference to expect of two values by a Tolerance; None where it has neither their site nor their kind.

    The site is looked up by the name in the reference, or by that in the run where the former was not calibrated.
    ``how`` says what the difference was measured on: floors from statistics are too low for stored values (``tensor``)
    and are not used for them.
    """
    if how == "tensor" and tolerance.how == "statistics":
        return None
    names = [site_key(ref_value), site_key(value)]
    known_name = next((name for name in names if name in tolerance.sites), None)
    return tolerance.expected(kind_key(value, ref_value), known_name, step=ref_value.site.step)
