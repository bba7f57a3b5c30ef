"""Adapters in the layers are never trained, the one at the head is: checkpointed layers get no gradient.

Activations are recomputed by the reentrant way, and the first of them needs no gradient, as the embedding is frozen.
Repaired: the output of the embedding is made to need one.
"""

import torch
from command import options, say
from language import Sentences, llama
from lora import adapt, adapters
from torch.utils.checkpoint import checkpoint


def recompute(layer):
    """Run ``layer`` again in the backward pass in place of keeping what is in it."""
    forward = layer.forward
    layer.forward = lambda hidden, **settings: checkpoint(lambda x: forward(x, **settings), hidden, use_reentrant=True)


def main():
    args = options(steps=60)
    model = llama()
    adapt(model, ("q_proj", "v_proj", "lm_head"))
    model.config.use_cache = False
    for layer in model.model.layers:
        recompute(layer)
    if args.fix:
        model.enable_input_require_grads()
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    loader = torch.utils.data.DataLoader(Sentences(1024), 16, shuffle=True, drop_last=True)
    for step, ids in zip(range(args.steps), loader, strict=False):
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say(step, loss)
    moved = sum(bool(layer.lora_B["default"].any()) for layer in adapters(model))
    print(f"{moved} of {len(adapters(model))} adapters are not zero any more")


main()
