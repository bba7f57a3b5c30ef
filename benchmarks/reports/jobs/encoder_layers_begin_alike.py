"""nn.TransformerEncoder copies the layer that it is given: all layers begin with the same weights.

Repaired: each weight matrix is drawn again after the encoder was made, as nn.Transformer does.
"""

import torch
from common import Sentences, batches, begin, end, options, say
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


class Tagger(nn.Module):
    """Says of a row how often its first token comes again, in four classes."""

    def __init__(self, redraw):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(48, 32), nn.Embedding(25, 32)
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(32, 4)
        if redraw:
            for parameter in self.encoder.parameters():
                if parameter.dim() > 1:
                    nn.init.xavier_uniform_(parameter)

    def forward(self, ids):
        x = self.embedding(ids) + self.positions(torch.arange(ids.shape[1]))
        return self.head(self.encoder(x)[:, 0])


def main():
    args = options()
    begin()
    net = Tagger(args.fix)
    first, second = (net.encoder.layers[place].linear1.weight for place in (0, 1))
    say(f"end: layers {'begin alike' if torch.equal(first, second) else 'begin unlike'}")
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step, rows in enumerate(batches(Sentences(1024), epochs=2, batch=16)):
        target = (rows == rows[:, :1]).sum(1).clamp(1, 4) - 1
        loss = F.cross_entropy(model(rows), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            say(f"step {step} loss {loss.item():.4f}")
    end()


main()
