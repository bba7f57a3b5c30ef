"""Advantages are relative to answers to other prompts: a group holds one answer to each of four prompts.

Answers come as prompt 1, 2, 3, 4, 1, 2, ..., and are cut into groups as if they came as 1, 1, 1, 1, 2, ....
Repaired: each prompt is repeated in a row.
"""

import torch
from command import options, say
from language import ANSWER, BEGIN, llama
from torch.nn import functional as F

PROMPTS, ANSWERS, LENGTH = 4, 4, 6


@torch.no_grad()
def generate(model, ids):
    for _ in range(LENGTH):
        logits = model(input_ids=ids).logits[:, -1]
        ids = torch.cat([ids, torch.multinomial(logits.softmax(-1), 1)], 1)
    return ids


def reward_of(ids):
    """How many tokens of the answer are larger than the one that the prompt names."""
    return (ids[:, -LENGTH:] > ids[:, 1:2]).float().mean(1)


def main():
    args = options(steps=50)
    model = llama(layers=1)
    model.config.use_cache = False
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    draw = torch.Generator().manual_seed(6)
    mixed = 0
    for step in range(args.steps):
        bounds = torch.randint(10, 60, (PROMPTS,), generator=draw)
        prompts = torch.stack([torch.full_like(bounds, BEGIN), bounds, torch.full_like(bounds, ANSWER)], 1)
        prompts = prompts.repeat_interleave(ANSWERS, 0) if args.fix else prompts.repeat(ANSWERS, 1)
        ids = generate(model, prompts)
        reward = reward_of(ids).view(-1, ANSWERS)
        mixed += int((ids[:, 1].view(-1, ANSWERS) != ids[::ANSWERS, 1:2]).any())
        advantage = ((reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + 1e-4)).flatten()
        logits = model(input_ids=ids).logits[:, 2:-1]
        log_prob = -F.cross_entropy(logits.transpose(1, 2), ids[:, 3:], reduction="none")
        loss = -(log_prob.mean(1) * advantage).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say(step, loss, every=10)
    print(f"groups of several prompts in {mixed} of {args.steps} updates; the last reward is {reward.mean():.3f}")


main()
