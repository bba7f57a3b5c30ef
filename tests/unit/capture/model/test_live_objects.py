"""Objects that are alive are found by their class, however many classes there are, and none of their code runs."""

import pytest
from torch import nn

from trueline.capture.model import live_objects
from trueline.capture.model.live_objects import instances_of


class Block(nn.Module):
    pass


class Inner(Block):
    pass


class Posing:
    """Says that it is a Block."""

    __class__ = Block

    def __getattr__(self, name):
        raise AssertionError(f"{name} was asked for")


@pytest.mark.parametrize("few", [live_objects._FEW, 0])
def test_instances_of_a_class_and_of_those_below_it(monkeypatch, few):
    monkeypatch.setattr(live_objects, "_FEW", few)
    block, inner, posing = Block(), Inner(), Posing()
    assert {id(module) for module in instances_of(Block)} == {id(block), id(inner)}
    assert [id(module) for module in instances_of(Inner)] == [id(inner)]
    assert {id(module) for module in instances_of(Inner, Posing)} == {id(inner), id(posing)}
    del inner
    assert instances_of(Inner) == []
