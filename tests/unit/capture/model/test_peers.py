"""Ranks with one model each that is not quite the same are told from ranks that hold parts of one model."""

from __future__ import annotations

import torch
from torch import nn

from trueline.capture.model.layout import UnlikeParams
from trueline.capture.model.peers import holdings, unlike_params


def held(seed, **layers):
    torch.manual_seed(seed)
    return holdings(nn.ModuleDict({name: nn.Linear(4, size) for name, size in layers.items()}))


def test_one_more_parameter_on_one_rank_of_two_or_three_is_a_difference():
    plain, more = held(0, a=4, b=4, c=4), held(0, a=4, b=4, c=4, d=4)
    extra = UnlikeParams(shape=frozenset({"d.weight", "d.bias"}))
    assert unlike_params({0: plain, 1: more}, replicas=False) == extra
    assert unlike_params({0: plain, 1: more, 2: plain}, replicas=False) == extra


def test_one_rank_that_drew_other_weights_for_its_extra_layer_is_a_difference():
    plain, shifted = held(0, a=4, b=4, c=4), held(7, d=4, a=4, b=4, c=4)
    assert unlike_params({0: plain, 1: plain, 2: shifted}, replicas=False) is not None


def test_stages_that_number_their_layers_from_zero_are_parts_of_one_model():
    stages = [held(1, embed=8, a=4, b=4, c=4), held(2, a=4, b=4, c=4), held(3, a=4, b=4, c=4)]
    stages.append(held(4, a=4, b=4, c=4, head=8))
    assert unlike_params(dict(enumerate(stages)), replicas=False) is None
    assert unlike_params({0: stages[0], 1: stages[3]}, replicas=False) is None
    assert unlike_params({0: held(0, a=4), 1: held(0, b=4)}, replicas=False) is None


def test_a_framework_that_replicates_is_believed():
    assert unlike_params({0: held(0, a=4, b=4), 1: held(1, a=4, c=4)}, replicas=True) is not None


def test_what_some_freeze_is_apart_but_shared():
    model = nn.Linear(4, 4)
    plain = holdings(model)
    model.bias.requires_grad_(False)
    assert unlike_params({0: plain, 1: holdings(model)}, replicas=False) == UnlikeParams(frozen=frozenset({"bias"}))
