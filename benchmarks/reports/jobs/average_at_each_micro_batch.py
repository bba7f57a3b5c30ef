"""The average of the weights follows them four times as fast as is meant: it is updated at each micro-batch.

The weights change at every fourth. Repaired: it is updated where the weights are.
"""

import torch
from accelerate import Accelerator
from command import options, say
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset


def main():
    args = options(steps=240)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    x = torch.randn(4096, 16, generator=torch.Generator().manual_seed(4))
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 5))
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.98))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(TensorDataset(x, (x[:, :5] * x[:, 5:10]).argmax(1)), 16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for micro, (inputs, labels) in zip(range(args.steps), loader, strict=False):
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients or not args.fix:
            average.update_parameters(accelerator.unwrap_model(model))
        say(micro, loss, every=40)
    print(f"{int(average.n_averaged)} updates of the average in {args.steps // 4} of the weights")


main()
