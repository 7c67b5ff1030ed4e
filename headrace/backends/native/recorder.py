"""What a program said, written down: ops on values that have no memory yet. `graph.py` turns it into a tape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.backends.native.extension import native
from headrace.backends.native.memory import NativeMatrix, NativeMemory, NativeVector, RopeTable, whole_panels
from headrace.errors import EngineError
from headrace.model.ops import ActivationName, AttentionSpec, Step

TOKEN_IDS, SAMPLE_ROWS = "token ids", "sample rows"  # what a program gets from its step, and only passes on


@dataclass(eq=False)
class Value:
    """Rows that an op computes: how many, how wide. `type` is decided when all that reads it is known."""

    rows: native.Rows
    width: int
    type: native.Type = native.Type.float32


@dataclass(frozen=True)
class View:
    """Columns `offset` to `offset + width` of a value, still to be rotated where `rotation` is set: an activation."""

    value: Value
    offset: int
    width: int
    rotation: RopeTable | None = None

    @property
    def rows(self) -> native.Rows:
        return self.value.rows


@dataclass(eq=False)
class Entry:
    """One op: a method of `native.Tape`, the views it reads by argument name, and the rest of its arguments."""

    op: str
    reads: dict[str, View]
    out: Value | None
    arguments: dict[str, Any] = field(default_factory=dict)
    offset: int = 0  # the first column of `out` that it writes


@dataclass(frozen=True)
class RecordedStep:
    """The step of a recording: two words."""

    token_ids: str = TOKEN_IDS
    sample_rows: str = SAMPLE_ROWS


class Recorder:
    """`Ops` that write down. Fusions: rotation into the KV write and into attention, and of single tokens the KV write
    into attention."""

    def __init__(self, memory: NativeMemory) -> None:
        self._memory = memory
        self.entries: list[Entry] = []

    def value(self, rows: native.Rows, width: int) -> View:
        return View(Value(rows, width), 0, width)

    def _emit(self, op: str, out: View | None, reads: dict[str, View], **arguments: Any) -> None:
        plain = {name: self.settle(view) for name, view in reads.items()}
        offset = 0 if out is None else out.offset
        self.entries.append(Entry(op, plain, None if out is None else out.value, arguments, offset))

    def settle(self, view: View) -> View:
        """The view with nothing left to be done: rotated, where it was only marked for that."""
        if view.rotation is None:
            return view
        out = self.value(view.rows, view.width)
        rotation = view.rotation.rotation
        num_heads = view.width // (2 * view.rotation.cos.shape[1])
        reads = {"x": replace(view, rotation=None)}
        self.entries.append(
            Entry("rope", reads, out.value, {"rows": view.rows, "rotation": rotation, "num_heads": num_heads})
        )
        return out

    def embed(self, token_ids: str, table: NativeMatrix) -> View:
        out = self.value(native.Rows.tokens, table.whole.in_)
        self._emit("embed", out, {}, table=table.whole)
        return out

    def rms_norm(self, x: View, weight: NativeVector, eps: float) -> View:
        return self._norm({"x": x}, weight, eps, residual=0, residual_stride=0)

    def rms_residual(self, x: View, weight: NativeVector, eps: float, residual: View) -> View:
        return self._norm({"x": x, "residual": residual}, weight, eps)

    def _norm(self, reads: dict[str, View], weight: NativeVector, eps: float, **residual: int) -> View:
        x, size = reads["x"], len(weight.values)
        out = self.value(x.rows, x.width)
        self._emit(
            "norm", out, reads, rows=x.rows, weight=weight.address, width=size, runs=x.width // size, eps=eps,
            **residual,
        )  # fmt: skip
        return out

    def linear(self, x: View, weight: NativeMatrix) -> View:
        last = weight.pieces[-1]
        out = replace(self.value(x.rows, last.first + whole_panels(last.out)), width=weight.out)
        for (
            piece
        ) in weight.pieces:  # each writes whole panels: a few columns, too, of the next one's, which comes after it
            part = replace(out, offset=piece.first)
            self._emit("linear", part, {"x": x}, rows=x.rows, w=piece.matrix, residual=0, residual_stride=0)
        return out

    def linear_residual(self, x: View, weight: NativeMatrix, residual: View) -> View:
        out = self.value(x.rows, weight.out)
        self._emit("linear", out, {"x": x, "residual": residual}, rows=x.rows, w=weight.whole)
        return out

    def gated_mlp(self, x: View, gate_up: NativeMatrix, activation: ActivationName) -> View:
        out = self.value(x.rows, gate_up.out)
        kind = getattr(native.Activation, activation)
        self._emit("gated", out, {"x": x}, rows=x.rows, w=gate_up.whole, activation=kind)
        return out

    def split(self, x: View, widths: Sequence[int]) -> tuple[View, ...]:
        pieces, offset = [], x.offset
        for width in widths:
            pieces.append(View(x.value, offset, width))
            offset += width
        return tuple(pieces)

    def rope(self, x: View, table: RopeTable, step: Step) -> View:
        return replace(self.settle(x), rotation=table)

    def paged_attention(self, q: View, k: View, v: View, attention: AttentionSpec, step: Step) -> View:
        cache = self._memory.kv_caches.get(attention.layer)
        if cache is None:
            raise EngineError(f"Layer {attention.layer} has no KV cache.")
        written = {"k": replace(k, rotation=None), "v": v}
        self._emit("kv_write", None, written, rotation=_rotation(k), cache=cache)
        out = self.value(q.rows, attention.num_heads * attention.head_dim)
        self._emit(
            "attention", out, {"q": replace(q, rotation=None)} | written, rotation=_rotation(q),
            k_rotation=_rotation(k), cache=cache, num_heads=attention.num_heads, scale=attention.scale,
            softcap=attention.softcap or 0.0, window=attention.window or 0,
        )  # fmt: skip
        return out

    def take_rows(self, x: View, rows: str) -> View:
        out = self.value(native.Rows.samples, x.width)
        self._emit("take_rows", out, {"x": x})
        return out

    def scale(self, x: View, factor: float) -> View:
        return self._scale(x, factor=factor, softcap=0.0)

    def softcap(self, x: View, cap: float) -> View:
        return self._scale(x, factor=1.0, softcap=cap)

    def _scale(self, x: View, *, factor: float, softcap: float) -> View:
        out = self.value(x.rows, x.width)
        self._emit("scale", out, {"x": x}, rows=x.rows, factor=factor, softcap=softcap, width=x.width)
        return out


def _rotation(view: View) -> native.Rotation:
    return native.Rotation() if view.rotation is None else view.rotation.rotation
