"""The op set: the contract between models, which are programs over ops, and backends, which implement them.

A program (`model/arch/`) is called once for each step, with a backend's `Ops` and its `Step`. What it passes around is
opaque: on numpy and torch an `Activation` is an array and an op computes at once; on a recording backend it is a handle
to a fixed buffer and an op appends a kernel call to a tape. A program may therefore neither look into an activation nor
branch on anything but the model's facts. docs/adr/0002-op-set.md has the reasons, and the ops that other
architectures will need.

Shapes: every activation is two-dimensional, `[rows, width]`; heads lie side by side, `[num_tokens, heads * head_dim]`.
Each row of a result depends on that row of the arguments alone (paged_attention: and on the request's own cached keys
and values), bit for bit, whatever the other rows are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import msgspec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Int32Array: TypeAlias = NDArray[np.int32]
    Float32Array: TypeAlias = NDArray[np.float32]
    Float64Array: TypeAlias = NDArray[np.float64]

Activation: TypeAlias = Any  # rows of numbers; only the backend that made it looks inside
Weight: TypeAlias = Any  # a packed matrix, a vector or a rope table; likewise

ActivationName = Literal["silu", "gelu_tanh"]


# ---- what a model is made of -----------------------------------------------------------------------------------------


class StoredTensor(msgspec.Struct, frozen=True):
    """A tensor as a checkpoint holds it. Rows (the last dimension) of block formats are whole numbers of blocks."""

    name: str  # in the file, for messages
    dtype: str  # F32, F16, BF16, or a GGML block format such as Q4_1
    shape: tuple[int, ...]
    data: memoryview  # its bytes, row-major; usually mapped


class AttentionSpec(msgspec.Struct, frozen=True):
    """One attention layer: how its queries see its keys, and what its cache holds for each token."""

    layer: int
    num_heads: int
    num_kv_heads: int  # divides num_heads; query head h reads KV head h // (num_heads / num_kv_heads)
    head_dim: int
    scale: float  # factor on q . k before the softmax
    kv_group: int = 0  # layers of one group share block tables
    window: int | None = None  # positions that a row sees, its own among them; None: all up to its own
    softcap: float | None = None  # scores s become softcap * tanh(s / softcap) before the mask


# ---- what a step is made of ------------------------------------------------------------------------------------------


class StepInputs(msgspec.Struct, frozen=True):
    """One step's batch, as the worker builds it. Requests lie one after another; prefill and decode mix freely.

    The KV of position p of request r is in slot `block_tables[r, p // block_size] * block_size + p % block_size`.
    """

    token_ids: Int32Array  # [num_tokens]
    positions: Int32Array  # [num_tokens], from the start of the token's own request
    slots: Int32Array  # [num_tokens], where this step's keys and values are written
    query_starts: Int32Array  # [num_requests + 1], request r has tokens query_starts[r] to query_starts[r + 1]
    context_lens: Int32Array  # [num_requests], tokens with KV once this step's are written
    block_tables: Int32Array  # [num_requests, at least the blocks of the longest context]
    sample_rows: Int32Array  # [num_samples], the tokens whose logits are wanted


class Step(Protocol):
    """A backend's form of `StepInputs`. A program passes it on and uses these two."""

    @property
    def token_ids(self) -> Activation: ...
    @property
    def sample_rows(self) -> Activation: ...


class Ops(Protocol):
    """What a program may call. `n` is num_tokens, or num_samples after `take_rows`."""

    def embed(self, token_ids: Activation, table: Weight) -> Activation:
        """Row token_ids[i] of table `[vocab, hidden]`: `[n]` -> `[n, hidden]`."""
        ...

    def rms_norm(self, x: Activation, weight: Weight, eps: float) -> Activation:
        """x / sqrt(mean(x^2) + eps) * weight over each run of len(weight) elements: `[n, width]` -> `[n, width]`.

        A weight of the row's width is the usual norm; one of head_dim normalises each head.
        Source: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019.
        """
        ...

    def rms_residual(self, x: Activation, weight: Weight, eps: float, residual: Activation) -> Activation:
        """residual + rms_norm(x, weight, eps): `[n, width]` -> `[n, width]`.

        Ends a block whose result is normalised before it is added. Source: Gemma Team, Gemma 2, 2024.
        """
        ...

    def linear(self, x: Activation, weight: Weight) -> Activation:
        """x @ weight.T, with weight `[out, in]`, and its bias `[out]` if it has one: `[n, in]` -> `[n, out]`."""
        ...

    def linear_residual(self, x: Activation, weight: Weight, residual: Activation) -> Activation:
        """residual + linear(x, weight): `[n, in]` -> `[n, out]`.

        Ends a row-parallel block: the all_reduce goes in here, and after it bias and residual are added, in this order.
        """
        ...

    def gated_mlp(self, x: Activation, gate_up: Weight, activation: ActivationName) -> Activation:
        """activation(x @ gate.T) * (x @ up.T), gate_up `[2 * inner, in]` with gate first: `[n, in]` -> `[n, inner]`.

        silu(g) = g / (1 + exp(-g)); gelu_tanh(g) = g / 2 * (1 + tanh(sqrt(2 / pi) * (g + 0.044715 * g^3))).
        Sources: Shazeer, GLU Variants Improve Transformer, 2020; Hendrycks and Gimpel, Gaussian Error Linear Units,
        2016.
        """
        ...

    def split(self, x: Activation, widths: Sequence[int]) -> tuple[Activation, ...]:
        """Cut rows into pieces of these widths, which add up to the row's."""
        ...

    def rope(self, x: Activation, table: Weight, step: Step) -> Activation:
        """Rotate each head of table's head_dim by the token's position: `[n, heads * head_dim]` -> the same.

        Half-split order: with (a, b) = (x[i], x[i + dim/2]) of a head and t = position * frequencies[i], the result is
        (a cos t - b sin t, b cos t + a sin t), times the table's factor. Source: Su et al., RoFormer, 2021.
        """
        ...

    def paged_attention(
        self, q: Activation, k: Activation, v: Activation, attention: AttentionSpec, step: Step
    ) -> Activation:
        """Write k and v to the step's slots, then softmax(softcap(scale * q . K) + mask) V for each query head.

        The mask leaves the positions up to the row's own, with a window the last `window` of them. The softcap, where
        there is one, is the op below. Sources: Beltagy et al., Longformer, 2020 (window); Gemma 2, 2024 (softcap).

        q `[n, num_heads * head_dim]`, k and v `[n, num_kv_heads * head_dim]` -> like q. K and V are always read from
        the cache, those of this step too, through the block tables.

        A cache of int8 or fp8 (e4m3) holds numbers and a float32 scale for each token and KV head, one of keys and one
        of values: max|x| / 127 or / 448, written once. The product q . K is of the numbers as they are; then a score is
        multiplied by its key's scale. The softmax' weights are summed as they are; then a weight is multiplied by its
        value's scale, and the product with V is of the numbers.
        """
        ...

    def take_rows(self, x: Activation, rows: Activation) -> Activation:
        """x[rows]: `[n, width]` -> `[len(rows), width]`."""
        ...

    def scale(self, x: Activation, factor: float) -> Activation:
        """x * factor: `[n, width]` -> the same."""
        ...

    def softcap(self, x: Activation, cap: float) -> Activation:
        """cap * tanh(x / cap), which stays between -cap and cap: `[n, width]` -> the same.

        Source: Bello et al., Neural Combinatorial Optimization, 2016; as in Gemma Team, Gemma 2, 2024.
        """
        ...


# ---- the other faces of a backend ------------------------------------------------------------------------------------


class TokenLists(msgspec.Struct, frozen=True):
    """A list of token ids for each row of logits, which names an id once: `ids[starts[row] : starts[row + 1]]`."""

    starts: Int32Array  # [num_samples + 1]
    ids: Int32Array  # [starts[-1]]

    def of(self, row: int) -> Int32Array:
        return self.ids[self.starts[row] : self.starts[row + 1]]


class LogitBias(msgspec.Struct, frozen=True):
    tokens: TokenLists
    values: Float32Array  # beside tokens.ids: what is added to the logit


class Penalties(msgspec.Struct, frozen=True):
    """Factors and terms of each row `[num_samples]`, and the tokens that they are about."""

    repetition: Float32Array  # 1: off
    presence: Float32Array  # 0: off
    frequency: Float32Array  # 0: off
    seen: TokenLists  # in the output, and for repetition in the prompt too; none for a row without penalties
    output_counts: Int32Array  # beside seen.ids: how often in the output


class LogprobsWanted(msgspec.Struct, frozen=True):
    rows: Int32Array  # [num_wanted], ascending: those that want logprobs
    num_top: Int32Array  # [num_wanted], how many of the most probable tokens


class SamplingInputs(msgspec.Struct, frozen=True):
    """How each row of logits wants its token chosen; see `model/sampling/`. Columns are `[num_samples]`, and what no
    row wants is None: a step of plain requests has nothing to look at. All arrays are contiguous, for kernels."""

    temperature: Float64Array  # 0 is greedy
    top_k: Int32Array  # 0: off
    top_p: Float64Array  # 1: off
    min_p: Float64Array  # 0: off
    uniform: Float64Array  # a random number in (0, 1), unused where greedy
    allowed: TokenLists | None = None  # the only ids that may be chosen; all, where a row names none
    banned: TokenLists | None = None  # ids that may not be chosen
    bias: LogitBias | None = None
    penalties: Penalties | None = None
    logprobs: LogprobsWanted | None = None


class Logprobs(msgspec.Struct, frozen=True):
    """Of the rows that want them, in their order: the log-softmax of the raw logits, before anything changed them.

    The tokens of row i's list are in `top_starts[i] : top_starts[i + 1]`, the most probable first, lower ids first
    among equals: as many as it wants, or the whole vocabulary.
    """

    sampled: Float32Array  # [num_wanted], the logprob of the token that was chosen
    ranks: Int32Array  # [num_wanted], how many tokens have at least its logit, itself included
    top_starts: Int32Array  # [num_wanted + 1]
    top_ids: Int32Array
    top: Float32Array  # beside top_ids


class SamplerOutput(msgspec.Struct, frozen=True):
    token_ids: Int32Array  # [num_samples]
    logprobs: Logprobs | None = None  # None where no row wants any


class Sampler(Protocol):
    def sample(self, logits: Activation, inputs: SamplingInputs) -> SamplerOutput:
        """One token id for each row of logits `[num_samples, vocab]`, in the order that the field has settled on.

        First the logits are changed, in float32: all but the allowed ids and then the banned ones become -inf; bias is
        added; of each seen token a positive logit is divided and another one multiplied by repetition, then frequency
        times its output count is taken off, and presence if the count is not 0.

        Greedy takes the highest logit, the lowest id among equals. Else: divide by temperature; softmax; drop tokens
        below min_p times the most probable; keep the top_k highest, with those equal to the last; of these keep the
        fewest, most probable first, lower ids first among equals, whose sum reaches top_p of what is left; draw by
        `uniform` from the inverse of their cumulated probability in the order of ids.

        A logit that is not a number counts as -inf, and where the highest is not finite the choice is greedy. The order
        is that of vLLM V1 (v1/sample/sampler.py). Sources: Keskar et al., CTRL, 2019 (repetition); OpenAI's API
        reference (presence, frequency); Fan et al., Hierarchical Neural Story Generation, 2018 (top_k); Holtzman et
        al., The Curious Case of Neural Text Degeneration, 2020 (top_p); Nguyen et al., Turning Up the Heat, 2024
        (min_p).
        """
        ...


class Memory(Protocol):
    """Weights and KV tensors. The `_bytes` methods are arithmetic, right before anything is allocated."""

    def pack_matrix(self, parts: Sequence[StoredTensor], biases: Sequence[StoredTensor] = ()) -> Weight:
        """One matrix of the parts' rows, one part below the other. Called from several threads at once.

        `biases` are none, or one for each part `[the part's rows]`: what `linear` adds to its outputs.

        Raises `UnsupportedModelError` for a dtype that the backend does not read.
        """
        ...

    def pack_gated(self, gate: StoredTensor, up: StoredTensor) -> Weight:
        """The matrix of `gated_mlp`, of two tensors of the same shape. Otherwise as `pack_matrix`."""
        ...

    def pack_vector(self, part: StoredTensor) -> Weight: ...

    def rope_table(self, frequencies: Float64Array, num_positions: int, factor: float = 1.0) -> Weight:
        """Sines and cosines of every position, times `factor`, for heads that are rotated whole.

        `frequencies` [head_dim / 2] are angles for each position, in radians (`model.rope`).
        """
        ...

    def allocate_kv_cache(self, layers: Sequence[AttentionSpec], num_blocks: int, block_size: int) -> None: ...

    def matrix_bytes(self, parts: Sequence[tuple[int, str]], columns: int, *, is_gated: bool = False) -> int:
        """Of a matrix whose parts have so many rows, and dtypes as a `StoredTensor` has them."""
        ...

    def vector_bytes(self, size: int) -> int: ...

    def rope_bytes(self, dim: int, num_positions: int) -> int: ...

    def kv_block_bytes(self, layers: Sequence[AttentionSpec], block_size: int) -> int: ...

    def step_bytes(self, shape: StepShape) -> int:
        """The most that a step needs beside weights and KV cache."""
        ...


class StepShape(msgspec.Struct, frozen=True):
    """The largest step, in the widths that decide its memory."""

    max_num_tokens: int
    max_num_samples: int
    max_model_len: int
    num_threads: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    attention: AttentionSpec  # of the widest layer


class Graph(Protocol):
    """A forward that was captured: recorded once and replayed, or, where ops compute at once, simply called."""

    def replay(self, inputs: StepInputs) -> Activation:
        """Logits of the step's sample rows `[num_samples, vocab]`, valid until the next call."""
        ...


class Precision(msgspec.Struct, frozen=True):
    """What a backend keeps numbers in, in the words of the flags of the same names."""

    dtype: str = "float32"  # of matrices, and of what is between them: "float32" or "bfloat16"
    quantization: str = "none"  # which matrices are kept in few bits instead: "none", "stored", "int8", "int4"
    activation_quantization: str = "auto"  # rows that these are multiplied by: "auto", "none", "int8", "int16"
    kv_cache_dtype: str | None = None  # "float32", "bfloat16", "int8", "fp8"; None: the same as `dtype`


EXACT = Precision()


class Backend(Protocol):
    """A device with its faces. Made by the class that the backend's import string names, with `num_threads` and a
    `Precision`."""

    @property
    def ops(self) -> Ops: ...
    @property
    def memory(self) -> Memory: ...
    @property
    def sampler(self) -> Sampler: ...

    @property
    def instruction_set(self) -> str | None:
        """What its kernels are made for, for the operator to read. None if that is not for the backend to say."""
        ...

    def begin_step(self, inputs: StepInputs) -> Step:
        """Take in one step's batch, for ops that are called one by one. The result is valid until the next call."""
        ...

    def capture(
        self, forward: Callable[[Ops, Step], Activation], layers: Sequence[AttentionSpec], shape: StepShape
    ) -> Graph:
        """A program's forward, ready for any step up to `shape`. Weights are packed and KV caches allocated by now."""
        ...

    def running(self) -> AbstractContextManager[None]:
        """To be held around a forward and around sampling: settings of the process that must not leak."""
        ...

    def close(self) -> None:
        """End the backend's threads. Nothing may be called afterwards."""
        ...
