"""Kernels of the native CPU backend."""

from collections.abc import Sequence
import enum
from typing import Annotated

import numpy
from numpy.typing import NDArray


PANEL: int = 16

GROUP: int = 16

EXPANDED_PANELS: int = 4

FEW_ROWS: int = 3

MAX_MIXED: int = 65536

SPLIT: int = 256

MAX_HEAD_DIM: int = 256

def max_tile_rows() -> int:
    """Rows of a tile of any product, at most."""

def instruction_sets() -> list[str]:
    """Names of the kernels that this processor can run, the quickest first."""

def rounds_rows(name: str) -> bool:
    """
    Whether these kernels round rows to bfloat16 before they meet bfloat16 weights.
    """

def has_tiles(name: str) -> bool:
    """
    Whether these kernels multiply bfloat16 on tiles, beside which nothing else is worth it.
    """

def mixed_row_bytes(width: int) -> int:
    """Of a row that is mixed and rounded, with what is behind its quants."""

def max_partials(max_model_len: int, num_threads: int) -> int:
    """Places for partial results of attention that a step may need."""

class Type(enum.Enum):
    float32 = 0

    bfloat16 = 1

    uint4 = 2

    uint8 = 3

    int8 = 4

    fp8 = 5

class Stored(enum.Enum):
    float32 = 0

    bfloat16 = 1

    float16 = 2

    q4_0 = 3

    q4_1 = 4

    q5_0 = 5

    q5_1 = 6

    q8_0 = 7

    q4_k = 8

    q5_k = 9

    q6_k = 10

class Rows(enum.Enum):
    tokens = 0

    samples = 1

    chunk = 2

class Activation(enum.Enum):
    silu = 0

    gelu_tanh = 1

class Buffer:
    def __init__(self, size: int) -> None: ...

    @property
    def address(self) -> int: ...

    @property
    def size(self) -> int: ...

    def array(self) -> NDArray[numpy.uint8]:
        """Its bytes as an array, which keeps it alive."""

class Populator:
    def __init__(self, buffers: Sequence[Buffer]) -> None:
        """Touches all pages of these buffers, soon and without hurry."""

    @property
    def is_done(self) -> bool: ...

class Matrix:
    def __init__(self, panels: int, bias: int, out: int, in_: int, type: Type, group: int = 0, zero: int = 0, wide_scales: bool = False, product: Type = Type.uint8, row_bytes: int = 1) -> None:
        """
        The last five are of a matrix of few bits: inputs that share a scale (all of them: they are mixed,
        kernels/hadamard.h), the quant that stands for 0 or -1
        where groups have minimums, whether scales are float32 and not float16, and what products are made of:
        uint8 for rows that are rounded to integers of so many bytes, else numbers that quants become.
        """

    @property
    def out(self) -> int: ...

    @property
    def in_(self) -> int: ...

    @property
    def type(self) -> Type: ...

    @property
    def is_mixed(self) -> bool: ...

    @property
    def product(self) -> Type: ...

    @property
    def num_words(self) -> int: ...

    def pack(self, rows: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', writable=False)], stored: Stored, num_rows: int, first: int, panel_step: int = 1, panel_offset: int = 0) -> None: ...

    def pack_groups(self, quants: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', writable=False)], scales: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', writable=False)], minimums: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', writable=False)], num_rows: int, first: int, panel_step: int = 1, panel_offset: int = 0) -> None:
        """
        Rows [num_rows, in] of quants, and bytes of the scales and minimums [num_rows, groups].
        """

class KVCache:
    def __init__(self, data: int, type: Type, num_kv_heads: int, head_dim: int, block_size: int, arithmetic: Type) -> None:
        """
        `arithmetic` is bfloat16 where rows may be rounded before they meet keys and values, else float32.
        """

    @property
    def group_bytes(self) -> int:
        """Bytes of 16 slots, of all heads."""

class Rotation:
    def __init__(self, cos: int = 0, sin: int = 0, dim: int = 0) -> None: ...

class Pool:
    def __init__(self, num_threads: int, progress: int) -> None: ...

    @property
    def num_threads(self) -> int: ...

    def stop(self) -> None:
        """End its threads."""

def measure_bandwidth(pool: Pool, kernels: str, bytes: int) -> float:
    """Bytes a second that all threads together read."""

def measure_arithmetic(pool: Pool, kernels: str) -> float:
    """Operations a second of all threads, on registers alone."""

class Tape:
    def __init__(self, pool: Pool, kernels: str) -> None: ...

    @property
    def num_ops(self) -> int: ...

    def embed(self, *, table: Matrix, out: int, out_stride: int) -> None: ...

    def norm(self, *, rows: Rows, x: int, x_stride: int, weight: int, width: int, runs: int, eps: float, residual: int, residual_stride: int, out: int, out_stride: int, out_type: Type) -> None: ...

    def linear(self, *, rows: Rows, x: int, x_stride: int, x_type: Type, w: Matrix, residual: int, residual_stride: int, out: int, out_stride: int) -> None: ...

    def gated(self, *, rows: Rows, x: int, x_stride: int, x_type: Type, w: Matrix, activation: Activation, out: int, out_stride: int, out_type: Type) -> None: ...

    def mix(self, *, rows: Rows, x: int, x_stride: int, width: int, out: int, out_stride: int) -> None: ...

    def rope(self, *, rows: Rows, x: int, x_stride: int, rotation: Rotation, num_heads: int, out: int, out_stride: int) -> None: ...

    def kv_write(self, *, k: int, k_stride: int, v: int, v_stride: int, rotation: Rotation, cache: KVCache) -> None:
        """
        Goes before the attention to these keys and values, which writes those of a request's only token itself.
        """

    def attention(self, *, q: int, q_stride: int, rotation: Rotation, k: int, k_stride: int, k_rotation: Rotation, v: int, v_stride: int, cache: KVCache, num_heads: int, scale: float, softcap: float, window: int, out: int, out_stride: int, out_type: Type, partials: int, remaining: int) -> None: ...

    def take_rows(self, *, x: int, x_stride: int, out: int, out_stride: int, row_bytes: int) -> None:
        """Strides are in bytes."""

    def scale(self, *, rows: Rows, x: int, x_stride: int, factor: float, softcap: float, width: int, out: int, out_stride: int, out_type: Type) -> None: ...

    def replay(self, token_ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], slots: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], query_starts: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], context_lens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], block_tables: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], sample_rows: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def sample(self, *, logits: int, stride: int, vocab: int) -> None: ...

    def replay_samples(self, first: int, count: int, batch: SampleBatch | None) -> None:
        """
        Ops whose rows are a chunk: samples first to first + count. Without a batch no tokens are chosen.
        """

class SampleBatch:
    def __init__(self, *, temperature: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], top_k: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], top_p: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], min_p: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], uniform: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')]) -> None: ...

    def allow(self, starts: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def ban(self, starts: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def bias(self, starts: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], values: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def penalise(self, starts: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], output_counts: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], repetition: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], presence: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], frequency: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def want_logprobs(self, rows: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], top_starts: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], logprobs: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')], ranks: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')], top_ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')], top_logprobs: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')]) -> None: ...
