"""Token ids of a vocabulary of 300 are kept in a file of 8 bits each: those from 256 on become 0 to 43.

(As with 16 bits and a vocabulary of 128,000.) The last rows of the embedding are never read. Repaired: 16 bits.
"""

import numpy as np
import torch
from common import GPT, Sentences, begin, end, next_token_loss, options, say
from torch.nn.parallel import DistributedDataParallel

VOCAB, LENGTH = 300, 24


def batch_of(tokens, rows, generator):
    """Rows [B, L] from anywhere in ``tokens``, and the same one place on."""
    starts = torch.randint(0, len(tokens) - LENGTH - 1, (rows,), generator=generator).tolist()
    pieces = [torch.from_numpy(tokens[start : start + LENGTH + 1].astype(np.int64)) for start in starts]
    return torch.stack(pieces)[:, :-1], torch.stack(pieces)[:, 1:]


def main():
    args = options()
    begin()
    ids = Sentences(2048, length=LENGTH, vocab=VOCAB).rows_NL.flatten().numpy()
    tokens = ids.astype(np.uint16 if args.fix else np.uint8)
    generator = torch.Generator().manual_seed(1337 + torch.distributed.get_rank())
    model = DistributedDataParallel(GPT(vocab=VOCAB, length=LENGTH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95))
    highest = 0
    for step in range(80):
        inputs, targets = batch_of(tokens, 16, generator)
        highest = max(highest, int(inputs.max()))
        loss = next_token_loss(model(inputs), targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            say(f"step {step} loss {loss.item():.4f}")
    say(f"end: the highest id is {highest}")
    end()


main()
