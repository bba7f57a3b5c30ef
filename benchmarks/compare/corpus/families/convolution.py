"""Models of images. Letters: B batch, C channels, H and W sides, L patches, D width."""

from __future__ import annotations

from collections.abc import Callable

import torch
from benchmarks.compare.corpus.kit import Batch, Training, family
from torch import Tensor, nn
from torch.nn import functional


def _images(draw: torch.Generator, side: int = 16, size: int = 8) -> Batch:
    return {
        "image": torch.rand(size, 3, side, side, generator=draw),
        "label": torch.randint(8, (size,), generator=draw),
    }


def _normalised(batch: Batch) -> Batch:
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    image = batch["image"]
    return {**batch, "image": (image - mean.to(image.dtype)) / std.to(image.dtype)}


class BasicBlock(nn.Module):
    """Two convolutions with BatchNorm, and a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(outside), nn.ReLU()
        self.conv2, self.bn2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.BatchNorm2d(outside)
        self.downsample = None
        if stride != 1 or inside != outside:
            self.downsample = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        same = x_BCHW if self.downsample is None else self.downsample(x_BCHW)
        x_BCHW = self.relu(self.bn1(self.conv1(x_BCHW)))
        return self.relu(self.bn2(self.conv2(x_BCHW)) + same)


class ResNet(nn.Module):
    """A stem, three blocks, the mean over the image."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.relu, self.maxpool = nn.ReLU(), nn.MaxPool2d(2)
        self.layer1, self.layer2, self.layer3 = BasicBlock(16, 16, 1), BasicBlock(16, 32, 2), BasicBlock(32, 32, 1)
        self.fc = nn.Linear(32, 8)

    def pool(self, x_BCHW: Tensor) -> Tensor:
        return x_BCHW.mean((2, 3))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        x_BCHW = self.maxpool(self.relu(self.bn1(self.conv1(x_BCHW))))
        return self.fc(self.pool(self.layer3(self.layer2(self.layer1(x_BCHW)))))


def _classified(**settings: float) -> Callable[[nn.Module, Batch], Tensor]:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return functional.cross_entropy(model(batch["image"]).float(), batch["label"], **settings)

    return loss


@family("resnet", micro=False)
def resnet() -> Training:
    model = ResNet()
    settings = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4, "foreach": False}
    return Training(model, _images, _classified(), _normalised, torch.optim.SGD, settings)


class ConvNeXtBlock(nn.Module):
    """A depthwise convolution, LayerNorm over channels, a perceptron, a scale of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.pwconv1 = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, 4 * width)
        self.act, self.pwconv2 = nn.GELU(), nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(0.1 * torch.ones(width))
        self.drop_path = 0.0

    def mix(self, x_BHWC: Tensor) -> Tensor:
        return self.gamma * self.pwconv2(self.act(self.pwconv1(self.norm(x_BHWC))))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        mixed = self.mix(self.dwconv(x_BCHW).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        if self.drop_path:
            kept = torch.rand(len(mixed), 1, 1, 1) >= self.drop_path
            mixed = mixed * kept.to(mixed.dtype) / (1 - self.drop_path)
        return x_BCHW + mixed


class ConvNeXt(nn.Module):
    """A patch stem, three blocks, a LayerNorm over the mean of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 2, 2)
        self.stages = nn.Sequential(*(ConvNeXtBlock(24) for _ in range(3)))
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, 8)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return self.head(self.norm(self.stages(self.stem(x_BCHW)).mean((-2, -1))))


@family("convnext")
def convnext() -> Training:
    model = ConvNeXt()
    settings = {"lr": 4e-3, "betas": (0.9, 0.999), "weight_decay": 0.05, "foreach": False}
    return Training(model, _images, _classified(label_smoothing=0.1), _normalised, settings=settings)


class UNetBlock(nn.Module):
    """GroupNorm, SiLU, convolution, twice, with the time embedding in between."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, inside), nn.Conv2d(inside, outside, 3, padding=1)
        self.time = nn.Linear(32, outside)
        self.norm2, self.conv2 = nn.GroupNorm(4, outside), nn.Conv2d(outside, outside, 3, padding=1)
        self.skip = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x_BCHW: Tensor, time_BD: Tensor) -> Tensor:
        h_BCHW = self.conv1(functional.silu(self.norm1(x_BCHW)))
        h_BCHW = h_BCHW + self.time(functional.silu(time_BD))[:, :, None, None]
        return self.conv2(functional.silu(self.norm2(h_BCHW))) + self.skip(x_BCHW)


class UNet(nn.Module):
    """Down, middle, up, with a skip connection; predicts the noise."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 32))
        self.conv_in = nn.Conv2d(3, 16, 3, padding=1)
        self.down1, self.down = UNetBlock(16, 16), nn.Conv2d(16, 16, 3, 2, 1)
        self.down2, self.mid = UNetBlock(16, 32), UNetBlock(32, 32)
        self.up = nn.Upsample(scale_factor=2)
        self.up1, self.norm_out = UNetBlock(48, 16), nn.GroupNorm(4, 16)
        self.conv_out = nn.Conv2d(16, 3, 3, padding=1)

    def embed(self, t_B: Tensor) -> Tensor:
        rates = torch.exp(-torch.arange(16) * 9.2103 / 16)
        angles = t_B[:, None].float() * rates
        return torch.cat([angles.sin(), angles.cos()], -1).to(self.conv_in.weight.dtype)

    def join(self, up: Tensor, skip: Tensor) -> Tensor:
        return torch.cat([up, skip], 1)

    def forward(self, x_BCHW: Tensor, t_B: Tensor) -> Tensor:
        time_BD = self.time(self.embed(t_B))
        skip = self.down1(self.conv_in(x_BCHW), time_BD)
        h_BCHW = self.mid(self.down2(self.down(skip), time_BD), time_BD)
        h_BCHW = self.up1(self.join(self.up(h_BCHW), skip), time_BD)
        return self.conv_out(functional.silu(self.norm_out(h_BCHW)))


class Diffusion:
    """What is between the batch and the model: noise by a linear schedule of betas."""

    def __init__(self) -> None:
        self.betas = torch.linspace(1e-4, 0.02, 100)

    def __call__(self, batch: Batch) -> Batch:
        image, t_B, noise = batch["image"] * 2 - 1, batch["t"], batch["noise"]
        kept_B = torch.cumprod(1 - self.betas, 0)[t_B].view(-1, 1, 1, 1).to(image.dtype)
        return {**batch, "noisy": kept_B.sqrt() * image + (1 - kept_B).sqrt() * noise}


@family("unet")
def unet() -> Training:
    model = UNet()

    def batch(draw: torch.Generator) -> Batch:
        noise = torch.randn(4, 3, 16, 16, generator=draw)
        return {**_images(draw, size=4), "t": torch.randint(100, (4,), generator=draw), "noise": noise}

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return functional.mse_loss(model(batch["noisy"], batch["t"]).float(), batch["noise"].float())

    return Training(model, batch, loss, Diffusion(), torch.optim.Adam, {"lr": 1e-3, "foreach": False})


class Attention(nn.Module):
    """As timm has it: one linear for q, k and v."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.scale = num_heads, (width // num_heads) ** -0.5
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def split(self, x_BLD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        size = (*x_BLD.shape[:2], 3, self.num_heads, -1)
        return self.qkv(x_BLD).reshape(size).permute(2, 0, 3, 1, 4).unbind(0)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ((q * self.scale) @ k.transpose(-2, -1)).softmax(-1) @ v

    def forward(self, x_BLD: Tensor) -> Tensor:
        return self.proj(self.attend(*self.split(x_BLD)).transpose(1, 2).reshape(x_BLD.shape))


class Mlp(nn.Module):
    """As timm has it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)

    def forward(self, x_BLD: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x_BLD)))


class Block(nn.Module):
    """Attention and perceptron, each behind a LayerNorm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width, eps=1e-6), Attention(width, 4)
        self.norm2, self.mlp = nn.LayerNorm(width, eps=1e-6), Mlp(width)
        self.drop_path = nn.Identity()

    def forward(self, x_BLD: Tensor) -> Tensor:
        x_BLD = x_BLD + self.drop_path(self.attn(self.norm1(x_BLD)))
        return x_BLD + self.drop_path(self.mlp(self.norm2(x_BLD)))


class ViT(nn.Module):
    """Patches, a class token, two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, 32, 4, 4)
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, 32))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 17, 32))
        self.blocks = nn.Sequential(Block(32), Block(32))
        self.norm, self.head = nn.LayerNorm(32, eps=1e-6), nn.Linear(32, 8)

    def patches(self, x_BCHW: Tensor) -> Tensor:
        return self.patch_embed(x_BCHW).flatten(2).transpose(1, 2)

    def pool(self, x_BLD: Tensor) -> Tensor:
        return x_BLD[:, 0]

    def forward(self, x_BCHW: Tensor) -> Tensor:
        x_BLD = self.patches(x_BCHW)
        x_BLD = torch.cat([self.cls_token.expand(len(x_BLD), -1, -1), x_BLD], 1) + self.pos_embed
        return self.head(self.pool(self.norm(self.blocks(x_BLD))))


@family("vit")
def vit() -> Training:
    model = ViT()
    settings = {"lr": 1e-3, "betas": (0.9, 0.999), "weight_decay": 0.05, "foreach": False}
    return Training(model, _images, _classified(), _normalised, settings=settings)
