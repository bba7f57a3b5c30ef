"""The model that a module is a part of, by who holds it and whose optimizers train it."""

from __future__ import annotations

import torch
from torch import nn

from trueline.capture.model.wholes import Family


def _trainers(*optimizers: torch.optim.Optimizer):
    of_param = {
        id(param): number
        for number, optimizer in enumerate(optimizers)
        for group in optimizer.param_groups
        for param in group["params"]
    }
    return lambda module: {id(p): of_param[id(p)] for p in module.parameters() if id(p) in of_param}


def _sgd(*modules: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([param for module in modules for param in module.parameters()], lr=0.1)


def test_the_whole_is_the_smallest_module_with_all_that_the_optimizer_trains():
    towers = nn.ModuleDict({"image": nn.Linear(2, 2), "text": nn.Sequential(nn.Linear(2, 2))})
    trainer = nn.ModuleDict({"model": towers, "loss": nn.MSELoss()})
    trained = _trainers(_sgd(towers))
    assert Family(towers["image"]).whole(trained) is towers
    assert Family(towers["text"][0]).whole(trained) is towers
    assert len(trainer) == 2


def test_parts_with_optimizers_of_their_own_are_models_of_their_own():
    gan = nn.ModuleDict({"painter": nn.Linear(2, 2), "critic": nn.Linear(2, 2)})
    trained = _trainers(_sgd(gan["painter"]), _sgd(gan["critic"]))
    assert Family(gan["painter"]).whole(trained) is gan["painter"]


def test_two_models_that_nothing_holds_are_two_models():
    encoder, decoder = nn.Linear(2, 2), nn.Linear(2, 2)
    assert Family(encoder).whole(_trainers(_sgd(encoder, decoder))) is encoder


def test_a_part_beside_what_is_frozen_is_the_model():
    model = nn.ModuleDict({"frozen": nn.Linear(2, 2).requires_grad_(False), "head": nn.Linear(2, 2)})
    assert Family(model["head"]).whole(_trainers(_sgd(model["head"]))) is model["head"]
