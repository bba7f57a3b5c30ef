"""Batch norms with the momentum 0.99 of another library, where it is the share of the past: here it is of the present.

The running statistics are those of the last batch. Repaired: 0.01.
"""

import torch
from common import Convolutions, Pictures, batches, begin, options, say
from torch.nn import functional as F


@torch.no_grad()
def accuracy(model, held):
    model.eval()
    right = (model(held.pictures).argmax(-1) == held.label_N).float().mean().item()
    model.train()
    return right


def main():
    args = options()
    begin()
    model = Convolutions(momentum=0.01 if args.fix else 0.99)
    held = Pictures(200, seed=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for step, (x, label) in enumerate(batches(Pictures(768), epochs=3, batch=8)):
        loss = F.cross_entropy(model(x), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 48 == 47:
            say(f"step {step} loss {loss.item():.4f} accuracy {accuracy(model, held):.3f}")
    model.stem(x)
    batch_mean = model.stem[0](x).mean((0, 2, 3))
    near = torch.allclose(model.stem[1].running_mean, batch_mean, atol=1e-2)
    say(f"end: the running mean is {'that of the last batch' if near else 'a mean of many batches'}")


main()
