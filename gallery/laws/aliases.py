"""E2. What is called the target network is the network that is trained.

Who had it: agents whose two attributes are given one model, preference training whose reference is the policy.
Planted: the targets come from the model itself, under the name of a copy.
Twin: they come from a copy, which is set to the weights at every fourth update.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from gallery.entry import Fault
from gallery.entry_context import EntryContext
from gallery.problems import Regression
from gallery.training import adamw, fit
from gallery.witness import trains_differently


def own_target(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Half of the target is what the target network says."""
    problem = Regression()
    policy_net = problem.model()
    target_net = policy_net if faulty else copy.deepcopy(policy_net)

    def loss_of(called: nn.Module, batch: Any) -> Tensor:
        with torch.no_grad():
            target = (batch["y"] + target_net(batch["x"].flip(0))) / 2
        return nn.functional.mse_loss(called(batch["x"]), target)

    def after(step: int) -> None:
        if step % 4 == 3:
            target_net.load_state_dict(policy_net.state_dict())

    return fit(ctx, problem, policy_net, optimizer=adamw(policy_net), loss_of=loss_of, after_step=after, steps=12)


ENTRIES = (
    Fault(
        "E2",
        "the target network is the network that is trained",
        own_target,
        ("copy-is-model",),
        trains_differently,
        ranks=(0,),
        world_size=1,
        family="copies that are the model",
    ),
)
