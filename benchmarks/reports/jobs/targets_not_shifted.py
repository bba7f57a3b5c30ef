"""A decoder is trained to say the token that it was given: the targets are the inputs, not the tokens after them.

The loss goes to zero and samples are one token repeated. Repaired: targets are one place further.
"""

import torch
from common import GPT, Sentences, batches, begin, end, next_token_loss, options, say
from torch.nn.parallel import DistributedDataParallel


def main():
    args = options()
    begin()
    model = DistributedDataParallel(GPT())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step, rows in enumerate(batches(Sentences(1280), epochs=2, batch=16)):
        inputs = rows[:, :-1].contiguous()
        targets = rows[:, 1:].contiguous() if args.fix else inputs
        loss = next_token_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            say(f"step {step} loss {loss.item():.4f}")
    say(f"end: the loss is {'nearly zero' if loss.item() < 0.1 else 'above zero'}")
    end()


main()
