"""Weights are kept in bfloat16 alone: updates that are smaller than half a step of it are rounded away.

The weights of the norms are 1, where the next smaller number is 0.996; updates at a rate of 0.001 never reach it.
Repaired: the optimizer updates a copy in float32, which is rounded into the model after each update.
"""

import torch
from common import GPT, Sentences, batches, begin, next_token_loss, options, say


def main():
    args = options(epochs=3, lr=1e-3)
    begin()
    model = GPT().to(torch.bfloat16)
    weights = list(model.parameters())
    masters = [p.detach().float() for p in weights] if args.fix else weights
    optimizer = torch.optim.AdamW(masters, lr=args.lr, weight_decay=0.0)
    norms = [p for name, p in model.named_parameters() if "ln_" in name and name.endswith("weight")]
    for step, rows in enumerate(batches(Sentences(512), args.epochs)):
        loss = next_token_loss(model(rows[:, :-1]).float(), rows[:, 1:])
        model.zero_grad()
        loss.backward()
        if args.fix:
            for master, p in zip(masters, weights, strict=True):
                master.grad = p.grad.float()
        torch.nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        if args.fix:
            with torch.no_grad():
                for master, p in zip(masters, weights, strict=True):
                    p.copy_(master)
        if step % 20 == 0:
            say(f"step {step} loss {loss.item():.4f}")
    share = torch.cat([p.detach() != 1 for p in norms]).float().mean().item()
    say(f"end: {'few' if share < 0.2 else 'most'} weights of the norms are other than 1 ({share:.3f})")


main()
