"""The values of a recorded step in one safetensors file: written while they come, read one at a time.

File: length of the header (little-endian uint64), the header in JSON padded with spaces, then the bytes of the values
without gaps (https://huggingface.co/docs/safetensors). The values' XXH3 hashes are in its ``__metadata__``, as JSON,
with one of these and all entries.
Values come before it is known how long the header gets, so room for it is reserved in front.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from trueline.schema.columns.records import TensorRecord
from trueline.schema.descriptor import Descriptor
from trueline.schema.errors import InputError, RunError
from trueline.schema.text.documents import parsed
from trueline.schema.text.reading import shortened, shown, why
from trueline.store.file_names import TEMPORARY_SUFFIX
from trueline.store.log.durable import write_at

RESERVE_BYTES = 256 * 2**10
_LENGTH = struct.Struct("<Q")
_ALIGNMENT = 4096  # of a page: values are mapped from the file
_MOVED_AT_ONCE = 8 * 2**20
_MAX_HEADER_BYTES = 100_000_000
_HASHES = "trueline.xxh3_64"
_SEAL = "trueline.header"

NUMPY_TYPES: dict[str, str] = {
    "BOOL": "bool", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8",
    "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8",
    "BF16": "<u2", "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1",
}  # fmt: skip
"""NumPy's dtype by safetensors'; those that NumPy lacks are read as unsigned integers of their bits."""


class DamagedTensors(Exception):
    """A file is not a whole safetensors file, or a value in it is not what was written."""


@dataclass(frozen=True, eq=False)
class TensorValue:
    """A stored value. ``dtype`` as safetensors spells it; ``data`` has ``shape``, or [] where the dtype is unknown.

    ``data`` of BF16 and of 8-bit floats holds the bits as unsigned integers.
    """

    dtype: str
    shape: tuple[int, ...]
    data: NDArray[Any]

    def shaped(self, shape: tuple[int, ...]) -> TensorValue:
        """The value in another shape of as many elements, as a row that is ``same_as`` another may have it; itself
        where only some of its rows were stored.
        """
        if math.prod(shape) != self.data.size or self.data.size != math.prod(self.shape):
            return self
        return TensorValue(self.dtype, shape, self.data.reshape(shape))


def check_tensor(record: TensorRecord) -> None:
    """Raise ``InputError`` where the bytes of a value are not those of its dtype and shape."""
    if record.dtype not in NUMPY_TYPES:
        names = ", ".join(NUMPY_TYPES)
        raise InputError(f"Tensor '{record.key}' has dtype '{record.dtype}', which cannot be stored. Known: {names}.")
    expected = math.prod(record.shape) * np.dtype(NUMPY_TYPES[record.dtype]).itemsize
    if record.data.nbytes != expected:
        raise InputError(
            f"Tensor '{record.key}' of {record.dtype} {list(record.shape)} has {record.data.nbytes} bytes, "
            f"expected {expected}."
        )


class TensorFile:
    """The file of one step while values come in, under a temporary name. Every failure is an ``OSError``."""

    def __init__(self, path: str, *, reserve_bytes: int = RESERVE_BYTES) -> None:
        self._path = path
        self._temporary = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}{TEMPORARY_SUFFIX}")
        self._file = Descriptor(os.open(self._temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666))
        self._start = _LENGTH.size + reserve_bytes
        self._size_bytes = 0
        self._entries: dict[str, Any] = {}
        self._hashes: dict[str, str] = {}

    def add(self, record: TensorRecord) -> None:
        """Append a value. Raises ``InputError`` for a key that is there already."""
        if record.key in self._entries:
            raise InputError(f"Tensor '{record.key}' came twice in step {record.step}. Expected distinct keys.")
        begin, end = self._size_bytes, self._size_bytes + record.data.nbytes
        if end > begin:
            write_at(self._file.number, record.data, self._start + begin)
        self._hashes[record.key] = xxhash.xxh3_64_hexdigest(record.data)
        self._entries[record.key] = {
            "dtype": record.dtype,
            "shape": list(record.shape),
            "data_offsets": [begin, end],
        }
        self._size_bytes = end

    def finish(self, path: str | None = None) -> int:
        """Write the header and give the file its name, or ``path``; the bytes that the next file should reserve.

        The kernel writes the values when it likes: waiting for hundreds of megabytes at every step would hold up
        training. Until the file is synced a power cut may leave one that is not what was written, which its hashes
        show; a kill may not.
        """
        hashes = json.dumps(self._hashes)
        metadata = {_HASHES: hashes, _SEAL: _seal(hashes, self._entries)}
        header = json.dumps({"__metadata__": metadata} | self._entries).encode()
        self._make_room(len(header))
        header += b" " * (self._start - _LENGTH.size - len(header))
        write_at(self._file.number, _LENGTH.pack(len(header)) + header, 0)
        os.replace(self._temporary, path or self._path)
        self._close()
        return _room_for(len(header.rstrip()))

    def drop(self) -> None:
        """Remove what there is of the file."""
        self._close()
        with contextlib.suppress(OSError):
            os.remove(self._temporary)

    def _close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()

    def _make_room(self, header_bytes: int) -> None:
        """Move the values back where the header needs more than was reserved; the last bytes go first."""
        missing = header_bytes - (self._start - _LENGTH.size)
        if missing <= 0:
            return
        shift = -(-missing // _ALIGNMENT) * _ALIGNMENT
        end = self._start + self._size_bytes
        while end > self._start:
            begin = max(self._start, end - _MOVED_AT_ONCE)
            write_at(self._file.number, os.pread(self._file.number, end - begin, begin), begin + shift)
            end = begin
        self._start += shift


class TensorContents:
    """The values of a file. ``fetch(begin, end)`` gives bytes of it; its header is read once.

    Raises ``DamagedTensors`` where the file is not whole.
    """

    def __init__(self, fetch: Callable[[int, int], Any], size_bytes: int) -> None:
        self._fetch = fetch
        self._header, self._start = read_header(fetch, size_bytes)
        self._hashes = _hashes(self._header)

    @classmethod
    def of_file(cls, path: str | os.PathLike[str]) -> TensorContents:
        """Those of a local file, mapped into memory. Raises ``OSError`` and ``ValueError`` (it is empty) besides."""
        content = np.memmap(path, dtype=np.uint8, mode="r")
        return cls(lambda begin, end: content[begin:end], content.size)

    @property
    def keys(self) -> list[str]:
        """Of all values."""
        return [key for key in self._header if key != "__metadata__"]

    @property
    def sealed(self) -> bool:
        """True if each value, and the header, has a checksum."""
        return _SEAL in self._header.get("__metadata__", {}) and set(self.keys) <= set(self._hashes)

    def value(self, key: str) -> TensorValue:
        """One of them. Raises ``KeyError`` where there is none such, ``DamagedTensors``."""
        entry = self._header[key]
        try:
            begin, end = entry["data_offsets"]
            dtype, shape = str(entry["dtype"]), tuple(map(int, entry["shape"]))
            bits = np.frombuffer(self._fetch(self._start + begin, self._start + end), dtype=np.uint8)
            data = bits.view(NUMPY_TYPES[dtype]).reshape(shape) if dtype in NUMPY_TYPES else bits
        except (KeyError, TypeError, ValueError):
            raise DamagedTensors(f"the header's entry of '{key}' is damaged: {entry!r}") from None
        expected = self._hashes.get(key)
        if expected is not None and xxhash.xxh3_64_hexdigest(bits.data) != expected:
            raise DamagedTensors(f"the {len(bits)} bytes of '{key}' are not those that were written")
        return TensorValue(dtype, shape, data)


@contextlib.contextmanager
def explained(name: str, key: str) -> Iterator[None]:
    """Turn what reading the value ``key`` of the file ``name`` raises into ``RunError``."""
    try:
        yield
    except (DamagedTensors, OSError, ValueError) as error:
        raise RunError(f"'{name}' cannot be read as tensors: {error}.") from None
    except KeyError:
        raise RunError(f"'{name}' holds no tensor '{key}'.") from None


def read_value(fetch: Callable[[int, int], Any], size_bytes: int, key: str) -> TensorValue:
    """The value ``key`` of a file; see ``TensorContents``. Raises ``DamagedTensors``, ``KeyError``."""
    return TensorContents(fetch, size_bytes).value(key)


def read_header(fetch: Callable[[int, int], Any], size_bytes: int) -> tuple[dict[str, Any], int]:
    """The header and where the values start. Raises ``DamagedTensors`` where the file is not whole."""
    if size_bytes < _LENGTH.size:
        raise DamagedTensors(f"its {size_bytes} bytes are too few for a header")
    (length,) = _LENGTH.unpack(bytes(fetch(0, _LENGTH.size)))
    start = _LENGTH.size + length
    if not 2 <= length <= min(_MAX_HEADER_BYTES, size_bytes - _LENGTH.size):
        raise DamagedTensors(f"its header of {length} bytes does not fit into its {size_bytes} bytes")
    try:
        header = parsed(bytes(fetch(_LENGTH.size, start)))
        entries = {key: entry for key, entry in header.items() if key != "__metadata__"}
        spans = sorted(_span(key, entry) for key, entry in entries.items())
        _require_sealed(header.get("__metadata__", {}), entries)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedTensors(f"its header is damaged ({why(error)})") from None
    end = 0
    for begin, after in spans:
        if begin != end:
            raise DamagedTensors(f"its header has values at bytes {begin} to {after} behind one that ends at {end}")
        end = after
    if start + end != size_bytes:
        raise DamagedTensors(f"it has {size_bytes} bytes where its header says {start + end}")
    return header, start


def _span(key: str, entry: Any) -> tuple[int, int]:
    """The bytes of a value, which are as many as its dtype and shape need. Raises as an entry that is none does."""
    begin, end = entry["data_offsets"]
    dtype, shape = entry["dtype"], entry["shape"]
    if not all(type(number) is int and number >= 0 for number in (begin, end, *shape)) or not isinstance(dtype, str):
        raise ValueError(f"the entry of '{shortened(key)}' is {shown(entry)}")
    if dtype in NUMPY_TYPES and end - begin != math.prod(shape) * np.dtype(NUMPY_TYPES[dtype]).itemsize:
        raise ValueError(f"{dtype} {shown(shape)} does not have the {end - begin} bytes of '{shortened(key)}'")
    return begin, end


def _require_sealed(metadata: dict[str, str], entries: dict[str, Any]) -> None:
    """Raise ``ValueError`` where what Trueline says of values is not what it wrote. Files of others have no seal, and
    those of older versions none of the header.
    """
    unknown = [key for key in metadata if key not in (_HASHES, _SEAL)]
    if _HASHES not in metadata and _SEAL not in metadata:
        return
    if unknown or (_SEAL in metadata and metadata[_SEAL] != _seal(metadata.get(_HASHES, ""), entries)):
        raise ValueError("it is not what was written")


def _seal(hashes: str, entries: dict[str, Any]) -> str:
    """The XXH3 hash of names, dtypes, shapes and places of all values, and of their hashes."""
    return xxhash.xxh3_64_hexdigest(json.dumps([hashes, entries], sort_keys=True).encode())


def _hashes(header: dict[str, Any]) -> dict[str, str]:
    try:
        return parsed(header.get("__metadata__", {}).get(_HASHES, "{}"))
    except (ValueError, TypeError, AttributeError):
        raise DamagedTensors("its header is damaged") from None


def _room_for(header_bytes: int) -> int:
    """Bytes to reserve where the step before took so many: a quarter more, so that values start aligned."""
    return -(-header_bytes * 5 // 4 // _ALIGNMENT) * _ALIGNMENT + _ALIGNMENT - _LENGTH.size
