"""Defects that are planted into ``job.txt``, and changes that are none."""

from __future__ import annotations

from dataclasses import dataclass

_CLOSE = ("lerp_(grad", "zeros_like(param)", "load_state_dict")


@dataclass(frozen=True)
class Case:
    """Edits of the script (old text, new text), and ``right``: texts of the lines of which naming any is right; none of
    a change that is harmless.
    """

    name: str
    edits: tuple[tuple[str, str], ...] = ()
    right: tuple[str, ...] = ()
    threads: int = 1

    def of(self, source: str) -> str:
        """The script with the edits."""
        for old, new in self.edits:
            if source.count(old) != 1:
                raise ValueError(f"'{old}' stands {source.count(old)} times in the script, and should once.")
            source = source.replace(old, new)
        return source


DEFECTS: tuple[Case, ...] = (
    Case("kernel", (("y = F.gelu(x)", "y = torch.mul(x, torch.special.ndtr(1.0001 * x))"),), ("1.0001 * x",)),
    Case("scale", (("scale=0.35355339", "scale=0.357"),), ("scale=0.357",)),
    Case(
        "cast",
        (("y = torch.add(x, y, alpha=0.1)", "y = torch.add(x, y, alpha=0.1).bfloat16().float()"),),
        ("bfloat16",),
    ),
    Case(
        "cast, as a commit that adds lines",
        (
            ("import math\n", "import collections\nimport math\n"),
            ("def rotated(x):", "SHAPES = collections.Counter()\n\n\ndef rotated(x):\n    SHAPES[tuple(x.shape)] += 1"),
            (
                "        h = torch.flatten(h, 2)\n",
                "        h = h.to(torch.bfloat16)\n        h = torch.flatten(h, 2)\n        h = h.to(torch.float32)\n",
            ),
        ),
        ("h.to(torch.bfloat16)",),
    ),
    Case(
        "in-place",
        (("        x = torch.add(x, h)\n", "        x = torch.add(x, h)\n        x.clamp_(-1.5, 1.5)\n"),),
        ("clamp_",),
    ),
    Case("GELU's backward", (("value=0.3989422804014327", "value=0.4"),), ("value=0.4)",)),
    Case("halved norm", (("model.parameters(), 1.0)", "model.parameters(), 0.5)"),), ("clip_grad_norm_",)),
    Case(
        "shared Adam step",
        (
            (
                '                state["step"] += 1\n'
                '                self.update(param, state, state["step"], group["lr"])',
                '                group["step"] = group.get("step", state["step"]) + 1\n'
                '                self.update(param, state, group["step"], group["lr"])',
            ),
        ),
        ('group["step"]', "root.div_", "addcdiv_(m, root"),
    ),
    Case("optimizer lost", (('        optimizer.load_state_dict(saved["optimizer"])\n', ""),), _CLOSE),
    Case(
        "random state lost",
        (('        torch.set_rng_state(saved["random"])\n', ""),),
        ("self.drop(h)", "set_rng_state"),
    ),
    Case(
        "data order",
        (('        draw.set_state(saved["order"])\n', ""),),
        ("torch.randperm", "set_state(saved", "order(draw)"),
    ),
    Case(
        "cosine horizon",
        (("STEPS, HORIZON = 2, 3, 12", "STEPS, HORIZON = 2, 3, 24"),),
        ("rate(step)", "math.cos", "HORIZON", "addcdiv_(m, root"),
    ),
)

HARMLESS: tuple[Case, ...] = (
    Case("the same twice"),
    Case("two threads", threads=2),
    Case(
        "head in shards",
        (
            (
                "        logits = self.head(x)\n",
                "        weights, biases = self.head.weight.chunk(2), self.head.bias.chunk(2)\n"
                "        parts = [F.linear(x, weight, bias) for weight, bias in zip(weights, biases)]\n"
                "        logits = torch.cat(parts, dim=-1)\n",
            ),
        ),
    ),
    Case("gradient of the embedding by atomics", (("x = self.embed(tokens)", "x = self.embed.weight[tokens]"),)),
    Case(
        "permuted sum",
        (
            (
                "    loss = F.cross_entropy(flat, tokens[:, 1:].flatten())\n",
                "    turned = torch.arange(flat.shape[0] - 1, -1, -1)\n"
                "    loss = F.cross_entropy(flat[turned], tokens[:, 1:].flatten()[turned])\n",
            ),
        ),
    ),
)
