"""Perceptrons, recommenders, graphs, autoencoders. Letters: B batch, D width, N nodes, E edges, C classes."""

from __future__ import annotations

import torch
from benchmarks.compare.corpus.kit import Batch, Training, family
from torch import Tensor, nn
from torch.nn import functional


class MLP(nn.Module):
    """Linear, LayerNorm, GELU twice, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.norm1, self.act1 = nn.Linear(16, 48), nn.LayerNorm(48), nn.GELU()
        self.fc2, self.norm2, self.act2 = nn.Linear(48, 48), nn.LayerNorm(48), nn.GELU()
        self.head = nn.Linear(48, 8)

    def forward(self, x_BD: Tensor) -> Tensor:
        h_BD = self.act1(self.norm1(self.fc1(x_BD)))
        return self.head(h_BD + self.act2(self.norm2(self.fc2(h_BD))))


@family("mlp")
def mlp() -> Training:
    model = MLP()
    labels = torch.randint(8, (4096,), generator=torch.Generator().manual_seed(3))

    def batch(draw: torch.Generator) -> Batch:
        x_BD = torch.randn(24, 16, generator=draw) * 3 + 1
        return {"x": x_BD, "y": labels[(x_BD.sum(1).abs() * 100).long() % 4096]}

    def prepare(batch: Batch) -> Batch:
        return {**batch, "x": (batch["x"] - 1.0) / 3.0}

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return functional.cross_entropy(model(batch["x"]).float(), batch["y"], label_smoothing=0.1)

    return Training(
        *(model, batch, loss, prepare, torch.optim.SGD),
        settings={"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3, "foreach": False},
        schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
    )


class DLRM(nn.Module):
    """Bags of categories, a bottom perceptron, products of all pairs, a top perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(64, 16, mode="sum") for _ in range(4))
        self.bottom = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(16 + 10, 32), nn.ReLU(), nn.Linear(32, 1))

    def interact(self, dense_BD: Tensor, bags: list[Tensor]) -> Tensor:
        stacked_BFD = torch.stack([dense_BD, *bags], 1)
        products_BFF = torch.bmm(stacked_BFD, stacked_BFD.transpose(1, 2))
        rows, columns = torch.tril_indices(5, 5, offset=-1)
        return torch.cat([dense_BD, products_BFF[:, rows, columns]], 1)

    def forward(self, dense_BD: Tensor, ids_BFK: Tensor) -> Tensor:
        bags = [table(ids_BFK[:, index]) for index, table in enumerate(self.tables)]
        return self.top(self.interact(self.bottom(dense_BD), bags)).squeeze(-1)


@family("dlrm")
def dlrm() -> Training:
    model = DLRM()

    def batch(draw: torch.Generator) -> Batch:
        counts = torch.randint(1000, (16, 8), generator=draw)
        ids = torch.randint(64, (16, 4, 3), generator=draw)
        return {"counts": counts, "ids": ids, "y": torch.randint(2, (16,), generator=draw)}

    def prepare(batch: Batch) -> Batch:
        return {**batch, "dense": torch.log1p(batch["counts"].float()).to(next(model.parameters()).dtype)}

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        logits_B = model(batch["dense"], batch["ids"]).float()
        return functional.binary_cross_entropy_with_logits(logits_B, batch["y"].float())

    return Training(model, batch, loss, prepare, torch.optim.Adagrad, {"lr": 0.02, "foreach": False})


class GraphLayer(nn.Module):
    """Mean of the neighbours by ``index_add``, then attention over edges by ``scatter_add``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own, self.other = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.score, self.norm = nn.Linear(2 * width, 1), nn.LayerNorm(width)

    def weigh(self, x_ND: Tensor, source_E: Tensor, target_E: Tensor) -> Tensor:
        pairs_ED = torch.cat([x_ND[source_E], x_ND[target_E]], -1)
        weight_E = functional.leaky_relu(self.score(pairs_ED), 0.2).squeeze(-1).exp()
        total_N = torch.zeros(len(x_ND), dtype=weight_E.dtype).scatter_add(0, target_E, weight_E)
        return weight_E / total_N[target_E]

    def gather(self, sent_ED: Tensor, target_E: Tensor, num: int) -> Tensor:
        return torch.zeros_like(sent_ED[:num]).index_add(0, target_E, sent_ED)

    def forward(self, x_ND: Tensor, source_E: Tensor, target_E: Tensor) -> Tensor:
        weight_E = self.weigh(x_ND, source_E, target_E)
        sent_ED = self.other(x_ND)[source_E] * weight_E[:, None]
        got_ND = self.gather(sent_ED, target_E, len(x_ND))
        return self.norm(functional.relu(self.own(x_ND) + got_ND))


class GNN(nn.Module):
    """Two graph layers and the mean over each graph."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(12, 32)
        self.layers = nn.ModuleList(GraphLayer(32) for _ in range(2))
        self.head = nn.Linear(32, 4)

    def forward(self, x_ND: Tensor, source_E: Tensor, target_E: Tensor, graph_N: Tensor) -> Tensor:
        x_ND = self.embed(x_ND)
        for layer in self.layers:
            x_ND = x_ND + layer(x_ND, source_E, target_E)
        pooled_BD = torch.zeros(4, 32, dtype=x_ND.dtype).index_add(0, graph_N, x_ND)
        return self.head(pooled_BD / torch.bincount(graph_N, minlength=4)[:, None].to(x_ND.dtype))


@family("gnn", micro=False)
def gnn() -> Training:
    model = GNN()

    def batch(draw: torch.Generator) -> Batch:
        graph_N = torch.arange(40) % 4
        source_E, hop_E = torch.arange(40).repeat(4), torch.randint(10, (160,), generator=draw)
        target_E = (source_E + 4 * hop_E) % 40
        x_ND, y = torch.randn(40, 12, generator=draw), torch.randint(4, (4,), generator=draw)
        return {"x": x_ND, "source": source_E, "target": target_E, "graph": graph_N, "y": y}

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        logits = model(batch["x"], batch["source"], batch["target"], batch["graph"])
        return functional.cross_entropy(logits.float(), batch["y"])

    return Training(model, batch, loss)


class VAE(nn.Module):
    """Encoder, reparametrisation, decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.mean, self.log_var = nn.Linear(64, 8), nn.Linear(64, 8)
        self.decoder = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32))

    def sample(self, mean_BZ: Tensor, log_var_BZ: Tensor) -> Tensor:
        return mean_BZ + torch.exp(0.5 * log_var_BZ) * torch.randn_like(mean_BZ)

    def forward(self, x_BD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h_BD = self.encoder(x_BD)
        mean_BZ, log_var_BZ = self.mean(h_BD), self.log_var(h_BD)
        return self.decoder(self.sample(mean_BZ, log_var_BZ)), mean_BZ, log_var_BZ


@family("vae", micro=False)
def vae() -> Training:
    model = VAE()

    def batch(draw: torch.Generator) -> Batch:
        return {"x": torch.rand(16, 32, generator=draw)}

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        logits, mean, log_var = (each.float() for each in model(batch["x"]))
        rebuilt = functional.binary_cross_entropy_with_logits(logits, batch["x"].float(), reduction="sum")
        divergence = -0.5 * torch.sum(1 + log_var - mean.pow(2) - log_var.exp())
        return (rebuilt + divergence) / len(batch["x"])

    return Training(model, batch, loss, optimizer=torch.optim.Adam)


class FakeQuant(nn.Module):
    """Rounds to sixteenths forwards, and lets gradients straight through where nothing was clamped."""

    def __init__(self, step: float = 1 / 16, most: float = 2.0) -> None:
        super().__init__()
        self.step, self.most = step, most

    def rounded(self, x: Tensor) -> Tensor:
        return torch.round(x / self.step) * self.step

    def forward(self, x: Tensor) -> Tensor:
        x = x.clamp(-self.most, self.most)
        return x + (self.rounded(x) - x).detach()


class QuantisedLinear(nn.Linear):
    """A linear whose weight and input are rounded."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__(inside, outside)
        self.of_input, self.of_weight = FakeQuant(), FakeQuant(1 / 64)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(self.of_input(x), self.of_weight(self.weight), self.bias)


class QAT(nn.Module):
    """A perceptron that trains for eight bits."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.act1 = QuantisedLinear(16, 48), nn.ReLU()
        self.fc2, self.act2 = QuantisedLinear(48, 48), nn.ReLU()
        self.head = nn.Linear(48, 8)

    def forward(self, x_BD: Tensor) -> Tensor:
        return self.head(self.act2(self.fc2(self.act1(self.fc1(x_BD)))))


@family("qat")
def qat() -> Training:
    def batch(draw: torch.Generator) -> Batch:
        return {"x": torch.randn(24, 16, generator=draw), "y": torch.randint(8, (24,), generator=draw)}

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return functional.cross_entropy(model(batch["x"]).float(), batch["y"])

    return Training(QAT(), batch, loss, optimizer=torch.optim.Adam, settings={"lr": 1e-3, "foreach": False})
