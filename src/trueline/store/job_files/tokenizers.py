"""What a tokenizer's files say: how many tokens, which special ones, on which side it pads, and a digest of all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from trueline.schema.text.documents import parsed

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
)  # fmt: skip
_OF_CONFIG = ("padding_side", "truncation_side", "model_max_length", "add_bos_token", "add_eos_token", "chat_template")
_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token", "cls_token", "sep_token", "mask_token")


def tokenizer_of(paths: Sequence[Path]) -> dict[str, Any]:
    """Facts of the tokenizer whose files these are; those that cannot be read are left out."""
    facts: dict[str, Any] = {}
    for path in paths:
        try:
            content = parsed(path.read_bytes())
        except (OSError, ValueError):
            continue
        if not isinstance(content, Mapping):
            continue
        document = cast(Mapping[str, Any], content)
        if path.name == "tokenizer.json":
            facts |= _of_tokenizer(document)
        elif path.name == "vocab.json":
            facts.setdefault("tokens", len(document))
            facts.setdefault("vocabulary", digest_of(dict(document)))
        else:
            facts |= {key: document[key] for key in _OF_CONFIG if document.get(key) is not None}
            facts |= {key: _token(document[key]) for key in _SPECIAL if document.get(key) is not None}
    if "chat_template" in facts:
        facts["chat_template"] = digest_of(facts["chat_template"])
    return facts


def _of_tokenizer(document: Mapping[str, Any]) -> dict[str, Any]:
    model = cast(Mapping[str, Any], document.get("model") or {})
    vocabulary: Any = model.get("vocab") or {}
    added = cast(Sequence[Mapping[str, Any]], document.get("added_tokens") or ())
    special = {str(token.get("content")): token.get("id") for token in added if token.get("special")}
    return {
        "tokens": len(vocabulary),
        "vocabulary": digest_of(vocabulary),
        "merges": digest_of(model.get("merges") or []),
        "special_tokens": special,
        "normalizer": digest_of(document.get("normalizer")),
        "pre_tokenizer": digest_of(document.get("pre_tokenizer")),
        "post_processor": digest_of(document.get("post_processor")),
    }


def _token(value: Any) -> Any:
    return cast(Mapping[str, Any], value).get("content") if isinstance(value, Mapping) else value


def digest_of(content: Any) -> str:
    """12 hexadecimal digits of the SHA-256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:12]
