"""Gradients are not clipped, though the module says how: under manual optimization nobody asks it.

Repaired: the step clips by itself.
"""

import logging
import warnings

import lightning as L
import torch
from command import options, say
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Model(L.LightningModule):
    def __init__(self, repaired):
        super().__init__()
        self.automatic_optimization = False
        self.net = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))
        self.repaired, self.largest = repaired, 0.0

    def training_step(self, batch, number):
        optimizer = self.optimizers()
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        optimizer.zero_grad()
        self.manual_backward(loss)
        if self.repaired:
            self.configure_gradient_clipping(optimizer)
        norm = torch.stack([p.grad.norm() for p in self.parameters()]).norm()
        self.largest = max(self.largest, norm.item())
        optimizer.step()
        say(number, loss.detach())

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        self.clip_gradients(optimizer, gradient_clip_val=0.5, gradient_clip_algorithm="norm")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)


def main():
    args = options(steps=80)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    x = torch.randn(1600, 16, generator=torch.Generator().manual_seed(4))
    data = TensorDataset(x, 3 * x[:, :4] * x[:, 4:8])
    model = Model(args.fix)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=args.steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(data, 16, shuffle=True))
    print(f"the largest norm of gradients at an update is {model.largest:.3f}")


main()
