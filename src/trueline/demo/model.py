"""The causal LM that the demo trains: a small Llama with random weights, or a pretrained model by name."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueline.demo.tokens import Tokenizer
from trueline.schema.errors import InputError

if TYPE_CHECKING:
    import torch

DROPOUT = 0.1
"""Of the attention weights, so that a rank's generator has something to decide, as in a real fine-tune."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Which model each worker builds: a pretrained one where ``name`` is set, else a small Llama for ``vocab_size``."""

    name: str | None
    vocab_size: int
    max_length: int


def require_extra() -> None:
    """Raise ``InputError`` that says what to install where transformers or tokenizers are missing."""
    missing = [package for package in ("transformers", "tokenizers") if find_spec(package) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise InputError(
            f"The demo trains a small Llama, but {' and '.join(missing)} {verb} not installed; "
            "run: pip install 'trueline[demo]'."
        )


def build_model(spec: ModelSpec) -> torch.nn.Module:
    """A new model in training mode and float32; random weights come from torch's current generator."""
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    if spec.name is not None:
        from transformers.utils import logging

        logging.disable_progress_bar()  # its lock would be reported as leaked by workers, which leave without clean-up
        return AutoModelForCausalLM.from_pretrained(spec.name).float().train()
    config = LlamaConfig(
        vocab_size=spec.vocab_size,
        hidden_size=128,
        intermediate_size=344,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=spec.max_length,
        attention_dropout=DROPOUT,
        attn_implementation="eager",  # on CPU torch's own attention falls back to slower maths where there is dropout
        use_cache=False,
    )
    return LlamaForCausalLM(config).train()


def load_pretrained(name: str, *, max_length: int) -> tuple[ModelSpec, Tokenizer]:
    """The pretrained model ``name`` (hub name or folder), checked to load, and its own tokenizer.

    Loading it here once also fills the download cache before the workers read it. Raises ``InputError``, one sentence,
    where it is missing, not a causal LM, offline, or its context is shorter than ``max_length`` tokens.
    """
    if name.startswith(("/", ".", "~")) and not Path(name).is_dir():
        raise _not_loaded(name, "there is no such folder")
    try:
        import huggingface_hub.utils
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging

        logging.disable_progress_bar()
        # Offline it retries five times a file, and says so each time.
        huggingface_hub.utils.logging.set_verbosity_error()
        tokenizer = AutoTokenizer.from_pretrained(name)
        config = AutoModelForCausalLM.from_pretrained(name).config
    except Exception as error:  # what a damaged or foreign folder raises has no common class
        raise _not_loaded(name, _first_sentence(error)) from None
    context = getattr(config, "max_position_embeddings", None)
    if context is not None and max_length > context:
        raise InputError(f"--max-length is {max_length}, but model '{name}' has a context of {context} tokens.")
    spec = ModelSpec(name=name, vocab_size=config.vocab_size, max_length=max_length)
    return spec, _adapted(tokenizer, name)


def _not_loaded(name: str, reason: str) -> InputError:
    return InputError(
        f"Model '{name}' cannot be loaded ({reason}); expected a folder or hub name of a causal LM with its tokenizer, "
        "already downloaded where there is no network. Leave out --model for a small Llama."
    )


def _adapted(tokenizer: Any, name: str) -> Tokenizer:
    """``tokenizer`` of transformers as ours; padding falls back to the end token (masked out of attention and loss)."""
    end_id = tokenizer.eos_token_id
    if end_id is None:
        raise InputError(f"The tokenizer of model '{name}' has no end-of-text token; expected that of a causal LM.")

    def encode(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    pad_id = end_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    return Tokenizer(
        encode=encode, start_id=tokenizer.bos_token_id, end_id=end_id, pad_id=pad_id, vocab_size=len(tokenizer)
    )


def _first_sentence(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text.split(". ")[0].rstrip(".")[:200]
