"""Made-up language: 180 words of which each is followed by some more often than by others."""

from __future__ import annotations

import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

_SYLLABLES = ("ba", "do", "fe", "gi", "ku", "la", "me", "no", "pi", "ra", "su", "ti")
WORDS = tuple(a + b for a in _SYLLABLES for b in _SYLLABLES)[:140] + tuple(a + "s" for a in _SYLLABLES)
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>")


def sentences(count: int, *, least: int = 5, most: int = 24, seed: int = 0) -> list[str]:
    """``count`` sentences of ``least`` to ``most`` words."""
    rng = np.random.default_rng(seed)
    follows = np.random.default_rng(7).permuted(np.tile(np.arange(len(WORDS)), (len(WORDS), 1)), axis=1)[:, :6]
    made = []
    for length in rng.integers(least, most + 1, count):
        word = int(rng.integers(len(WORDS)))
        line = [WORDS[word]]
        for _ in range(int(length) - 1):
            word = int(follows[word, rng.integers(6)])
            line.append(WORDS[word])
        made.append(" ".join(line))
    return made


def tokenizer(folder: Path, *, kind: str = "bert") -> None:
    """A tokenizer of whole words: ``bert`` frames a text with [CLS] and [SEP]; ``causal`` has a chat template."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = [*SPECIAL, *WORDS, *"0123456789.,?!:;-'\"()abcdefghijklmnopqrstuvwxyz"]
    made = Tokenizer(models.WordLevel({word: at for at, word in enumerate(dict.fromkeys(words))}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if kind == "bert":
        made.normalizer = normalizers.Lowercase()
        frame = [("[CLS]", 2), ("[SEP]", 3)]
        made.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=frame
        )
        named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
        named |= {"mask_token": "[MASK]"}
    else:
        named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "bos_token": "<s>", "eos_token": "</s>"}
        named |= {"mask_token": "[MASK]"} if kind == "masked" else {}
    fast = PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=128, **named)
    if kind == "causal":
        fast.chat_template = (
            "{% for message in messages %}<|{{ message['role'] }}|> {% if message['role'] == 'assistant' %}"
            "{% generation %}{{ message['content'] }} </s>{% endgeneration %}{% else %}{{ message['content'] }} <|end|>"
            "{% endif %} {% endfor %}{% if add_generation_prompt %}<|assistant|> {% endif %}"
        )
    fast.save_pretrained(folder)


def _dataset(folder: Path, splits: dict[str, dict[str, list[Any]]], *, labels: dict[str, int] | None = None) -> None:
    from datasets import ClassLabel, Dataset

    folder.mkdir(parents=True, exist_ok=True)
    for split, columns in splits.items():
        made = Dataset.from_dict(columns)
        for column, classes in (labels or {}).items():
            made = made.cast_column(column, ClassLabel(names=[f"class {at}" for at in range(classes)]))
        made.to_parquet(folder / f"{split}.parquet")


def _configured(folder: Path, *configurations: str) -> None:
    """The card that says where the splits of each configuration lie."""
    lines = ["---", "configs:"]
    for name in configurations:
        lines += [f"- config_name: {name}", "  data_files:"]
        for file in sorted((folder / name).glob("*.parquet")):
            lines += [f"  - split: {file.stem}", f"    path: {name}/{file.name}"]
    (folder / "README.md").write_text("\n".join([*lines, "---", ""]))


def glue(folder: Path) -> None:
    """Sentences of one or two parts and a label that says whether they share their first word."""

    def pairs(count: int, seed: int) -> dict[str, list[Any]]:
        first, second = sentences(count, seed=seed), sentences(count, seed=seed + 50)
        label = [at % 2 for at in range(count)]
        second = [a.split()[0] + " " + b if same else b for a, b, same in zip(first, second, label, strict=True)]
        return {"sentence1": first, "sentence2": second, "label": label, "idx": list(range(count))}

    for name in ("mrpc", "rte", "stsb"):
        _dataset(
            folder / name,
            {"train": pairs(240, 1), "validation": pairs(48, 2), "test": pairs(48, 3)},
            labels={"label": 2},
        )
    single = {
        split: {"sentence": sentences(n, seed=n), "label": [at % 2 for at in range(n)], "idx": list(range(n))}
        for split, n in (("train", 240), ("validation", 48), ("test", 40))
    }
    for name in ("sst2", "cola"):
        _dataset(folder / name, single, labels={"label": 2})
    _configured(folder, "mrpc", "rte", "stsb", "sst2", "cola")


def glue_metric(folder: Path) -> None:
    """A metric of ``evaluate`` that says the share of right answers."""
    folder.mkdir(parents=True, exist_ok=True)
    name = folder.name
    (folder / f"{name}.py").write_text(
        "import datasets\nimport evaluate\n\n\nclass Share(evaluate.Metric):\n"
        "    def _info(self):\n"
        "        values = {'predictions': datasets.Value('int64'), 'references': datasets.Value('int64')}\n"
        "        return evaluate.MetricInfo(description='', citation='', features=datasets.Features(values))\n\n"
        "    def _compute(self, predictions, references):\n"
        "        right = sum(int(a) == int(b) for a, b in zip(predictions, references)) / max(1, len(references))\n"
        "        return {'accuracy': right, 'f1': right}\n"
    )


def wikitext(folder: Path) -> None:
    """Lines of text, some of them empty, as wikitext has them."""

    def lines(count: int, seed: int) -> dict[str, list[Any]]:
        made = sentences(count, least=12, most=40, seed=seed)
        return {"text": [line if at % 5 else "" for at, line in enumerate(made)]}

    names = ("wikitext-2-v1", "wikitext-2-raw-v1", "wikitext-103-raw-v1")
    for name in names:
        _dataset(folder / name, {"train": lines(600, 1), "validation": lines(60, 2), "test": lines(60, 3)})
    _configured(folder, *names)


def plain_text(folder: Path) -> None:
    """train.txt, valid.txt, test.txt, and input.txt, which has every letter."""
    folder.mkdir(parents=True, exist_ok=True)
    for at, (name, count) in enumerate((("train", 900), ("valid", 60), ("test", 60), ("input", 400))):
        letters = string.printable[:95] + "\n" if name == "input" else ""
        (folder / f"{name}.txt").write_text(letters + "\n".join(sentences(count, seed=at)) + "\n")


def one_text(folder: Path) -> None:
    """wikitext-2.txt."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "wikitext-2.txt").write_text("\n".join(sentences(1200)) + "\n")


def token_file(folder: Path) -> None:
    """train.bin and val.bin of 16-bit tokens, and meta.pkl, of 65 characters, as nanoGPT reads them."""
    import pickle

    folder.mkdir(parents=True, exist_ok=True)
    for at, (name, count) in enumerate((("train", 20000), ("val", 3000))):
        text = " ".join(sentences(count // 60, seed=at))
        np.array([min(64, ord(letter) % 65) for letter in text], dtype=np.uint16).tofile(folder / f"{name}.bin")
    with (folder / "meta.pkl").open("wb") as file:
        pickle.dump({"vocab_size": 65, "itos": {}, "stoi": {}}, file)


def _turns(count: int, seed: int) -> list[tuple[str, str]]:
    return list(zip(sentences(count, seed=seed, most=10), sentences(count, seed=seed + 90, most=14), strict=True))


def _chat(user: str, assistant: str = "") -> list[dict[str, str]]:
    said = [{"role": "user", "content": user}]
    return [*said, {"role": "assistant", "content": assistant}] if assistant else said


def conversations(folder: Path) -> None:
    """``messages`` for supervised fine-tuning."""
    _dataset(
        folder,
        {split: {"messages": [_chat(*turn) for turn in _turns(n, n)]} for split, n in (("train", 200), ("test", 24))},
    )


def preferences(folder: Path) -> None:
    """``chosen`` and ``rejected`` conversations with one prompt."""

    def rows(count: int) -> dict[str, list[Any]]:
        other = sentences(count, seed=count + 7)
        turns = _turns(count, count)
        return {
            "prompt": [_chat(user) for user, _ in turns],
            "chosen": [_chat("", text)[1:] for _, text in turns],
            "rejected": [_chat("", text)[1:] for text in other],
        }

    _dataset(folder, {"train": rows(160), "test": rows(24)})


def whole_preferences(folder: Path) -> None:
    """``chosen`` and ``rejected`` conversations that hold their prompt."""

    def rows(count: int) -> dict[str, list[Any]]:
        turns = _turns(count, count)
        other = sentences(count, seed=count + 7)
        return {
            "chosen": [_chat(*turn) for turn in turns],
            "rejected": [_chat(user, text) for (user, _), text in zip(turns, other, strict=True)],
        }

    _dataset(folder, {"train": rows(160), "test": rows(24)})


def rated(folder: Path) -> None:
    """Completions with a yes or no."""

    def rows(count: int) -> dict[str, list[Any]]:
        turns = _turns(count, count)
        return {
            "prompt": [_chat(user) for user, _ in turns],
            "completion": [_chat("", text)[1:] for _, text in turns],
            "label": [at % 2 == 0 for at in range(count)],
        }

    _dataset(folder, {"train": rows(160), "test": rows(24)})


def prompts(folder: Path) -> None:
    """Prompts alone, with the answer beside them."""

    def rows(count: int) -> dict[str, list[Any]]:
        turns = _turns(count, count)
        return {"prompt": [_chat(user) for user, _ in turns], "solution": [text for _, text in turns]}

    _dataset(folder, {"train": rows(120), "test": rows(24)})


def instructions(folder: Path) -> None:
    """Instruction, input and output, as Alpaca has them; also as JSON lines."""

    def rows(count: int) -> dict[str, list[Any]]:
        turns = _turns(count, count)
        users = [user for user, _ in turns]
        texts = [text for _, text in turns]
        return {
            "instruction": users,
            "input": [""] * count,
            "output": texts,
            "query": users,
            "response": texts,
            "question": users,
            "answer": texts,
            "text": [f"{a} {b}" for a, b in turns],
        }

    _dataset(folder, {"train": rows(200), "test": rows(32)})


def stories(folder: Path) -> None:
    """One text column."""
    _dataset(folder, {split: {"text": sentences(n, seed=n, most=30)} for split, n in (("train", 400), ("test", 40))})


def reviews(folder: Path) -> None:
    """Texts with one of two labels."""
    _dataset(
        folder,
        {
            split: {"text": sentences(n, seed=n), "label": [at % 2 for at in range(n)]}
            for split, n in (("train", 240), ("test", 40))
        },
        labels={"label": 2},
    )


def model(make: Callable[[], tuple[Any, str]]) -> Callable[[Path], None]:
    """A maker of a folder with the model and the tokenizer that ``make`` names."""

    def write(folder: Path) -> None:
        import torch

        torch.manual_seed(5)
        made, kind = make()
        made.save_pretrained(folder)
        if kind:
            tokenizer(folder, kind=kind)

    return write


_SMALL = {"vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


def _bert() -> tuple[Any, str]:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(**_SMALL, intermediate_size=64, max_position_embeddings=128)), "bert"


def _roberta() -> tuple[Any, str]:
    from transformers import RobertaConfig, RobertaForMaskedLM

    settings = {"intermediate_size": 64, "max_position_embeddings": 160, "type_vocab_size": 2, "pad_token_id": 0}
    return RobertaForMaskedLM(RobertaConfig(**_SMALL, **settings)), "bert"


def _gpt2() -> tuple[Any, str]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=256, n_embd=32, n_layer=2, n_head=2, n_positions=128, bos_token_id=5, eos_token_id=6)
    return GPT2LMHeadModel(config), "causal"


def _llama() -> tuple[Any, str]:
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = {"intermediate_size": 64, "max_position_embeddings": 256, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**_SMALL, **settings, bos_token_id=5, eos_token_id=6, pad_token_id=0)), "causal"


def _qwen() -> tuple[Any, str]:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    settings = {"intermediate_size": 64, "max_position_embeddings": 256, "num_key_value_heads": 1}
    config = Qwen2Config(**_SMALL, **settings, tie_word_embeddings=True, bos_token_id=5, eos_token_id=6, pad_token_id=0)
    return Qwen2ForCausalLM(config), "causal"


def _opt() -> tuple[Any, str]:
    from transformers import OPTConfig, OPTForCausalLM

    settings = {"ffn_dim": 64, "max_position_embeddings": 160, "word_embed_proj_dim": 32}
    return OPTForCausalLM(OPTConfig(**_SMALL, **settings, bos_token_id=5, eos_token_id=6, pad_token_id=0)), "causal"


def _t5() -> tuple[Any, str]:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=256,
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=2,
        num_heads=2,
        pad_token_id=0,
        eos_token_id=6,
        decoder_start_token_id=0,
    )
    return T5ForConditionalGeneration(config), "causal"


def _reward() -> tuple[Any, str]:
    from transformers import Qwen2Config, Qwen2ForSequenceClassification

    settings = {"intermediate_size": 64, "max_position_embeddings": 256, "num_key_value_heads": 1}
    config = Qwen2Config(**_SMALL, **settings, num_labels=1, bos_token_id=5, eos_token_id=6, pad_token_id=0)
    return Qwen2ForSequenceClassification(config), "causal"


KINDS: dict[str, Callable[[Path], None]] = {
    "glue": glue,
    "metric": glue_metric,
    "wikitext": wikitext,
    "plain text": plain_text,
    "one text": one_text,
    "token file": token_file,
    "conversations": conversations,
    "preferences": preferences,
    "whole preferences": whole_preferences,
    "rated": rated,
    "prompts": prompts,
    "instructions": instructions,
    "stories": stories,
    "reviews": reviews,
    "bert": model(_bert),
    "roberta": model(_roberta),
    "gpt2": model(_gpt2),
    "llama": model(_llama),
    "qwen": model(_qwen),
    "opt": model(_opt),
    "t5": model(_t5),
    "reward model": model(_reward),
}
"""What is made, by the name that the catalogue has for it."""
