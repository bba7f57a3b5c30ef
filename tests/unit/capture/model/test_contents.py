"""What is inside of batches and outputs, found in bounds, and without running code of theirs."""

import itertools
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
import torch
from tests.interpreter import counted

import trueline
from trueline.capture.model.contents import MAX_LENGTH, Walk, stored
from trueline.capture.model.outputs import differentiable
from trueline.capture.probes.batch import read_batch
from trueline.capture.record.arguments import Described, outputs

X, Y = torch.ones(2, 3), torch.zeros(2)
Pair = namedtuple("Pair", ["first", "labels"])


@dataclass
class Fields:
    x: object
    n: int = 1


@dataclass(slots=True)
class Slots:
    x: object
    y: object = None


def found(value, **how):
    return [(name, id(x)) for name, x in Walk(**how).tensors("v", value)]


@pytest.mark.parametrize(
    ("value", "names", "paths"),
    [
        (X, ["v"], ["v"]),
        ([X, [Y, 1]], ["v", "v"], ["v.0", "v.1.0"]),
        ({"a": X, 3: Y, "b c": (X,)}, ["a", "3", "b c"], ["v.a", "v.3", "v.b_c.0"]),
        (OrderedDict(a=X), ["a"], ["v.a"]),
        (UserDict(a=X), ["a"], ["v.a"]),
        (Pair(X, Y), ["first", "labels"], ["v.0", "v.1"]),
        (Fields({"in": X}), ["in"], ["v.x.in"]),
        (Slots(X, Y), ["x", "y"], ["v.x", "v.y"]),
    ],
)
def test_tensors_have_the_names_or_the_paths_of_where_they_are(value, names, paths):
    assert [name for name, _ in found(value)] == names
    assert [name for name, _ in found(value, paths=True)] == paths


def test_what_is_beyond_the_bounds_is_left_out_and_that_is_known():
    itself = [X]
    itself.append(itself)
    deep = {"x": X}
    for _ in range(50):
        deep = {"left": deep, "right": deep}
    wide = [[Y] * 1000] * 1000
    for value, most in ((itself, 4), (deep, 0), (wide, 10_000), ([0] * 10**6 + [X], 0)):
        walk = Walk()
        assert len(list(walk.tensors("v", value))) <= most
        assert not walk.is_complete
    walk = Walk()
    assert [name for name, _ in walk.tensors("v", {"long": [0] * MAX_LENGTH, "x": X})] == ["x"]
    assert walk.is_complete


class Refuses:
    """Fails the test where any of its code is run."""

    x = property(lambda self: 1 / 0)
    logits = loss = labels = x

    def __getattr__(self, name):
        raise AssertionError(name)


class Passing(Refuses):
    __class__ = property(lambda self: 1 / 0)


class RefusingList(list):
    def __iter__(self):
        raise AssertionError

    __len__ = __getitem__ = __bool__ = __eq__ = __iter__
    __hash__ = None


class RefusingDict(dict):
    def items(self):
        raise AssertionError

    keys = values = get = __iter__ = __getitem__ = __contains__ = __len__ = items


class Lazy(Mapping):
    def __getitem__(self, name):
        raise AssertionError

    __iter__ = __len__ = __getitem__


class Endless(Sequence):
    def __getitem__(self, index):
        return X

    def __len__(self):
        raise AssertionError


@pytest.mark.parametrize(
    "make",
    [Refuses, Passing, RefusingList, RefusingDict, Lazy, Endless, itertools.count, lambda: iter([1])],
)
def test_no_code_of_a_batch_or_an_output_is_run(make):
    value = make()
    for held in (value, [value], {"k": value}):
        assert found(held) == found(held, paths=True) == list(differentiable(held)) == []
        assert [stored(held, name) for name in ("loss", "logits", "labels")] == [None] * 3
        assert outputs(held) == []
        Described()((held,), {"more": held})
        assert read_batch(X, held, more=held).samples is not None
    if type(value) is type(iter([])):
        assert next(value) == 1


def test_a_field_is_what_an_output_itself_holds():
    holder = Slots(X, Y)
    assert stored(holder, "x") is stored({"x": X}, "x") is stored(UserDict(x=X), "x") is stored(Fields(X), "x") is X
    assert stored(Pair(X, Y), "labels") is Y
    assert stored(holder, "z") is None


def test_the_description_of_a_call_is_bounded():
    text = Described()(([[[[1] * 500] * 500] * 500] * 500, list(range(10**6))), {})[1]
    assert len(text) < 100_000


class Metadata(torch.nn.Module):
    """Reads numbers beside its input, and returns them."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)

    def forward(self, x, numbers):
        return {"y": self.linear(x), "numbers": numbers}


@pytest.mark.parametrize("preset", ["workers", "mix"])
def test_a_hundred_thousand_numbers_cost_a_step_as_much_as_a_thousand(tmp_path, preset):
    """Instructions of the interpreter in Trueline's own functions."""
    spent = {}
    for length in (MAX_LENGTH, 100_000):
        model = Metadata()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        watch = trueline.watch(model, optimizer, out=tmp_path / str(length), plan={"preset": preset})
        with counted() as work:
            model(torch.ones(2, 3), [0] * length)["y"].sum().backward()
            optimizer.step()
        watch.close()
        spent[length] = work.instructions
    assert spent[100_000] < 1.2 * spent[MAX_LENGTH]
