"""StepLR(step_size=5) is meant in epochs and is stepped inside the loop over batches.

After 40 batches the rate has fallen by 1e8, and nothing moves any more. Repaired: stepped once an epoch.
"""

import torch
from common import Convolutions, Pictures, batches, begin, options, say
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR


def main():
    args = options(epochs=4)
    begin()
    model = Convolutions()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = StepLR(optimizer, step_size=5, gamma=0.1)
    data = Pictures(480)
    for epoch in range(args.epochs):
        for x, label in batches(data, epochs=1, batch=16, seed=epoch):
            loss = F.cross_entropy(model(x), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if not args.fix:
                schedule.step()
        if args.fix:
            schedule.step()
        say(f"epoch {epoch} loss {loss.item():.4f}")
    say(f"end: rate {optimizer.param_groups[0]['lr']:.1e}")


main()
