"""A trained classifier of 1000 classes is to have 10: out_features is set, which changes what is printed and no weight.

The head still returns 1000 logits. Repaired: a new head.
"""

import torch
from common import Convolutions, Pictures, batches, begin, options, say
from torch import nn
from torch.nn import functional as F


def main():
    args = options(classes=10)
    begin()
    model = Convolutions(classes=1000)
    if args.fix:
        model.fc = nn.Linear(model.fc.in_features, args.classes)
    model.fc.out_features = args.classes
    say(model.fc)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for step, (x, label) in enumerate(batches(Pictures(640), epochs=2, batch=16)):
        logits = model(x)
        loss = F.cross_entropy(logits, label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            say(f"step {step} loss {loss.item():.4f}")
    say(f"end: {logits.shape[1]} logits")


main()
