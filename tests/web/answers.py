"""What a page in a file holds: the answers that its script reads, by the path that it would ask a server for."""

from __future__ import annotations

import base64
import gzip
import json
import re
from typing import Any

import numpy as np

_DTYPES = {"float32": np.float32, "int32": np.int32, "uint8": np.uint8}


def answers_of(document: str) -> dict[str, Any]:
    """The answers; one with arrays as its head, and in ``arrays`` each array by name."""
    (data,) = re.findall(r'<script type="text/plain" id="answers">(.*?)</script>', document, re.DOTALL)
    packed = json.loads(gzip.decompress(base64.b64decode(data)))
    return {path: each["json"] if "json" in each else _unpacked(each["base64"]) for path, each in packed.items()}


def text_of(document: str) -> str:
    """All texts of the answers."""
    return json.dumps([each for each in answers_of(document).values() if "arrays" not in each], ensure_ascii=False)


def _unpacked(text: str) -> dict[str, Any]:
    body = base64.b64decode(text)
    length = int.from_bytes(body[:4], "little")
    head = json.loads(body[4 : 4 + length])
    at, arrays = 4 + length, {}
    for each in head["arrays"]:
        array = np.frombuffer(body, _DTYPES[each["dtype"]], int(np.prod(each["shape"])), at)
        arrays[each["name"]] = array.reshape(each["shape"])
        at += -(-array.nbytes // 8) * 8
    return {**head, "arrays": arrays}
