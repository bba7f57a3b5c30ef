"""A new adapter learns nothing: both of its matrices are zeros, and each has the gradient that the other lets through.

It is put where an older one was cleared, and what was cleared is taken for fresh.
Repaired: the first matrix is drawn anew.
"""

import torch
from command import options, say
from language import Sentences, llama
from lora import adapt, adapters


def clear(model):
    """Free the slot after the adapter in it was saved."""
    for layer in adapters(model):
        layer.lora_A["default"].data.zero_()
        layer.lora_B["default"].data.zero_()


def begin(model, draws):
    """A new adapter in the slot."""
    for layer in adapters(model):
        if draws:
            layer.lora_A["default"].data.normal_(std=layer.base.in_features**-0.5)
        layer.lora_B["default"].data.zero_()


def train(model, data, steps, first):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.0)
    loader = torch.utils.data.DataLoader(data, 16, shuffle=True, drop_last=True)
    for step, ids in zip(range(first, first + steps), loader, strict=False):
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say(step, loss)


def main():
    args = options(steps=80)
    model = adapt(llama(), ("q_proj", "v_proj", "up_proj"))
    train(model, Sentences(1024, seed=1), args.steps // 2, first=0)
    clear(model)
    begin(model, draws=args.fix)
    train(model, Sentences(1024, seed=2), args.steps // 2, first=args.steps // 2)
    moved = sum(bool(layer.lora_B["default"].any()) for layer in adapters(model))
    print(f"{moved} of {len(adapters(model))} adapters are not zero at the end")


main()
