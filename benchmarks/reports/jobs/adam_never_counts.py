"""An AdamW that can skip a step never counts its steps: each update is corrected as if it were the first.

With betas of 0.9 and 0.95 the corrections of step 1 make each later update 2.2 times as large as it should be.
The optimizer imitates that of the report. Repaired: the count is written back.
"""

import torch
from command import options, say
from language import Sentences, llama


class SkipStepAdamW(torch.optim.Optimizer):
    """AdamW that leaves out an update whose loss is far above those before."""

    def __init__(self, params, lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, sigma=6, window=64, count=True):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.sigma, self.window, self.count, self.losses, self.latest_loss = sigma, window, count, [], None

    def step_factor(self):
        self.losses.append(float(self.latest_loss))
        past = torch.tensor(self.losses[-self.window - 1 : -1])
        if len(past) < self.window // 2:
            return torch.ones(())
        return (self.latest_loss - past.mean() <= self.sigma * past.std()).float()

    @torch.no_grad()
    def step(self):
        factor = self.step_factor()
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = torch.zeros(())
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
                step = state["step"] + factor
                if self.count:
                    state["step"].copy_(step)
                p.mul_(1 - factor * group["lr"] * group["weight_decay"])
                state["exp_avg"].lerp_(p.grad, factor * (1 - beta1))
                state["exp_avg_sq"].lerp_(p.grad.square(), factor * (1 - beta2))
                step = step.clamp(min=1)
                rate = group["lr"] / (1 - beta1**step)
                root = (state["exp_avg_sq"] / (1 - beta2**step)).sqrt() + group["eps"]
                p.sub_(factor * rate * state["exp_avg"] / root)


def main():
    args = options(steps=100)
    model = llama()
    optimizer = SkipStepAdamW(model.parameters(), lr=3e-3, count=args.fix)
    loader = torch.utils.data.DataLoader(Sentences(1600), 16, shuffle=True, drop_last=True)
    for step, ids in zip(range(args.steps), loader, strict=False):
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.latest_loss = loss.detach()
        optimizer.step()
        say(step, loss)
    counted = int(optimizer.state[model.lm_head.weight]["step"])
    print(f"after {args.steps} updates the optimizer has counted {counted}")


main()
