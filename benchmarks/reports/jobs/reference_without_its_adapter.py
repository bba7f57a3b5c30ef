"""Reinforcement learning goes on from a fine-tuned adapter, and the reference is the model without any adapter.

To save memory the reference is the policy with its adapters off; the adapter that came from fine-tuning is off, too, so
that the KL term pulls back to the model from before. Repaired: a frozen copy of that adapter is the reference's.
"""

import torch
from command import options, say
from language import ANSWER, BEGIN, Sentences, llama
from lora import adapt, adapters
from torch.nn import functional as F

PROMPTS, LENGTH = 32, 6


def activate(model, *names):
    for layer in adapters(model):
        layer.active = list(names)


def fine_tune(model, steps):
    """What the adapter is loaded with."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-2)
    loader = torch.utils.data.DataLoader(Sentences(steps * 16), 16, shuffle=True, drop_last=True)
    for ids in loader:
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def generate(model, ids):
    for _ in range(LENGTH):
        ids = torch.cat([ids, torch.multinomial(model(input_ids=ids).logits[:, -1].softmax(-1), 1)], 1)
    return ids


def log_probs_of(model, ids):
    logits = model(input_ids=ids).logits[:, -LENGTH - 1 : -1]
    return -F.cross_entropy(logits.transpose(1, 2), ids[:, -LENGTH:], reduction="none")


def main():
    args = options(steps=60, tuned=60)
    model = adapt(llama(layers=1), ("q_proj", "v_proj", "up_proj", "down_proj", "lm_head"), name="policy")
    model.config.use_cache = False
    fine_tune(model, args.tuned)
    for layer in adapters(model):
        layer.add("reference")
        for part in (layer.lora_A, layer.lora_B):
            part["reference"].data.copy_(part["policy"].data)
            part["reference"].requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)
    for step in range(args.steps):
        bounds = torch.randint(10, 60, (PROMPTS,))
        ids = generate(model, torch.stack([torch.full_like(bounds, BEGIN), bounds, torch.full_like(bounds, ANSWER)], 1))
        reward = (ids[:, -LENGTH:] > 36).float().mean(1)
        advantage = ((reward - reward.mean()) / (reward.std() + 1e-4)).view(-1, 1)
        with torch.no_grad():
            activate(model, *(["reference"] if args.fix else []))
            wanted = log_probs_of(model, ids)
            activate(model, "policy")
        log_probs = log_probs_of(model, ids)
        gap = wanted - log_probs
        loss = (-log_probs * advantage + 0.1 * (gap.exp() - gap - 1)).mean()
        if step == 0:
            print(f"policy and reference begin alike: {bool(gap.abs().max() < 1e-4)}")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say(step, loss)
        if step % 20 == 0:
            print(f"step {step} reward {reward.mean():.3f}", flush=True)


main()
