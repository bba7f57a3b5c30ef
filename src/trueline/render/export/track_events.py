"""A trace as Perfetto reads it, written field by field: tracks, slices that nest, instants, and flows between slices.

The form: https://github.com/google/perfetto/blob/main/protos/perfetto/trace/perfetto_trace.proto. Field numbers stand
here with the names that they have there; the package ``perfetto`` is not needed.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import BinaryIO


class Fixed64(int):
    """An integer of eight bytes, whatever its value."""


Value = int | str | float | bytes
"""An integer is a varint, unless it is ``Fixed64``; a float is a double, a text or bytes are length-delimited."""

Fields = Sequence[tuple[int, Value]]
"""Field numbers with values."""

_VARINT, _FIXED64, _BYTES = 0, 1, 2
_PACKET = 1
_TIMESTAMP, _SEQUENCE, _CLOCK_SNAPSHOT, _TRACK_EVENT, _TRACK_DESCRIPTOR = 8, 10, 6, 11, 60
_UUID, _NAME, _PROCESS, _PARENT, _CHILD_ORDERING, _ORDER_RANK = 1, 2, 3, 5, 11, 12
_PID, _PROCESS_NAME = 1, 6
_EXPLICIT = 3
_TYPE, _TRACK, _CATEGORY, _EVENT_NAME, _ANNOTATION, _FLOW = 9, 11, 22, 23, 4, 47
_ANNOTATION_NAME, _ANNOTATION_INT, _ANNOTATION_DOUBLE, _ANNOTATION_TEXT = 10, 4, 5, 6
_BEGIN, _END, _INSTANT = 1, 2, 3
_REALTIME, _BOOTTIME = 1, 6


class TraceWriter:
    """Writes packets to ``file``. A track is known by the number that ``track`` or ``process`` returns; events of one
    track are to come in their order in time.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._num_tracks = 0

    def clock(self, unix_ns: int) -> None:
        """Say that timestamps are Unix times: Perfetto's own clock and that of the day are one."""
        clocks = [(1, message([(1, clock), (2, unix_ns)])) for clock in (_BOOTTIME, _REALTIME)]
        self._packet([(_CLOCK_SNAPSHOT, message([*clocks, (2, _REALTIME)]))])

    def process(self, pid: int, name: str) -> int:
        """A group of tracks. ``pid`` is above 0: that is the idle process of a machine."""
        return self._describe(name, [(_PROCESS, message([(_PID, pid), (_PROCESS_NAME, name)]))])

    def track(self, name: str, *, parent: int | None = None) -> int:
        """A track, below those that its ``parent`` has already."""
        return self._describe(name, [] if parent is None else [(_PARENT, parent)])

    def begin(
        self,
        track: int,
        unix_ns: int,
        name: str,
        *,
        categories: Sequence[str],
        about: Mapping[str, int | str | float] | None = None,
        flows: Sequence[int] = (),
    ) -> None:
        """A slice begins. ``flows`` are numbers that it has in common with slices that arrows lead to or from."""
        self._event(track, unix_ns, [(_TYPE, _BEGIN), *_described(name, categories, about or {}, flows)])

    def end(self, track: int, unix_ns: int) -> None:
        """The slice of this track that began last ends."""
        self._event(track, unix_ns, [(_TYPE, _END)])

    def instant(
        self, track: int, unix_ns: int, name: str, *, categories: Sequence[str], about: Mapping[str, int | str | float]
    ) -> None:
        self._event(track, unix_ns, [(_TYPE, _INSTANT), *_described(name, categories, about, ())])

    def _describe(self, name: str, fields: Fields) -> int:
        self._num_tracks += 1
        of_all = [(_UUID, self._num_tracks), (_NAME, name), (_ORDER_RANK, self._num_tracks)]
        self._packet([(_TRACK_DESCRIPTOR, message([*of_all, (_CHILD_ORDERING, _EXPLICIT), *fields]))])
        return self._num_tracks

    def _event(self, track: int, unix_ns: int, fields: Fields) -> None:
        self._packet([(_TIMESTAMP, unix_ns), (_TRACK_EVENT, message([(_TRACK, track), *fields]))])

    def _packet(self, fields: Fields) -> None:
        self._file.write(message([(_PACKET, message([*fields, (_SEQUENCE, 1)]))]))


def _described(
    name: str, categories: Sequence[str], about: Mapping[str, int | str | float], flows: Sequence[int]
) -> list[tuple[int, Value]]:
    fields: list[tuple[int, Value]] = [(_EVENT_NAME, name)]
    fields += [(_CATEGORY, category) for category in categories]
    for key, value in about.items():
        kind = {int: _ANNOTATION_INT, float: _ANNOTATION_DOUBLE}.get(type(value), _ANNOTATION_TEXT)
        fields.append((_ANNOTATION, message([(_ANNOTATION_NAME, key), (kind, value)])))
    return [*fields, *((_FLOW, Fixed64(flow)) for flow in flows)]


def message(fields: Fields) -> bytes:
    """A protobuf message."""
    return b"".join(_field(number, value) for number, value in fields)


def _field(number: int, value: Value) -> bytes:
    if isinstance(value, Fixed64):
        return _varint(number << 3 | _FIXED64) + struct.pack("<Q", value)
    if isinstance(value, int):
        return _varint(number << 3 | _VARINT) + _varint(value)
    if isinstance(value, float):
        return _varint(number << 3 | _FIXED64) + struct.pack("<d", value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | _BYTES) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    """Of a negative one, its two's complement in 64 bits, as protobuf has it."""
    value &= (1 << 64) - 1
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)
