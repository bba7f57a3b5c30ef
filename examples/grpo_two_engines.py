"""GRPO with two engines: CTranslate2 samples, transformers trains, and Trueline says whether the two agree.

python examples/grpo_two_engines.py
trueline check runs/grpo

A tiny language model learns to write words from the first quarter of its vocabulary. After each update its weights are
converted for CTranslate2, an engine in C++ with a cache and kernels of its own: `pip install ctranslate2 transformers`.
"""

import argparse
import copy
import gc
import sys
import tempfile
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast, logging

import trueline

try:
    import ctranslate2
    from ctranslate2.converters import TransformersConverter
except ImportError:
    sys.exit("This example samples with CTranslate2, which is not installed: pip install ctranslate2.")

PAD, END = 0, 1
LENGTH = 24
"""Most tokens of a response; one that writes END is shorter."""

NAMES = {
    "self_attention/linear_0": "self_attn.qkv_proj",
    "self_attention/linear_1": "self_attn.o_proj",
    "self_attention/layer_norm": "input_layernorm",
    "ffn/linear_0_noact": "mlp.up_proj",
    "ffn/linear_0": "mlp.gate_proj",
    "ffn/linear_1": "mlp.down_proj",
    "ffn/layer_norm": "post_attention_layernorm",
    "decoder/embeddings": "model.embed_tokens",
    "decoder/projection": "lm_head",
    "decoder/layer_norm": "model.norm",
    "decoder/layer_": "model.layers.",
    "gamma": "weight",
    "/": ".",
}
"""What CTranslate2 calls a part, and what transformers does; q, k and v are one."""


class Converter(TransformersConverter):
    """Converts a model in memory; ``spec`` holds what the engine gets."""

    def __init__(self, model: PreTrainedModel, folder: str) -> None:
        super().__init__(folder)
        self.model = model

    def load_model(self, *_: object, **__: object) -> PreTrainedModel:
        return copy.deepcopy(self.model)  # it is taken apart

    def load_tokenizer(self, *_: object, **__: object) -> PreTrainedTokenizerFast:
        words = {str(token): token for token in range(self.model.config.vocab_size)}
        names = {"pad_token": str(PAD), "unk_token": str(PAD), "bos_token": str(PAD), "eos_token": str(END)}
        return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, str(PAD))), **names)

    def _load(self) -> object:
        self.spec = super()._load()
        return self.spec


class Engine:
    """Samples with CTranslate2, at temperature 1 and from all words."""

    def __init__(self, dtype: str = "float32", seed: int = 0) -> None:
        self.dtype, self.seed, self.weights = dtype, seed, dict[str, Tensor]()
        self.folder = tempfile.TemporaryDirectory()
        self.options = {"sampling_topk": 0, "sampling_temperature": 1.0}
        gc.freeze()  # the converter collects garbage after each layer, and what was imported need not be looked through

    def load(self, model: PreTrainedModel) -> None:
        """Take over the weights of ``model``."""
        model.config.save_pretrained(self.folder.name)
        converter, out = Converter(model, self.folder.name), f"{self.folder.name}/engine"
        converter.convert(out, force=True, quantization=None if self.dtype == "float32" else self.dtype)
        self.seed += 1
        ctranslate2.set_random_seed(self.seed)  # else each new generator draws the same random numbers again
        self.model = ctranslate2.Generator(out, compute_type=self.dtype, intra_threads=1)
        self.weights, held = {}, converter.spec.variables()
        for name, value in held.items():
            if name.endswith(("weight", "bias", "gamma")):
                for theirs, ours in NAMES.items():
                    name = name.replace(theirs, ours)
                value = held[value] if isinstance(value, str) else value  # one that equals another is kept once
                self.weights[name] = torch.from_numpy(value.numpy())

    def generate(self, prompts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Responses [B, L], 1 for each of their tokens, and the log-probabilities that the engine recorded."""
        tokens = [[] for _ in prompts]

        def sampled(token: ctranslate2.GenerationStepResult) -> bool:
            tokens[token.batch_id].append((token.token_id, token.log_prob))
            return False

        words = [[str(token) for token in row] for row in prompts.tolist()]
        self.model.generate_batch(
            words,
            max_length=LENGTH,
            end_token=[END],
            include_prompt_in_result=False,
            return_scores=True,
            callback=sampled,
            **self.options,
        )
        rows = torch.nn.utils.rnn.pad_sequence([torch.tensor(row, dtype=torch.float64) for row in tokens], True)
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(row), dtype=torch.long) for row in tokens], True)
        return rows[..., 0].long(), mask, rows[..., 1].float()


@dataclass
class Grpo:
    """Groups of responses to one prompt; those that are better than the others of their group become likelier."""

    model: PreTrainedModel
    engine: Engine
    out: str
    prompts: int = 16
    group: int = 4
    lr: float = 3e-3

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=self.lr)
        self.last = 0

    def step(self, step: int) -> tuple[float, float]:
        """One update; the mean reward and the mean length of the responses."""
        self.engine.load(self.model)
        if self.engine.dtype == "float32":  # quantized weights are no copy of the trainer's
            trueline.rl.record_sync(step, self.model.named_parameters(), self.engine.weights, out=self.out)
        vocabulary = self.model.config.vocab_size
        prompts = torch.randint(2, vocabulary, (self.prompts, 8)).repeat_interleave(self.group, 0)
        ids, mask, logp_rollout = self.engine.generate(prompts)
        reward = ((ids > END) & (ids < vocabulary // 4) & (mask > 0)).sum(-1) / mask.sum(-1)
        groups = reward.reshape(self.prompts, self.group)
        centred = groups - groups.mean(-1, keepdim=True)
        advantage = (centred / (groups.std(-1, keepdim=True) + 1e-4)).flatten()

        logits = self.logits(prompts, ids)
        told = trueline.rl.of_logits(logits, ids)
        trueline.rl.record(
            step,
            prompts,
            ids,
            mask,
            logp_rollout,
            told.logp,
            entropy=told.entropy,
            varentropy=told.varentropy,
            mass_above=told.mass_above,
            versions=(step, step),
            sampling={"temperature": 1.0, "engine": "ctranslate2", "dtype": self.engine.dtype},
            reward=reward,
            advantage=advantage,
            group=torch.arange(self.prompts).repeat_interleave(self.group),
            out=self.out,
        )

        logp = logits.log_softmax(-1).gather(-1, ids[..., None])[..., 0]
        ratio = (logp - logp.detach()).exp()
        loss = -(ratio * advantage[:, None] * mask).sum() / mask.sum()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(reward.mean()), float(mask.sum(-1).float().mean())

    def logits(self, prompts: Tensor, ids: Tensor) -> Tensor:
        """The trainer's, [B, L, V], before each token of the responses; what is padded on the right is seen by none."""
        return self.model(torch.cat([prompts, ids], 1)).logits[:, prompts.shape[1] - 1 : -1]


def tiny(family: str, vocabulary: int) -> PreTrainedModel:
    """A model of three layers with random weights."""
    config = AutoConfig.for_model(
        family,
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.08,
        tie_word_embeddings=False,
        pad_token_id=PAD,
        eos_token_id=END,
        bos_token_id=None,
    )
    return AutoModelForCausalLM.from_config(config)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=["llama", "qwen2", "qwen3"], default="llama")
    parser.add_argument("--vocabulary", type=int, default=256)
    parser.add_argument("--dtype", choices=["float32", "int8"], default="float32", help="of the engine")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="runs/grpo")
    args = parser.parse_args()
    logging.set_verbosity_error()  # the converter asks for a name that transformers calls old
    torch.manual_seed(args.seed)
    loop = Grpo(tiny(args.model, args.vocabulary), Engine(args.dtype, 1000 * args.seed), args.out)
    for step in range(args.steps):
        reward, length = loop.step(step)
        if step % 10 == 0 or step == args.steps - 1:
            print(f"step {step}: reward {reward:.2f}, {length:.1f} tokens a response", flush=True)


if __name__ == "__main__":
    main()
