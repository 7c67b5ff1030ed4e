"""Paged attention whose result for a query row depends on that row and its request's cache alone, bit for bit.

Keys and values are read in tiles of 64 positions, counted from the start of the sequence. Within a tile every query
head of every row is its own matrix-vector product of a fixed shape; what lies behind the row's position, or before its
window, is masked and adds exact zeros. The maximum over tiles is exact in any order; sums of tiles are added one after
another from the first. So neither the chunk that a row came in, nor the requests beside it, nor the block size changes
a bit.

A cache of 8 bits is multiplied as it is: scores are then multiplied by the scales of their keys, and weights, once they
are in their sum, by those of their values.

A step is cut into units, once for all layers (`plan_units`), and units go to the threads of the pool (`attend`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.backends.numpy.memory import MAX_UNIT_PAIRS, MIN_UNIT_ROWS, TILE, KVCache, QuantizedKVCache
from headrace.backends.numpy.threads import ThreadPool
from headrace.model.ops import AttentionSpec, StepInputs

Float32 = NDArray[np.float32]
Index = NDArray[np.intp]
Places = Index | slice  # a slice where the places follow one another, which spares numpy a copy

MAX_DECODE_TILES = 16  # of a unit with several requests: their keys and values should stay in the L2 cache
MIN_UNIT_PAIRS = 16  # pairs of a row and a tile below which a second thread costs more than it saves


@dataclass(frozen=True)
class Unit:
    """Part of a step: either several rows of one request (prefill), or several requests with one row each (decode).

    A segment is one request here. The tiles of all segments lie one after another, longest segments first.
    """

    rows: Places  # [num_segments * rows_per_segment], of the step's tokens
    rows_per_segment: int
    segment_starts: Index  # [num_segments], each segment's first tile
    segment_of_tile: Index  # [num_tiles]
    tiles_in_order: list[Places]  # element t: the t-th tile of each segment that has so many
    runs: Index  # [num_tiles * runs in a tile], the pieces of the cache to gather
    first_hidden: int  # the first tile that has positions which a row does not see
    hidden: NDArray[np.bool_]  # [num_tiles - first_hidden, rows_per_segment, 1, TILE], True where it does not
    unseen: Index  # of the gathered positions, those that no row sees: they may hold anything


def run_length(block_size: int) -> int:
    """Positions that are gathered as one piece: blocks and tiles are both whole numbers of runs."""
    return math.gcd(block_size, TILE)


def plan_units(inputs: StepInputs, block_size: int, num_threads: int, window: int | None = None) -> list[Unit]:
    """Cut a step's rows into units, several for each thread where that pays. `window` as in `AttentionSpec`."""
    query_lens = np.diff(inputs.query_starts)
    units = [
        _make_unit(inputs, block_size, window, np.array([request]), np.arange(start, end)[None])
        for request in np.flatnonzero(query_lens > 1).tolist()
        for start, end in _prefill_cuts(inputs, request, num_threads)
    ]
    decodes = np.flatnonzero(query_lens == 1)
    decodes = decodes[np.argsort(-inputs.context_lens[decodes], kind="stable")]
    for requests in _decode_cuts(inputs, decodes, num_threads):
        rows = inputs.query_starts[requests].astype(np.intp)
        units.append(_make_unit(inputs, block_size, window, requests, rows[:, None]))
    return units


def attend(
    q: Float32,
    cache: KVCache | QuantizedKVCache,
    spec: AttentionSpec,
    units: list[Unit],
    block_size: int,
    pool: ThreadPool,
) -> Float32:
    """[n, num_heads * head_dim] -> the same. The cache already holds this step's keys and values."""
    group = spec.num_heads // spec.num_kv_heads
    scaled = (q * np.float32(spec.scale)).reshape(len(q), spec.num_kv_heads, group, spec.head_dim)
    out = np.empty_like(scaled)
    run = run_length(block_size)
    pool.run([partial(_attend_unit, scaled, cache, spec.softcap, unit, run, out) for unit in units])
    return out.reshape(len(out), spec.num_heads * spec.head_dim)


def softcap(x: Float32, cap: float) -> Float32:
    """cap * tanh(x / cap)"""
    capped = np.tanh(x / np.float32(cap))
    capped *= np.float32(cap)
    return capped


def _attend_unit(
    q: Float32, cache: KVCache | QuantizedKVCache, cap: float | None, unit: Unit, run: int, out: Float32
) -> None:
    _, num_kv_heads, group, head_dim = q.shape
    num_segments, num_tiles = len(unit.segment_starts), len(unit.segment_of_tile)
    # [num_kv_heads, num_segments, rows_per_segment, group, head_dim]
    queries = q[unit.rows].reshape(num_segments, unit.rows_per_segment, num_kv_heads, group, head_dim)
    queries = np.ascontiguousarray(queries.transpose(2, 0, 1, 3, 4))
    if num_segments > 1:
        queries = queries[:, unit.segment_of_tile]
    # [num_kv_heads, num_tiles, 1, 1, TILE, head_dim]
    keys = _gather(cache.keys, unit, run, head_dim).reshape(num_kv_heads, num_tiles, 1, 1, TILE, head_dim)
    values = _gather(cache.values, unit, run, head_dim)
    values[:, unit.unseen] = 0  # zero times whatever is there must be zero
    values = values.reshape(num_kv_heads, num_tiles, 1, 1, TILE, head_dim)

    scores = np.matmul(keys, queries[..., None])[..., 0]  # [num_kv_heads, num_tiles, rows, group, TILE]
    if isinstance(cache, QuantizedKVCache):
        scores *= _gather_scales(cache.key_scales, unit, run)
    if cap is not None:
        scores = softcap(scores, cap)
    np.copyto(scores[:, unit.first_hidden :], -np.inf, where=unit.hidden)
    peaks = np.maximum.reduceat(np.maximum.reduce(scores, axis=-1), unit.segment_starts, axis=1)
    scores -= (peaks if num_segments == 1 else peaks[:, unit.segment_of_tile])[..., None]
    np.exp(scores, out=scores)

    # Weighted values and, in the last column, the weights' sum: [num_kv_heads, num_tiles, rows, group, head_dim + 1]
    sums = np.empty((*scores.shape[:-1], head_dim + 1), np.float32)
    np.add.reduce(scores, axis=-1, out=sums[..., head_dim])
    if isinstance(cache, QuantizedKVCache):
        scores *= _gather_scales(cache.value_scales, unit, run)
    np.matmul(values.swapaxes(-1, -2), scores[..., None], out=sums[..., :head_dim, None])
    total = sums[:, unit.tiles_in_order[0]]
    for tiles in unit.tiles_in_order[1:]:
        later = sums[:, tiles]
        total[:, : later.shape[1]] += later
    result = total[..., :head_dim] / total[..., head_dim:]
    out[unit.rows] = result.transpose(1, 2, 0, 3, 4).reshape(-1, num_kv_heads, group, head_dim)


def _gather(cache: NDArray[Any], unit: Unit, run: int, head_dim: int) -> Float32:
    """[num_kv_heads, num_tiles * TILE, head_dim], copied from wherever the blocks are."""
    num_kv_heads = cache.shape[0]
    pieces = cache.reshape(num_kv_heads, -1, run * head_dim).take(unit.runs, axis=1, mode="clip")
    return pieces.reshape(num_kv_heads, -1, head_dim).astype(np.float32, copy=False)


def _gather_scales(scales: Float32, unit: Unit, run: int) -> Float32:
    """[num_kv_heads, num_tiles, 1, 1, TILE]; 0 for positions that no row sees."""
    gathered = _gather(scales, unit, run, 1)
    gathered[:, unit.unseen] = 0
    return gathered.reshape(len(scales), -1, 1, 1, TILE)


def _prefill_cuts(inputs: StepInputs, request: int, num_threads: int) -> Iterator[tuple[int, int]]:
    """Ranges of the request's rows. Every unit gathers all keys that its rows see, so units are not too small."""
    start, end = int(inputs.query_starts[request]), int(inputs.query_starts[request + 1])
    num_rows, num_tiles = end - start, _num_tiles(int(inputs.context_lens[request]))
    rows_in_unit = max(MIN_UNIT_ROWS, MAX_UNIT_PAIRS // num_tiles)
    if num_rows * num_tiles >= MIN_UNIT_PAIRS * num_threads:
        rows_in_unit = min(rows_in_unit, -(-num_rows // num_threads))
    for first in range(start, end, rows_in_unit):
        yield first, min(first + rows_in_unit, end)


def _decode_cuts(inputs: StepInputs, requests: Index, num_threads: int) -> list[Index]:
    """Requests of similar length together, with about the same number of tiles in each piece."""
    if not len(requests):
        return []
    tiles_before = np.cumsum(-(-inputs.context_lens[requests] // TILE))
    total = int(tiles_before[-1])
    num_units = max(1, min(num_threads, total // MIN_UNIT_PAIRS), total // MAX_DECODE_TILES)
    bounds = np.searchsorted(tiles_before, total * np.arange(1, num_units) / num_units)
    return [piece for piece in np.split(requests, bounds) if len(piece)]


def _make_unit(inputs: StepInputs, block_size: int, window: int | None, requests: Index, rows: Index) -> Unit:
    """`rows` is [num_segments, rows_per_segment]; the last column is each segment's last row."""
    positions = inputs.positions[rows]
    seen = positions[:, -1] + 1  # [num_segments], how many positions the segment's rows see at most
    num_tiles = -(-seen // TILE)
    starts = np.cumsum(num_tiles) - num_tiles
    segment_of_tile = np.repeat(np.arange(len(rows)), num_tiles)
    tile_in_segment = np.arange(len(segment_of_tile)) - starts[segment_of_tile]

    run = run_length(block_size)
    first_positions = (tile_in_segment[:, None] * TILE + np.arange(0, TILE, run)).reshape(-1)
    segment_of_run = np.repeat(segment_of_tile, TILE // run)
    inside = np.minimum(first_positions, (seen - 1)[segment_of_run] // run * run)  # past the end: any run will do
    block_ids = inputs.block_tables[requests[segment_of_run], inside // block_size]

    tile_positions = tile_in_segment[:, None] * TILE + np.arange(TILE)  # [num_tiles, TILE]
    own_positions = positions[segment_of_tile][:, :, None]
    hidden = tile_positions[:, None] > own_positions  # [num_tiles, rows_per_segment, TILE]
    if window is not None:
        hidden |= tile_positions[:, None] <= own_positions - window
    first_hidden = int(np.append(hidden.any(axis=(1, 2)), True).argmax())
    return Unit(
        rows=_places(rows.reshape(-1)),
        rows_per_segment=rows.shape[1],
        segment_starts=starts,
        segment_of_tile=segment_of_tile,
        tiles_in_order=[_places(starts[num_tiles > tile] + tile) for tile in range(int(num_tiles[0]))],
        runs=block_ids.astype(np.intp) * (block_size // run) + inside % block_size // run,
        first_hidden=first_hidden,
        hidden=hidden[first_hidden:, :, None],
        unseen=np.flatnonzero(hidden.all(axis=1)),
    )


def _places(index: Index) -> Places:
    first = int(index[0])
    follows = bool((np.diff(index) == 1).all())
    return slice(first, first + len(index)) if follows else index


def _num_tiles(num_positions: int) -> int:
    return -(-num_positions // TILE)
