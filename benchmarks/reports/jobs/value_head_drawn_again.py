"""After a restart of reinforcement learning the value head is a new one: what is saved is the language model alone.

Started twice: 40 updates, then with --resume 40 more. Repaired: the value head is saved and loaded as well.
"""

import torch
from command import options, say
from language import ANSWER, BEGIN, llama
from torch import nn
from torch.nn import functional as F

LENGTH = 6


class WithValueHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.pretrained_model = llama(layers=1)
        self.pretrained_model.config.use_cache = False
        self.v_head = nn.Linear(32, 1)

    def forward(self, ids):
        out = self.pretrained_model(input_ids=ids, output_hidden_states=True)
        return out.logits, self.v_head(out.hidden_states[-1]).squeeze(-1)


@torch.no_grad()
def generate(model, ids):
    for _ in range(LENGTH):
        ids = torch.cat([ids, torch.multinomial(model(ids)[0][:, -1].softmax(-1), 1)], 1)
    return ids


def main():
    args = options(steps=40)
    model = WithValueHead()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    first = 0
    if args.resume:
        torch.manual_seed(1)
        nn.init.normal_(model.v_head.weight, std=0.2)
        state = torch.load(args.to)
        model.pretrained_model.load_state_dict(state["model"])
        if args.fix:
            model.v_head.load_state_dict(state["v_head"])
        optimizer.load_state_dict(state["optimizer"])
        first = args.steps
    begin = model.v_head.weight.norm().item()
    for step in range(first, first + args.steps):
        draw = torch.Generator().manual_seed(step)
        bounds = torch.randint(10, 60, (16,), generator=draw)
        ids = torch.stack([torch.full_like(bounds, BEGIN), bounds, torch.full_like(bounds, ANSWER)], 1)
        ids = generate(model, ids)
        reward = (ids[:, -LENGTH:] > ids[:, 1:2]).float().mean(1, keepdim=True)
        logits, value = model(ids)
        log_prob = -F.cross_entropy(logits[:, 2:-1].transpose(1, 2), ids[:, 3:], reduction="none")
        value = value[:, 2:-1]
        loss = -(log_prob * (reward - value.detach())).mean() + 0.5 * (value - reward).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say(step, loss, every=10)
    torch.save(
        {
            "model": model.pretrained_model.state_dict(),
            "v_head": model.v_head.state_dict(),
            "optimizer": optimizer.state_dict(),
        },
        args.to,
    )
    print(f"the norm of the value head was {begin:.4f} and is {model.v_head.weight.norm().item():.4f}")


main()
