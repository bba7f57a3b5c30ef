"""A function for LambdaLR returns the rate that is wanted, and LambdaLR multiplies it by the rate of the optimizer.

1e-3 becomes 1e-6. Repaired: the optimizer's rate is 1, so that the product is what the function returns.
"""

import torch
from common import Points, batches, begin, options, say
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

RATE = 1e-3


def rate_at(epoch):
    return RATE * 0.9**epoch


def main():
    args = options(lr=RATE)
    begin()
    model = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 5))
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0 if args.fix else args.lr)
    schedule = LambdaLR(optimizer, lr_lambda=rate_at)
    data = Points(640)
    for epoch in range(4):
        for x, label in batches(data, epochs=1, batch=32, seed=epoch):
            loss = F.cross_entropy(model(x), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        say(f"epoch {epoch} loss {loss.item():.4f}")
        if epoch == 0:
            say(f"end: rate {optimizer.param_groups[0]['lr']:.1e}")
        schedule.step()


main()
