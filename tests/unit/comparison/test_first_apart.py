"""The first value that differs is of who made it, and never of who received it."""

import pytest

from trueline.comparison.first_apart import FirstDifference, first_differing_value
from trueline.comparison.result import ComparedRow


def row(site, place, judgement="equal", measured=0.0, api="f"):
    return ComparedRow(0, 0, place, site, site, judgement, "op", api, "float32", "float32", (2,), measured)


FORWARD = [
    row("0.0/r0/fwd/a#0:in0", 0),
    row("0.0/r0/fwd/a#0:out0", 1),
    row("0.0/r0/fwd/b#0:in0", 2),
    row("0.0/r0/fwd/b#0:out0", 3),
    row("0.0/r0/bwd/b#0:out0", 4),
    row("0.0/r0/bwd/b#0:in0", 5),
]


@pytest.mark.parametrize(
    ("places", "site", "role"),
    [
        ((), None, None),
        ((1, 2, 3), "0.0/r0/fwd/a#0:out0", "made"),
        ((2, 3, 4), "0.0/r0/fwd/b#0:in0", "given"),  # the consumer is not to blame
        ((0, 1, 2), "0.0/r0/fwd/a#0:in0", "given"),
        ((4, 5), "0.0/r0/bwd/b#0:out0", "given"),  # the gradient of what b returned
        ((5,), "0.0/r0/bwd/b#0:in0", "made"),  # the gradient that b made
    ],
)
def test_the_first_difference_is_of_who_made_it_and_never_of_who_received_it(places, site, role):
    rows = [row(each.site, each.place, "within", 1e-7) if each.place in places else each for each in FORWARD]
    found = first_differing_value(reversed(rows))
    assert (found and found.site, found and found.role) == (site, role)


def test_a_call_whose_inputs_come_later_in_the_order_is_not_blamed_either():
    rows = [row("0.0/r0/fwd/a#0:out0", 0, "beyond", 0.5), row("0.0/r0/fwd/a#0:in0", 1, "beyond", 0.5)]
    assert first_differing_value(rows) == FirstDifference("0.0/r0/fwd/a#0:out0", "f", "given", "beyond", 0.5)
    assert first_differing_value([row("0.0/r0/fwd/a#0:out0", 0, "not-comparable", None)]) is None


@pytest.mark.parametrize(
    "unlike",
    [
        row("0.0/r0/fwd/b#0:in0", 2, "within", 0.0),  # other bits, of which statistics have no size
        row("0.0/r0/fwd/b#0:in1", 2, "not-comparable", None),
        row("0.0/r0/param/b.weight#0:value", 9, "within", 1e-9),
    ],
    ids=["bits alone", "cannot be compared", "weight"],
)
def test_a_call_is_not_blamed_whose_inputs_are_not_known_to_be_the_same(unlike):
    rows = [row("0.0/r0/fwd/a#0:out0", 0), row("0.0/r0/fwd/b#0:out0", 3, "within", 1e-7), unlike]
    found = first_differing_value(rows)
    assert found is not None
    assert found.role == "given"
