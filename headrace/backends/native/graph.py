"""From a recording to tapes with memory: types, buffers, and the two that a step replays.

The forward tape ends with the rows that sample. Their logits are a tape of their own, replayed for a chunk of rows at a
time, so that there is never an array of all samples by the whole vocabulary.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.backends.native.extension import native
from headrace.backends.native.memory import CACHE_LINE, LOGIT_ROWS, NativeMemory, num_partials
from headrace.backends.native.recorder import Entry, RecordedStep, Recorder, Value, View
from headrace.errors import InvariantError
from headrace.model.ops import Activation, AttentionSpec, Ops, Step, StepInputs, StepShape

Float32 = NDArray[np.float32]

BFLOAT16, INT8 = native.Type.bfloat16, native.Type.int8
# Ops that can write bfloat16, if that is how their result is multiplied.
_ROUNDING = {"norm", "attention", "gated", "scale"}
_PRODUCTS = {"linear", "gated"}


@dataclass(frozen=True)
class Capacity:
    """How many rows of each kind the buffers hold."""

    tokens: int
    samples: int
    chunk: int

    def of(self, rows: native.Rows) -> int:
        return {native.Rows.tokens: self.tokens, native.Rows.samples: self.samples}.get(rows, self.chunk)


# ---- types -----------------------------------------------------------------------------------------------------------


def choose_types(entries: Sequence[Entry], *, rounds_rows: bool) -> list[Entry]:
    """Decide which values are what products want. Bfloat16: those that are only multiplied by bfloat16 matrices, where
    kernels want that. Mixed and rounded to bytes: norms that are only multiplied by matrices whose inputs are mixed.

    A product whose rows come from elsewhere gets an op in front that makes them so. Returns the entries with those.
    """
    uses = _Uses(entries)
    result: list[Entry] = []
    ready: dict[tuple[View, native.Type], View] = {}  # several pieces of a matrix are multiplied by the same rows

    def put_in_front(entry: Entry, op: str, type: native.Type, width: int, **arguments: float) -> None:
        x = entry.reads["x"]
        if (x, type) not in ready:
            rounded = Value(x.rows, width, type)
            result.append(Entry(op, {"x": x}, rounded, {"rows": x.rows, "width": x.width} | arguments))
            ready[x, type] = View(rounded, 0, x.width)
        entry.reads["x"] = ready[x, type]

    for entry in entries:
        if rounds_rows and entry.out is not None and uses.is_rounded(entry.out):
            entry.out.type = BFLOAT16
        if entry.op == "norm" and entry.out is not None and uses.is_only_mixed(entry.out):
            entry.out.type, entry.out.width = INT8, native.mixed_row_bytes(entry.out.width)
        if entry.op in _PRODUCTS:
            x = entry.reads["x"]
            if entry.arguments["w"].is_mixed and x.value.type != INT8:
                put_in_front(entry, "mix", INT8, native.mixed_row_bytes(x.width))
            elif rounds_rows and _is_multiplied(entry, "x") and x.value.type != BFLOAT16:
                put_in_front(entry, "scale", BFLOAT16, x.width, factor=1.0, softcap=0.0)
        result.append(entry)
    return result


def _is_multiplied(entry: Entry, name: str) -> bool:
    return entry.op in _PRODUCTS and name == "x" and bool(entry.arguments["w"].product == BFLOAT16)


class _Uses:
    """Who makes a value and who reads it."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._producers = {entry.out: entry for entry in entries if entry.out is not None}
        self._readers: dict[Value, list[tuple[Entry, str]]] = {}
        for entry in entries:
            for name, view in entry.reads.items():
                self._readers.setdefault(view.value, []).append((entry, name))

    def is_rounded(self, value: Value) -> bool:
        producer = self._producers.get(value)
        if producer is None:
            return False
        if producer.op == "take_rows":
            return self.is_rounded(producer.reads["x"].value)
        return producer.op in _ROUNDING and self._is_only_multiplied(value)

    def is_only_mixed(self, value: Value) -> bool:
        readers = self._readers.get(value, [])
        return bool(readers) and all(
            entry.op in _PRODUCTS
            and name == "x"
            and entry.reads[name] == View(value, 0, value.width)
            and bool(entry.arguments["w"].is_mixed)
            for entry, name in readers
        )

    def _is_only_multiplied(self, value: Value) -> bool:
        readers = self._readers.get(value, [])
        return bool(readers) and all(
            self._is_only_multiplied(entry.out)
            if entry.op == "take_rows" and entry.out
            else _is_multiplied(entry, name)
            for entry, name in readers
        )


# ---- memory ----------------------------------------------------------------------------------------------------------


def stride_of(value: Value) -> int:
    """Elements from one row to the next: whole panels, whole cache lines, and not a large power of two, or the rows of
    a tile would compete for the same places of the cache."""
    size = _element_size(value)
    stride = -(-value.width // native.PANEL) * native.PANEL
    stride = -(-stride * size // CACHE_LINE) * CACHE_LINE // size
    return stride + CACHE_LINE // size if stride * size % 1024 == 0 else stride


def _element_size(value: Value) -> int:
    return {BFLOAT16: 2, INT8: 1}.get(value.type, 4)


class Buffers:
    """Memory for values. A buffer goes to another value when the last op that reads the first is behind."""

    def __init__(self, entries: Sequence[Entry], capacity: Capacity, kept: Sequence[Value]) -> None:
        self._addresses: dict[Value, int] = {}
        self.memory: list[native.Buffer] = []
        last_use = {view.value: i for i, entry in enumerate(entries) for view in entry.reads.values()}
        free: list[native.Buffer] = []
        held: dict[Value, native.Buffer] = {}
        for i, entry in enumerate(entries):
            if entry.out is not None and entry.out not in held:
                held[entry.out] = self._take(free, _size_of(entry.out, capacity))
                self._addresses[entry.out] = held[entry.out].address
            done = {view.value for view in entry.reads.values() if last_use[view.value] == i}
            free += [held.pop(value) for value in done if value in held and value not in kept]

    def _take(self, free: list[native.Buffer], size: int) -> native.Buffer:
        fitting = [buffer for buffer in free if size <= buffer.size <= 2 * size]
        if fitting:
            best = min(fitting, key=lambda buffer: buffer.size)
            free.remove(best)
            return best
        self.memory.append(native.Buffer(size))
        return self.memory[-1]

    def put(self, value: Value, address: int) -> None:
        """Memory that somebody else owns."""
        self._addresses[value] = address

    def address(self, view: View) -> int:
        return self._addresses[view.value] + view.offset * _element_size(view.value)

    def rows(self, view: View, num_rows: int) -> Float32:
        """[num_rows, width] of a float32 value, as the memory that it is."""
        size = num_rows * stride_of(view.value)
        if not size:
            return np.empty((0, view.width), np.float32)
        floats = np.ctypeslib.as_array((ctypes.c_float * size).from_address(self.address(view)))
        return floats.reshape(num_rows, -1)[:, : view.width]


def _size_of(value: Value, capacity: Capacity) -> int:
    # and a cache line more, as kernels read whole vectors
    return max(1, capacity.of(value.rows)) * stride_of(value) * _element_size(value) + CACHE_LINE


class AttentionMemory:
    """Partial results of attention: one place serves all layers, which come one after another."""

    def __init__(self, layers: Sequence[AttentionSpec], num_tokens: int, max_model_len: int, num_threads: int) -> None:
        places = num_partials(max_model_len, num_threads)
        floats = max(
            (layer.num_heads * (-(-layer.head_dim // native.PANEL) + 1) * native.PANEL for layer in layers), default=0
        )
        self.partials = native.Buffer(4 * places * floats)
        self.remaining = native.Buffer(4 * num_tokens * max((layer.num_kv_heads for layer in layers), default=0))


def write_tape(tape: native.Tape, entries: Sequence[Entry], buffers: Buffers, attention: AttentionMemory) -> None:
    for entry in entries:
        arguments: dict[str, Any] = dict(entry.arguments)
        for name, view in entry.reads.items():
            arguments[name] = buffers.address(view)
            arguments[name + "_stride"] = stride_of(view.value)
        if entry.op in _PRODUCTS:
            arguments["x_type"] = entry.reads["x"].value.type
        if entry.op == "attention":
            arguments |= {"partials": attention.partials.address, "remaining": attention.remaining.address}
        if entry.out is not None:
            arguments |= _destination(entry, entry.out, buffers)
        if entry.op == "take_rows":
            arguments["x_stride"] *= _element_size(entry.reads["x"].value)
        getattr(tape, entry.op)(**arguments)


def _destination(entry: Entry, out: Value, buffers: Buffers) -> dict[str, Any]:
    address, stride = buffers.address(View(out, entry.offset, out.width)), stride_of(out)
    if entry.op == "take_rows":  # moves bytes
        return {"out": address, "out_stride": stride * _element_size(out), "row_bytes": out.width * _element_size(out)}
    types = {"out_type": out.type} if entry.op in _ROUNDING else {}
    return {"out": address, "out_stride": stride} | types


# ---- the graph -------------------------------------------------------------------------------------------------------


class Logits:
    """The logits of a step's samples, computed when they are asked for, some rows at a time."""

    def __init__(self, head: native.Tape, chunk: Float32, num_samples: int) -> None:
        self._head = head
        self._chunk = chunk  # [LOGIT_ROWS, vocab], a view of the tape's buffer
        self.num_samples = num_samples

    @property
    def vocab_size(self) -> int:
        return int(self._chunk.shape[1])

    def chunks(self) -> list[tuple[int, int]]:
        """Ranges of samples that are computed together."""
        size = len(self._chunk)
        return [(first, min(first + size, self.num_samples)) for first in range(0, self.num_samples, size)]

    def compute(self, first: int, last: int, batch: native.SampleBatch | None = None) -> Float32:
        """[last - first, vocab], valid until the next call. With a batch, tokens are chosen too."""
        self._head.replay_samples(first, last - first, batch)
        return self._chunk[: last - first]

    def __array__(self, dtype: object = None, copy: object = None) -> Float32:
        parts = [self.compute(first, last).copy() for first, last in self.chunks()]
        return np.concatenate(parts) if parts else np.empty((0, self._chunk.shape[1]), np.float32)


class NativeGraph:
    """A program's forward, recorded."""

    def __init__(
        self,
        forward: Callable[[Ops, Step], Activation],
        layers: Sequence[AttentionSpec],
        shape: StepShape,
        memory: NativeMemory,
        pool: native.Pool,
        kernels: str,
    ) -> None:
        recorder = Recorder(memory)
        logits = forward(recorder, RecordedStep())
        entries = choose_types(recorder.entries, rounds_rows=native.rounds_rows(kernels))
        forward_entries, head_entries = _cut_off_head(entries)
        self._capacity = capacity = Capacity(
            shape.max_num_tokens, shape.max_num_samples, min(LOGIT_ROWS, shape.max_num_samples)
        )
        self._attention = AttentionMemory(layers, shape.max_num_tokens, shape.max_model_len, pool.num_threads)
        self._buffers = Buffers(entries, capacity, kept=[view.value for view in head_entries[0].reads.values()])
        self._tape = native.Tape(pool, kernels)
        write_tape(self._tape, forward_entries, self._buffers, self._attention)
        self._head = native.Tape(pool, kernels)
        write_tape(self._head, head_entries, self._buffers, self._attention)
        self._head.sample(logits=self._buffers.address(logits), stride=stride_of(logits.value), vocab=logits.width)
        self._chunk = self._buffers.rows(logits, capacity.chunk)

    @property
    def num_ops(self) -> int:
        """Of a forward, without its logits: how far the progress counter moves with a step."""
        return int(self._tape.num_ops)

    def replay(self, inputs: StepInputs) -> Logits:
        if len(inputs.token_ids) > self._capacity.tokens or len(inputs.sample_rows) > self._capacity.samples:
            raise InvariantError("a step is larger than the buffers that it was promised to fit")
        self._tape.replay(
            inputs.token_ids,
            inputs.positions,
            inputs.slots,
            inputs.query_starts,
            inputs.context_lens,
            np.ascontiguousarray(inputs.block_tables),
            inputs.sample_rows,
        )
        return Logits(self._head, self._chunk, len(inputs.sample_rows))


def _cut_off_head(entries: Sequence[Entry]) -> tuple[list[Entry], list[Entry]]:
    """The last product and what follows it are the head: their rows become a chunk of the samples."""
    last = max(i for i, entry in enumerate(entries) if entry.op == "linear")
    for entry in entries[last:]:
        entry.arguments["rows"] = native.Rows.chunk
        if entry.out is not None:
            entry.out.rows = native.Rows.chunk
    return list(entries[:last]), list(entries[last:])
