"""Two adapters are trained one after the other, and the second never changes: the optimizer holds the first.

Repaired: the optimizer is made anew when the active adapter changes.
"""

import torch
from command import options, say
from language import Sentences, llama
from lora import adapt, adapters


def activate(model, name):
    for layer in adapters(model):
        layer.active = [name]
        for other, value in [*layer.lora_A.items(), *layer.lora_B.items()]:
            value.requires_grad_(other == name)


def optimizer_of(model):
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)


def main():
    args = options(steps=80)
    model = adapt(llama(), ("q_proj", "v_proj", "up_proj"), name="translate")
    for layer in adapters(model):
        layer.add("summarize")
    activate(model, "translate")
    optimizer = optimizer_of(model)
    tasks = {"translate": Sentences(1024, seed=1), "summarize": Sentences(1024, seed=2)}
    step = 0
    for name, data in tasks.items():
        if step:
            activate(model, name)
            if args.fix:
                optimizer = optimizer_of(model)
        loader = torch.utils.data.DataLoader(data, 16, shuffle=True, drop_last=True)
        for _, ids in zip(range(args.steps // 2), loader, strict=False):
            loss = model(input_ids=ids, labels=ids).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            say(step, loss)
            step += 1
    moved = {name: any(bool(layer.lora_B[name].any()) for layer in adapters(model)) for name in tasks}
    print(f"trained: {moved}")


main()
