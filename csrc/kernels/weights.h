// How this instruction set multiplies bfloat16 weights, and those of few bits.
#pragma once

#include "gemm.h"
#include "groups.h"
#ifdef HEADRACE_AMX
#include "amx.h"
#include "group_tiles.h"
#endif

namespace headrace::HEADRACE_NAMESPACE {

#if defined(HEADRACE_AMX)
using BFloat16Weights = TileWeights;
#elif defined(HEADRACE_BF16)
using BFloat16Weights = PairWeights;
#else
using BFloat16Weights = WidenedWeights;
#endif

#if defined(HEADRACE_AMX)
template <int kRowBytes>
using GroupWeights = GroupTiles<kRowBytes>;
#else
template <int kRowBytes>
using GroupWeights = GroupVectors<kRowBytes>;
#endif

// Rows that a product takes at a time, of the weights that take most.
constexpr int kMostRows = BFloat16Weights::kRowsAtOnce > kMaxRows ? BFloat16Weights::kRowsAtOnce : kMaxRows;

}  // namespace headrace::HEADRACE_NAMESPACE
