"""Modules that are fed: where their values are those of the other run, nothing changes; else what is wrong stays where
it is made.
"""

import copy

import torch
from torch import nn

from trueline.capture.model import patches
from trueline.capture.record import arguments
from trueline.capture.trial.fed_modules import ARRIVES, MODULE_FED, UNLIKE, WEIGHTS, FedModules


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        x = x + self.first(x)
        return self.third(torch.tanh(self.second(x)) + x)


def step(model, x, *, faulty=False):
    """The loss, and the gradients of all parameters."""
    broken = model.second.register_forward_hook(lambda module, args, out: out * 1.5) if faulty else None
    loss = model(x).square().mean()
    model.zero_grad()
    loss.backward()
    if broken is not None:
        broken.remove()
    return loss.item(), {name: param.grad.clone() for name, param in model.named_parameters()}


def stored_of(model, x):
    """As a Run has it."""
    values = {f"param/{name}": param.detach().clone() for name, param in model.named_parameters()}
    handles = []
    for name, module in model.named_modules():
        call = f"0/{name or 'Model'}#0"

        def leave(module, args, out, call=call):
            for slot, value in (*arguments.inputs(args, {}), *arguments.outputs(out)):
                values[f"{call}:{slot}"] = value.detach().clone()
            out.register_hook(lambda gradient: values.__setitem__(f"bwd/{call}:out0", gradient.clone()))

        handles.append(module.register_forward_hook(leave))
    model(x).square().mean().backward()
    for handle in handles:
        handle.remove()
    return values


def fed(model, values, folder, x, **more):
    told = []
    torch.save(values, folder / "rank-0.pt")
    feeding = FedModules(folder=str(folder), step=0, tell=told.append)
    feeding.install()
    try:
        return (*step(model, x, **more), told)
    finally:
        patches.module_call.remove(feeding._at_call)


def test_what_is_as_it_was_stays_as_it_is_bit_for_bit(tmp_path):
    torch.manual_seed(0)
    model, x = Model(), torch.randn(4, 8)
    loss, gradients = step(copy.deepcopy(model), x)
    found, same, told = fed(model, stored_of(copy.deepcopy(model), x), tmp_path, x)
    assert found == loss
    assert all(torch.equal(same[name], gradient) for name, gradient in gradients.items())
    assert {word.split()[0] for word in told} == {MODULE_FED}
    assert len(told) == 4


def test_what_a_module_makes_wrong_reaches_no_other_forward_or_backward(tmp_path):
    torch.manual_seed(0)
    model, x = Model(), torch.randn(4, 8)
    values = stored_of(copy.deepcopy(model), x)
    loss, gradients = step(copy.deepcopy(model), x)
    assert step(copy.deepcopy(model), x, faulty=True)[0] != loss
    found, same, _ = fed(model, values, tmp_path, x, faulty=True)
    assert found == loss
    assert all(torch.equal(same[name], gradients[name]) for name in gradients if not name.startswith("second"))


def test_other_weights_inputs_and_shapes_are_told(tmp_path):
    torch.manual_seed(0)
    model, x = Model(), torch.randn(4, 8)
    values = stored_of(copy.deepcopy(model), x)
    loss, _ = step(copy.deepcopy(model), x)
    with torch.no_grad():
        model.first.weight.mul_(1.5)
    values["0/third#0:out0"] = torch.zeros(2, 2)
    found, _, told = fed(model, values, tmp_path, x + 1)
    assert found == loss
    assert f"{WEIGHTS} first.weight 0.5" in told
    assert f"{UNLIKE} third" in told
    assert any(word.startswith(f"{ARRIVES} Model ") for word in told)
