"""The embedding is trained beside adapters, the head that is tied to it is not: what is trained is a copy.

Repaired: the head reads the copy as well.
"""

import copy

import torch
from command import options, say
from language import Sentences, llama
from lora import adapt


def save_module(model, name):
    """Train the module ``name`` in full, as a copy beside the frozen original."""
    parent, _, child = name.rpartition(".")
    trained = copy.deepcopy(model.get_submodule(name)).requires_grad_(True)
    setattr(model.get_submodule(parent), child, trained)
    return trained


def main():
    args = options(steps=60)
    model = llama(tied=True)
    adapt(model)
    trained = save_module(model, "model.embed_tokens")
    if args.fix:
        model.lm_head.weight = trained.weight
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    loader = torch.utils.data.DataLoader(Sentences(1024), 16, shuffle=True, drop_last=True)
    for step, ids in zip(range(args.steps), loader, strict=False):
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say(step, loss)
    apart = (model.lm_head.weight - trained.weight).norm().item()
    print(f"embedding and head differ by {apart:.4f}; tied by the configuration: {model.config.tie_word_embeddings}")


main()
