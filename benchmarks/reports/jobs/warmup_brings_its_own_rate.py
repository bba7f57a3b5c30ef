"""The optimizer is set up with a rate of 2e-5 and trains at 1e-3: the warm-up of the engine has a peak of its own.

Its peak is 0.001 where the configuration does not name one. Repaired: the configuration names the optimizer's rate.
"""

import torch
from command import options, say
from language import Sentences, llama

CONFIG = {
    "optimizer": {"type": "AdamW", "params": {"lr": 2e-5, "weight_decay": 0.01}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}},
}


class WarmupLR:
    """From ``warmup_min_lr`` to ``warmup_max_lr``, and constant from there on; steps after each update."""

    def __init__(self, optimizer, warmup_min_lr=0.0, warmup_max_lr=0.001, warmup_num_steps=1000):
        self.optimizer, self.low, self.high = optimizer, warmup_min_lr, warmup_max_lr
        self.num_steps, self.update = warmup_num_steps, 0
        self.step()

    def step(self):
        share = min(1.0, self.update / self.num_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = self.low + share * (self.high - self.low)
        self.update += 1


def main():
    args = options(steps=80)
    loader = torch.utils.data.DataLoader(Sentences(1024), 16, shuffle=True, drop_last=True)
    model = llama()
    if args.fix:
        CONFIG["scheduler"]["params"]["warmup_max_lr"] = CONFIG["optimizer"]["params"]["lr"]
    optimizer = torch.optim.AdamW(model.parameters(), **CONFIG["optimizer"]["params"])
    scheduler = WarmupLR(optimizer, **CONFIG["scheduler"]["params"])
    step = 0
    while step < args.steps:
        for ids in loader:
            loss = model(input_ids=ids, labels=ids).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            say(step, loss)
            step += 1
            if step == args.steps:
                break
    print(f"the rate is {optimizer.param_groups[0]['lr']}")


main()
