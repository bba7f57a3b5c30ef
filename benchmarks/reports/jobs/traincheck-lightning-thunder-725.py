"""A step that is declared to run in bfloat16 runs in float32: the compiled model does not mind autocast.

The function that the compiler made runs its operations with autocast switched off.
Repaired: it runs them in the state of the caller.
"""

import torch
from command import options, say
from torch import nn


class Compiled(nn.Module):
    """A model behind the function that a compiler has made of it."""

    def __init__(self, module, minds_autocast):
        super().__init__()
        self.module, self.minds_autocast = module, minds_autocast

    def forward(self, x):
        enabled = self.minds_autocast and torch.is_autocast_enabled("cpu")
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            return self.module(x)


def main():
    args = options(steps=80)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8))
    model = Compiled(model, minds_autocast=args.fix)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    draw = torch.Generator().manual_seed(1)
    for step in range(args.steps):
        x = torch.randn(32, 32, generator=draw)
        y = x[:, :8].cumsum(1).argmax(1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say(step, loss)
    print(f"the logits are of {logits.dtype}")


main()
