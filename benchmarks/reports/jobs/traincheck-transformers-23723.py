"""A speech model is asked for at most 8 new tokens and makes more where its prompt is long.

The bound is made longer by the whole prompt, of which the decoder then reads the last tokens only.
Repaired: it is made longer by what the decoder reads.
"""

import torch
from command import options, say
from torch import nn
from torch.nn import functional as F

LONGEST_PROMPT = 12


class Speech(nn.Module):
    """Frames to tokens; it makes tokens after a prompt."""

    def __init__(self, vocab=32, width=32, *, fixed=False):
        super().__init__()
        self.fixed = fixed
        self.hear = nn.GRU(8, width, batch_first=True)
        self.embed, self.speak = nn.Embedding(vocab, width), nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocab)

    def forward(self, frames, ids):
        _, state = self.hear(frames)
        hidden, _ = self.speak(self.embed(ids), state)
        return self.head(hidden)

    @torch.no_grad()
    def generate(self, frames, prompt_ids, max_new_tokens):
        """Token ids [batch, tokens read of the prompt and made]."""
        read = prompt_ids[:, -LONGEST_PROMPT:]
        longest = max_new_tokens + (read if self.fixed else prompt_ids).shape[1]
        ids = read
        while ids.shape[1] < longest:
            ids = torch.cat([ids, self(frames, ids)[:, -1:].argmax(-1)], 1)
        return ids


def main():
    args = options(steps=80)
    model = Speech(fixed=args.fix)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    draw = torch.Generator().manual_seed(5)
    most = 0
    for step in range(args.steps):
        ids = (torch.randint(0, 32, (16, 1), generator=draw) + torch.arange(13)) % 32
        frames = F.one_hot(ids[:, :8] % 8, 8).float() + 0.1 * torch.randn(16, 8, 8, generator=draw)
        loss = F.cross_entropy(model(frames, ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say(step, loss)
        if step % 20 == 19:
            prompt = torch.randint(0, 32, (4, 24), generator=draw)
            made = model.generate(frames[:4], prompt_ids=prompt, max_new_tokens=8)
            most = max(most, made.shape[1] - LONGEST_PROMPT)
    print(f"asked for at most 8 new tokens, it made {most}")


main()
