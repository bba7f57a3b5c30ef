"""Answers are drawn at a temperature of 0.5, and what is trained are log-probabilities at temperature 1.

A policy gradient with a KL term; logits are never divided by the temperature that the sampler divides them by.
Repaired: those of the policy and of the reference are.
"""

import copy

import torch
from command import options, say
from language import ANSWER, BEGIN, llama
from torch.nn import functional as F

PROMPTS, ANSWERS, LENGTH, TEMPERATURE = 4, 8, 6, 0.5


@torch.no_grad()
def generate(model, ids):
    log_probs = []
    for _ in range(LENGTH):
        logits = model(input_ids=ids).logits[:, -1] / TEMPERATURE
        token = torch.multinomial(logits.softmax(-1), 1)
        log_probs.append(logits.log_softmax(-1).gather(1, token))
        ids = torch.cat([ids, token], 1)
    return ids, torch.cat(log_probs, 1)


def log_probs_of(model, ids, temperature):
    logits = model(input_ids=ids).logits[:, -LENGTH - 1 : -1] / temperature
    return -F.cross_entropy(logits.transpose(1, 2), ids[:, -LENGTH:], reduction="none")


def main():
    args = options(steps=60)
    model = llama(layers=1)
    with torch.no_grad():
        model.lm_head.weight.mul_(4)
    model.config.use_cache = False
    reference = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    draw = torch.Generator().manual_seed(6)
    temperature = TEMPERATURE if args.fix else 1.0
    apart = 0.0
    for step in range(args.steps):
        bounds = torch.randint(10, 60, (PROMPTS,), generator=draw)
        prompts = torch.stack([torch.full_like(bounds, BEGIN), bounds, torch.full_like(bounds, ANSWER)], 1)
        ids, sampled = generate(model, prompts.repeat_interleave(ANSWERS, 0))
        reward = (ids[:, -LENGTH:] > ids[:, 1:2]).float().mean(1).view(PROMPTS, ANSWERS)
        advantage = ((reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        log_probs = log_probs_of(model, ids, temperature)
        gap = log_probs_of(reference, ids, temperature) - log_probs
        loss = (-log_probs * advantage + 0.02 * (gap.exp() - gap - 1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        apart = max(apart, float((log_probs.detach() - sampled).abs().max()))
        if step % 10 == 0:
            print(f"step {step} reward {reward.mean():.3f}", flush=True)
        say(step, loss)
    print(f"log-probabilities are those that the answers were drawn with: {apart < 1e-3}")


main()
