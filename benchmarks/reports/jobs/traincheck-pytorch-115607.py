"""After some steps in which the body has no gradients it is never updated again.

The update is built once for the parameters that have gradients; it is built anew only where one of these has none.
Repaired: it is built anew, too, where a further parameter has a gradient.
"""

import torch
from command import options, say
from torch import nn


class CapturedMomentum(torch.optim.Optimizer):
    """SGD with momentum whose list of work is captured and used again while its guard holds."""

    def __init__(self, params, lr, momentum=0.9, whole_guard=False):
        super().__init__(params, {"lr": lr, "momentum": momentum})
        self.captured, self.whole_guard = None, whole_guard

    def holds(self, params):
        if self.captured is None or any(p.grad is None for p in self.captured):
            return False
        return not self.whole_guard or len(self.captured) == sum(p.grad is not None for p in params)

    @torch.no_grad()
    def step(self, closure=None):
        (group,) = self.param_groups
        if not self.holds(group["params"]):
            self.captured = [p for p in group["params"] if p.grad is not None]
        for p in self.captured:
            buffer = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
            buffer.mul_(group["momentum"]).add_(p.grad)
            p.add_(buffer, alpha=-group["lr"])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, 4)

    def forward(self, x, body=True):
        with torch.set_grad_enabled(body):
            h = self.body(x)
        return self.head(h)


def main():
    args = options(steps=120)
    model = Net()
    optimizer = CapturedMomentum(model.parameters(), lr=0.02, whole_guard=args.fix)
    draw = torch.Generator().manual_seed(3)
    for step in range(args.steps):
        x = torch.randn(32, 16, generator=draw)
        y = (x[:, :4] * x[:, 4:8]).argmax(1)
        frozen = 40 <= step < 50  # the head alone, after it was made larger
        loss = nn.functional.cross_entropy(model(x, body=not frozen), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say(step, loss)
        if step == 60:
            weights = model.body[0].weight.detach().clone()
    print(f"since step 60 the body moved by {(model.body[0].weight - weights).norm().item():.4f}")


main()
