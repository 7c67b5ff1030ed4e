"""Rotary position embedding: the frequencies of a head's pairs, and the factor on their cosines and sines.

Computed in float64 and rounded once, when a backend makes its table. Scalings are what transformers computes
(modeling_rope_utils.py), which models were trained with.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from headrace.config.model_facts import LinearScaling, Llama3Scaling, RopeFacts, YarnScaling

if TYPE_CHECKING:
    from headrace.model.ops import Float64Array


def frequencies(rope: RopeFacts) -> Float64Array:
    """[dim / 2], radians for each position: base^(-2i/dim), stretched for a longer context where the model says so.

    Sources: Su et al., RoFormer, 2021; Chen et al., Extending Context Window of Large Language Models via Positional
    Interpolation, 2023 (linear); Meta, llama-models, models/llama3/model.py, 2024 (llama3); Peng et al., YaRN, 2023.
    """
    plain: Float64Array = rope.base ** (-np.arange(0, rope.dim, 2, dtype=np.float64) / rope.dim)
    match rope.scaling:
        case None:
            return plain
        case LinearScaling(factor=factor):
            return plain / factor
        case Llama3Scaling() as scaling:
            return _interpolate(plain, scaling.factor, _llama3_ramp(plain, scaling))
        case YarnScaling() as scaling:
            return _interpolate(plain, scaling.factor, _yarn_ramp(rope, scaling))


def table_factor(rope: RopeFacts) -> float:
    """What cosines and sines are multiplied by: YaRN makes scores of long contexts larger, both in q and in k."""
    if not isinstance(rope.scaling, YarnScaling):
        return 1.0
    scaling = rope.scaling
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return _mscale(scaling.factor, scaling.mscale) / _mscale(scaling.factor, scaling.mscale_all_dim)
    return _mscale(scaling.factor, 1.0)


def _interpolate(plain: Float64Array, factor: float, ramp: Float64Array) -> Float64Array:
    """As trained where the ramp is 0, slower by `factor` where it is 1."""
    return plain * (1 - ramp) + plain / factor * ramp


def _llama3_ramp(plain: Float64Array, scaling: Llama3Scaling) -> Float64Array:
    turns = scaling.original_max_position_embeddings * plain / (2 * math.pi)  # in the context of the training
    return 1 - np.clip((turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor), 0, 1)


def _yarn_ramp(rope: RopeFacts, scaling: YarnScaling) -> Float64Array:
    def pair_with(turns: float) -> float:
        """The place, between pairs, of what turns so often in the context of the training."""
        wavelength = scaling.original_max_position_embeddings / turns
        return rope.dim * math.log(wavelength / (2 * math.pi)) / (2 * math.log(rope.base))

    first, last = pair_with(scaling.beta_fast), pair_with(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rope.dim - 1)
    width = last - first or 0.001  # transformers' way round a division by zero
    return np.clip((np.arange(rope.dim // 2, dtype=np.float64) - first) / width, 0, 1)


def _mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0
