"""Rules that turn names of one framework into those of another, and the maps of names that come with Trueline."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from trueline.schema.errors import InputError
from trueline.schema.text.reading import why

REGEX = "re:"
"""Prefix of a pattern that is a regular expression over the whole name."""


@dataclass(frozen=True)
class Rename:
    """``old`` in a name becomes ``new``: whole parts, anywhere in the name; with a dot at the end, at its front only.

    ``*`` matches any letters within one part, and in ``new`` stands for what the ``*`` of that number matched. After
    ``re:`` comes a regular expression for ``re.sub``. Raises ``InputError`` for one that cannot be compiled.
    """

    old: str
    new: str

    def __post_init__(self) -> None:
        if not self.old.strip(". "):
            raise InputError(f"A rename of '{self.old}' to '{self.new}' has no name on its left side.")
        try:
            pattern, new = self._pattern
            re.compile(pattern.pattern + "|").sub(new, "")  # the empty match shows a bad group in ``new`` now
        except (re.error, IndexError, OverflowError, RecursionError, ValueError) as error:
            raise InputError(f"The rename of '{self.old}' to '{self.new}' cannot be read: {why(error)}.") from None

    def __call__(self, name: str) -> str:
        """Rename ``name``; returns it unchanged where the rule does not fit."""
        pattern, new = self._pattern
        return re.sub(r"\.{2,}", ".", pattern.sub(new, name)).strip(".")

    def fits(self, name: str) -> bool:
        """Tell whether the rule changes ``name``."""
        return self._pattern[0].search(name) is not None

    @functools.cached_property
    def _pattern(self) -> tuple[re.Pattern[str], str]:
        if self.old.startswith(REGEX):
            return re.compile(self.old.removeprefix(REGEX)), self.new
        parts = re.escape(self.old.strip(".")).replace(r"\*", r"([^.]*)")
        if self.new.count("*") > self.old.count("*"):
            raise InputError(
                f"The rename of '{self.old}' to '{self.new}' has more '*' on its right side than its left."
            )
        new = self.new.strip(".").replace("\\", r"\\")
        for number in range(1, self.new.count("*") + 1):
            new = new.replace("*", rf"\g<{number}>", 1)
        if self.old.endswith("."):
            # A front is dropped only where a name is left behind it.
            return re.compile(rf"^{parts}\.(?=.)"), f"{new}." if new else ""
        return re.compile(rf"(?:(?<=\.)|^){parts}(?=\.|$)"), new


@dataclass(frozen=True)
class Merge:
    """Modules that are separate in one framework (``parts``) and one in the other (``whole``).

    The output of the whole is the concatenation of the parts' outputs along the last dim. With ``grouped`` it goes
    group by group: for each head of the last part, which has ``head_size`` rows, first the rows of the other parts that
    belong to it. A ``head_size`` of None is read off the shape that heads are reshaped to; where that is not recorded,
    only statistics are compared.
    """

    parts: tuple[str, ...]
    whole: str
    grouped: bool = False
    head_size: int | None = None

    def __post_init__(self) -> None:
        if len(self.parts) < 2 or not all(self.parts) or not self.whole or "." in "".join((*self.parts, self.whole)):
            raise InputError(
                f"A merge of '{', '.join(self.parts)}' into '{self.whole}' cannot be read. Expected at least two names "
                "without dots, and one for them all, such as 'q_proj, k_proj, v_proj' = 'qkv_proj'."
            )

    def part_of(self, name: str) -> tuple[int, str] | None:
        """Index of the part that ``name`` belongs to, and the name of the whole; None for any other name."""
        pieces = name.split(".")
        for position, piece in enumerate(pieces):
            if piece in self.parts:
                return self.parts.index(piece), ".".join([*pieces[:position], self.whole, *pieces[position + 1 :]])
        return None


Rules = tuple[tuple[Rename, ...], tuple[Merge, ...]]

_QKV = ("q_proj", "k_proj", "v_proj")
_GATE_UP = ("gate_proj", "up_proj")
_FUSED = (
    Merge(_QKV, "qkv_proj"),
    Merge(_GATE_UP, "gate_up_proj"),
    Merge(("q_a_proj", "kv_a_proj_with_mqa"), "fused_qkv_a_proj"),
)
_EXPERTS = (
    Rename("experts.gate_up_proj", "experts.w13_weight"),
    Rename("experts.down_proj", "experts.w2_weight"),
    Rename("block_sparse_moe", "mlp"),
)
"""All experts of a layer in one parameter: transformers since version 5, and `FusedMoE` of inference engines."""

BUILT_IN: dict[str, Rules] = {
    # `stacked_params_mapping` and `FusedMoE` in the models of vLLM and SGLang (`llama.py`, `mixtral.py` and
    # `deepseek_v2.py` of each)
    "hf-vllm": (_EXPERTS, _FUSED),
    "hf-sglang": (_EXPERTS, _FUSED),
    # `mapping_registry` of the bridges in NVIDIA-NeMo/Megatron-Bridge; linear_qkv groups its rows by key-value heads.
    "hf-megatron": (
        (
            Rename("self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight"),
            Rename("mlp.linear_fc1.layer_norm_weight", "post_attention_layernorm.weight"),
            Rename("decoder.layers", "model.layers"),
            Rename("embedding.word_embeddings", "model.embed_tokens"),
            Rename("decoder.final_layernorm", "model.norm"),
            Rename("output_layer", "lm_head"),
            Rename("self_attention", "self_attn"),
            Rename("linear_proj", "o_proj"),
            Rename("pre_mlp_layernorm", "post_attention_layernorm"),
            Rename("mlp.linear_fc2", "mlp.down_proj"),
        ),
        (Merge(_QKV, "linear_qkv", grouped=True), Merge(_GATE_UP, "linear_fc1")),
    ),
}
"""Maps by name. A map applies to both runs, in whichever order these are passed."""
