"""Weight decay pulls the weights of the norms to 0: the list of names that it leaves out is that of another model.

"LayerNorm.weight" is in no name of a model with RMSNorm. Repaired: norms are left out by name in any spelling.
"""

import torch
from command import options, say
from language import Sentences, llama


def groups(model, weight_decay, repaired):
    spared = ("bias", "norm") if repaired else ("bias", "LayerNorm.weight")
    named = list(model.named_parameters())
    return [
        {"params": [p for n, p in named if not any(s in n for s in spared)], "weight_decay": weight_decay},
        {"params": [p for n, p in named if any(s in n for s in spared)], "weight_decay": 0.0},
    ]


def main():
    args = options(steps=80)
    loader = torch.utils.data.DataLoader(Sentences(1024), 16, shuffle=True, drop_last=True)
    model = llama()
    optimizer = torch.optim.AdamW([g for g in groups(model, 0.5, args.fix) if g["params"]], lr=3e-3)
    step = 0
    while step < args.steps:
        for ids in loader:
            loss = model(input_ids=ids, labels=ids).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            say(step, loss)
            step += 1
            if step == args.steps:
                break
    mean = torch.cat([p for n, p in model.named_parameters() if "norm" in n]).mean().item()
    print(f"the mean weight of the norms is {mean:.4f}; groups {[len(g['params']) for g in optimizer.param_groups]}")


main()
