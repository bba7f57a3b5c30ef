"""A pretrained backbone is frozen by requires_grad, and its batch norms go on moving their running statistics.

The head is trained on other pictures than the backbone was, so that the frozen part is another one at the end.
Repaired: the frozen part is in evaluation mode.
"""

import torch
from common import Convolutions, Pictures, batches, begin, options, say
from torch import nn
from torch.nn import functional as F


def pretrained():
    """A backbone that has seen pictures, and its state."""
    model = Convolutions()
    with torch.no_grad():
        for x, _ in batches(Pictures(320, seed=3), epochs=2, batch=32):
            model.features(x)
    return model


def main():
    args = options()
    begin()
    model = pretrained()
    for parameter in model.parameters():
        parameter.requires_grad = False
    model.fc = nn.Linear(model.fc.in_features, 10)
    before = model.stem[1].running_mean.clone()
    optimizer = torch.optim.SGD(model.fc.parameters(), lr=0.05, momentum=0.9)
    model.train()
    if args.fix:
        for part in (model.stem, model.layer1, model.layer2):
            part.eval()
    for step, (x, label) in enumerate(batches(Pictures(640), epochs=2, batch=16)):
        loss = F.cross_entropy(model(1.5 * x + 0.5), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            say(f"step {step} loss {loss.item():.4f}")
    say(f"end: statistics {'stayed' if torch.equal(before, model.stem[1].running_mean) else 'moved'}")


main()
