"""Damage to the bytes of a file, and changes of what it says that keep its checksums right."""

from __future__ import annotations

import copy
import io
import json
import math
import pickle
import random
import struct
import zipfile
import zlib
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trueline.schema.text.documents import decode, sealed
from trueline.store.log.parts import encode_part

Change = tuple[str, bytes]
"""The name that a file has afterwards, and its bytes."""


def hostile(rng: random.Random) -> Any:
    """A value that no file should have where it stands."""
    deep: Any = []
    for _ in range(rng.choice((5, 300, 900))):
        deep = [deep] if rng.random() < 0.5 else {"a": deep}
    values = [
        *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 10**30, 10**400),
        *(0.5, 1e308, math.nan, math.inf, -math.inf),
        *("", "x", "x" * 5_000, "\udc80", "\0", "../../etc/passwd", "/", "9" * 5_000),
        *("nan", "1e999", "[", "\n", "%s{}"),
        *([], {}, [None], [[]], {"": None}, [0, "x", None, 1.5], {"a": {"b": {}}}, [2**62] * 4, [-1], deep),
    ]
    return rng.choice(values)


def by_bytes(rng: random.Random, data: bytes) -> bytes:
    """One flipped bit, one other byte, a cut, a hole, a repeated stretch, or bytes of another kind."""
    kind, size = rng.randrange(8), len(data)
    at = rng.randrange(size) if size else 0
    end = min(size, at + rng.choice((1, 2, 4, 8, 64, 512)))
    if kind <= 1:
        return flipped(rng, data)
    if kind == 2:
        return data[:at]
    if kind == 3:
        return data[:at] + data[end:]
    if kind == 4:
        return data[:end] + data[at:end] + data[end:]
    if kind == 5:
        return data[:at] + bytes(end - at) + data[end:]
    if kind == 6:
        return data[:at] + rng.randbytes(end - at) + data[end:]
    return rng.choice(
        (b"", b"\0" * 64, b"[" * 100_000, b'{"a":' * 100_000, b"\x80\x04.", b"PK\x03\x04", rng.randbytes(99))
    )


def flipped(rng: random.Random, data: bytes) -> bytes:
    """One byte other than it was, in one bit or in any."""
    at = rng.randrange(len(data))
    flip = 1 << rng.randrange(8) if rng.random() < 0.5 else rng.randrange(1, 256)
    return data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :]


def by_meaning(rng: random.Random, name: str, data: bytes) -> Change:
    """The file with another content whose checksums are right; by its bytes where it has no structure known here."""
    try:
        if name.endswith(".jsonl"):
            lines = [line for line in data.split(b"\n") if line]
            at = rng.randrange(len(lines))
            lines[at] = _document(rng, lines[at]).rstrip(b"\n")
            return name, b"\n".join(lines) + b"\n"
        if name.endswith(".json"):
            return name, _document(rng, data)
        if name.endswith(".safetensors"):
            return name, _safetensors(rng, data)
        if name.endswith(".parquet"):
            return _parquet(rng, name, data)
        if name.endswith(".tlj"):
            return name, _journal(rng, data)
        if name.endswith(".metadata"):
            return name, _dcp(rng, data)
        if name.endswith((".pt", ".bin")):
            return name, _torch(rng, data)
    except Exception:
        pass  # what was drawn cannot be put there
    return name, by_bytes(rng, data)


def _document(rng: random.Random, data: bytes) -> bytes:
    document, had_checksum = decode(data)
    for _ in range(rng.choice((1, 1, 3))):
        _change(rng, document)
    text = json.dumps(document, indent=1 if b"\n " in data else None)
    return sealed(text) if had_checksum else text.encode()


def _change(rng: random.Random, root: Any) -> None:
    """Change one node somewhere in nested dicts and lists."""
    node = root
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        inner = [key for key in keys if isinstance(node[key], (dict, list)) and node[key]]
        if inner and rng.random() < 0.6:
            node = node[rng.choice(inner)]
            continue
        break
    kind = rng.randrange(4)
    if kind == 0 and keys:
        del node[rng.choice(keys)]
    elif kind == 1 and isinstance(node, dict):
        node[rng.choice(("", "later", "crc32", "schema_version", "x" * 3_000, "\udc80"))] = hostile(rng)
    elif kind == 2 and isinstance(node, list):
        node.insert(rng.randrange(len(node) + 1), hostile(rng))
    elif keys:
        node[rng.choice(keys)] = hostile(rng)


def _safetensors(rng: random.Random, data: bytes) -> bytes:
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    if rng.random() < 0.7:
        header.pop("__metadata__", None)  # as of other writers, whose headers have no checksum
    _change(rng, header)
    text = json.dumps(header).encode()
    declared = rng.choice((len(text), len(text), len(text), 2**63, 0, len(text) + 1))
    return struct.pack("<Q", declared) + text + data[8 + length :]


def _parquet(rng: random.Random, name: str, data: bytes) -> Change:
    table = pq.read_table(pa.BufferReader(data))
    at = rng.randrange(table.num_columns)
    column = table.schema.names[at]
    kind = rng.randrange(6)
    if kind == 0:
        table = table.drop_columns([column])
    elif kind == 1:
        table = table.set_column(at, column, pa.nulls(len(table), table.schema.field(at).type))
    elif kind == 2:
        table = table.set_column(at, column, pa.array(["x"] * len(table)))
    elif kind == 3:
        value = hostile(rng)
        table = table.set_column(at, column, pa.array([value] * len(table), table.schema.field(at).type))
    elif kind == 4:
        table = table.slice(0, rng.randrange(len(table) + 1))
    else:
        table = pa.concat_tables([table] * rng.choice((2, 50)))
    data = encode_part(table)
    if name.startswith("part-") or "/part-" in name:
        name = name[: -len("00000000.parquet")] + f"{zlib.crc32(data):08x}.parquet"
    return name, data


def _journal(rng: random.Random, data: bytes) -> bytes:
    magic, sequence, length, _ = struct.unpack_from("<4sIII", data)
    schema = data[16 : 16 + length]
    if rng.random() < 0.3:
        fields = list(pa.ipc.read_schema(pa.py_buffer(schema)))
        at = rng.randrange(len(fields))
        fields[at] = pa.field(rng.choice((fields[at].name, "later")), rng.choice((pa.string(), pa.int8(), pa.null())))
        schema = pa.schema(fields).serialize().to_pybytes() if rng.random() < 0.8 else rng.randbytes(40)
    sequence = rng.choice((sequence, 2**32 - 1))
    frames, rest, seed = b"", data[16 + length :], zlib.crc32(schema)
    while len(rest) > 12:
        start, size, _ = struct.unpack_from("<4sII", rest)
        body, rest = bytearray(rest[12 : 12 + size]), rest[12 + size :]
        if rng.random() < 0.5:
            at = rng.choice((0, 1, 2, 3, 4, 5, rng.randrange(len(body))))
            body[at] = rng.randrange(256)
        frames += struct.pack("<4sII", start, len(body), zlib.crc32(bytes(body), seed)) + body
    return struct.pack("<4sIII", magic, sequence, len(schema), zlib.crc32(schema, sequence)) + schema + frames


def _dcp(rng: random.Random, data: bytes) -> bytes:
    metadata = copy.deepcopy(pickle.loads(data))
    holder: Any = metadata
    for _ in range(6):
        names = list(vars(holder)) if hasattr(holder, "__dict__") else []
        if isinstance(holder, dict) and holder:
            names = list(holder)
        elif isinstance(holder, list) and holder:
            names = list(range(len(holder)))
        if not names:
            break
        name = rng.choice(names)
        inner = holder[name] if isinstance(holder, (dict, list)) else getattr(holder, name)
        if rng.random() < 0.6 and (hasattr(inner, "__dict__") or (isinstance(inner, (dict, list)) and inner)):
            holder = inner
            continue
        if isinstance(holder, (dict, list)):
            holder[name] = hostile(rng)
        else:
            object.__setattr__(holder, name, hostile(rng))
        break
    return pickle.dumps(metadata)


def _torch(rng: random.Random, data: bytes) -> bytes:
    """The archive with one entry damaged, whose own checksum is right."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(out, "w") as target:
        names = source.namelist()
        chosen = rng.choice([name for name in names if name.endswith(".pkl")] if rng.random() < 0.8 else names)
        for name in names:
            content = source.read(name)
            target.writestr(name, by_bytes(rng, content) if name == chosen else content)
    return out.getvalue()
