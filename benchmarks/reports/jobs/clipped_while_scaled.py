"""Gradients are clipped while they still carry the factor of the loss scaler, so that every update is clipped hard.

Training is in mixed precision with a GradScaler, and optimized by SGD with momentum. Repaired: the gradients are
unscaled before they are clipped.
"""

import torch
from common import GPT, Sentences, batches, begin, next_token_loss, options, say


def main():
    args = options(epochs=3, clip=1.0)
    begin()
    model = GPT()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    first = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
    for step, rows in enumerate(batches(Sentences(512), args.epochs)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(rows[:, :-1])
        loss = next_token_loss(logits.float(), rows[:, 1:])
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if args.fix:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        scaler.step(optimizer)
        scaler.update()
        if step % 20 == 0:
            say(f"step {step} loss {loss.item():.4f}")
    moved = (torch.cat([p.detach().flatten() for p in model.parameters()]) - first).norm()
    say(f"end: the weights moved by {'less' if moved < 1 else 'more'} than 1 in all ({moved:.3f})")


main()
