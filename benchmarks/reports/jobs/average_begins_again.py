"""The average of the weights is not in the checkpoint: at a restart it begins again from the weights as they are.

Started twice: 60 updates, then with --resume 60 more. Repaired: it is saved and loaded.
"""

import copy

import torch
from common import Convolutions, Pictures, batches, begin, options, say
from torch.nn import functional as F

FILE = "checkpoint.pt"


class Average:
    """An exponential average of the weights and of the buffers that are floats."""

    def __init__(self, model, decay=0.995):
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        current = model.state_dict()
        for name, value in self.model.state_dict().items():
            if value.is_floating_point():
                value.lerp_(current[name], 1 - self.decay)
            else:
                value.copy_(current[name])


def main():
    args = options()
    begin()
    model = Convolutions()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    average = Average(model)
    if args.resume:
        saved = torch.load(FILE)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        average = Average(model)
        if args.fix:
            average.model.load_state_dict(saved["average"])
        apart = sum((a - b).norm() for a, b in zip(average.model.parameters(), model.parameters(), strict=True))
        say(f"end: the average is {'at' if apart == 0 else 'apart from'} the weights after the restart")
    for step, (x, label) in enumerate(batches(Pictures(960), epochs=1, batch=16, seed=9 if args.resume else 5)):
        loss = F.cross_entropy(model(x), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update(model)
        if step % 20 == 0:
            say(f"step {step} loss {loss.item():.4f}")
    if not args.resume:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        if args.fix:
            state["average"] = average.model.state_dict()
        torch.save(state, FILE)


main()
