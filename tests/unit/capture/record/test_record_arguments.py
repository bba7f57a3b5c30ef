"""What a call was given is found and described alike, whether it is remembered or not."""

import itertools

import torch

from trueline.capture.record import arguments
from trueline.capture.record.arguments import Described, described, inputs

X, Y = torch.zeros(2), torch.ones(3)
VALUES = [
    *(X, 1, 1.0, True, 0, False, None, "1", "dim", 1j, float("inf"), torch.float32, torch.Size([1, 2]), ..., object),
    *((X, Y), [X, Y], (1, X), [1, (2.0, Y)], {"a": X, "b": 1}, [X, {"a": [Y]}]),
    *(slice(None), slice(None, 32), slice(32, None), slice(32, None, 2), slice(X, None)),
    *((..., slice(None, 32)), (..., slice(32, None)), (slice(1, 2), 0), (None, slice(1, 2))),
]
CALLS = [
    *(((value,), {}) for value in VALUES),
    *(((), {"dim": value}) for value in VALUES),
    *(((one, other), {}) for one, other in itertools.permutations(VALUES, 2)),
    *(((one,), {"dim": other}) for one, other in itertools.permutations(VALUES, 2)),
]


def same(one, other):
    return [slot for slot, _ in one] == [slot for slot, _ in other] and all(
        x is y for (_, x), (_, y) in zip(one, other, strict=True)
    )


def test_a_remembered_description_is_that_of_the_call():
    describe = Described()
    for args, kwargs in CALLS * 2:
        slots, text = describe(args, kwargs)
        assert text == described(args, kwargs), (args, kwargs)
        assert same(slots, inputs(args, kwargs)), (args, kwargs)


def test_descriptions_that_differ_at_every_step_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(arguments, "MAX_KNOWN", 10)
    describe = Described()
    for step in range(100):
        assert describe((X, step / 7), {})[1] == described((X, step / 7), {})
    assert len(describe._texts) <= 10
