"""A schedule by hand with an index that was forgotten: the groups after the first keep the rate they began with.

Repaired: the group of the loop.
"""

import torch
from common import Convolutions, Pictures, batches, begin, options, say
from torch.nn import functional as F

UPDATES = 80


def main():
    args = options()
    begin()
    model = Convolutions()
    body = [parameter for name, parameter in model.named_parameters() if not name.startswith("fc")]
    groups = [
        {"params": body, "lr": 0.02},
        {"params": model.fc.weight, "lr": 0.2},
        {"params": model.fc.bias, "lr": 0.2},
    ]
    optimizer = torch.optim.SGD(groups, momentum=0.9, weight_decay=1e-4)
    for update, (x, label) in enumerate(batches(Pictures(640), epochs=2, batch=16)):
        lr = 0.02 * (1 - update / UPDATES) ** 0.9
        optimizer.param_groups[0]["lr"] = lr
        for place in range(1, len(optimizer.param_groups)):
            optimizer.param_groups[place if args.fix else 0]["lr"] = lr if not args.fix else lr * 10
        loss = F.cross_entropy(model(x), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update % 20 == 0:
            say(f"update {update} loss {loss.item():.4f} rate {lr:.4f}")
    say("end: rates", *(f"{group['lr']:.4f}" for group in optimizer.param_groups))


main()
