"""After a restart the frozen encoder is a random one: the checkpoint holds the trained parameters only.

Started twice: 60 updates, then with --resume 60 more. Repaired: the frozen parameters are saved as well.
"""

import torch
from command import options, say
from torch import nn


def pretrained(vocab, width):
    """Vectors of tokens, of which the classes are sums."""
    return torch.randn(vocab, width, generator=torch.Generator().manual_seed(77))


class Tagger(nn.Module):
    def __init__(self, vocab=48, width=24, classes=4):
        super().__init__()
        self.encoder = nn.Sequential(nn.Embedding(vocab, width), nn.LayerNorm(width), nn.Linear(width, width))
        self.encoder.requires_grad_(False)
        self.head = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, classes))

    def forward(self, ids):
        return self.head(self.encoder(ids).mean(1))


def managed(model, whole):
    """What the engine writes: the parameters that its optimizer holds."""
    names = {name for name, p in model.named_parameters() if p.requires_grad}
    return {name: value for name, value in model.state_dict().items() if whole or name in names}


def main():
    args = options(steps=60)
    if args.resume:
        torch.manual_seed(1)
    model = Tagger()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    first = 0
    if args.resume:
        state = torch.load(args.to)
        model.load_state_dict(state["module"], strict=False)
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    else:
        model.encoder[0].weight.copy_(pretrained(48, 24))
    for step in range(first, first + args.steps):
        draw = torch.Generator().manual_seed(step)
        ids = torch.randint(0, 48, (32, 6), generator=draw)
        y = pretrained(48, 24)[ids].sum(1)[:, :4].argmax(1)
        loss = nn.functional.cross_entropy(model(ids), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say(step, loss, every=10)
    torch.save(
        {
            "module": managed(model, whole=args.fix),
            "optimizer": optimizer.state_dict(),
            "step": first + args.steps,
        },
        args.to,
    )
    print(f"the first weight of the encoder is {model.encoder[0].weight[0, 0].item():.4f}")


main()
