// How this instruction set multiplies bfloat16 weights.
#pragma once

#include "gemm.h"
#ifdef HEADRACE_AMX
#include "amx.h"
#endif

namespace headrace::HEADRACE_NAMESPACE {

#if defined(HEADRACE_AMX)
constexpr bool kHasTiles = true;
using BFloat16Weights = TileWeights;
#elif defined(HEADRACE_BF16)
using BFloat16Weights = PairWeights;
#else
using BFloat16Weights = WidenedWeights;
#endif

#ifndef HEADRACE_AMX
constexpr bool kHasTiles = false;
#endif

// Rows that a product takes at a time, of the weights that take most.
constexpr int kMostRows = BFloat16Weights::kRowsAtOnce > kMaxRows ? BFloat16Weights::kRowsAtOnce : kMaxRows;

}  // namespace headrace::HEADRACE_NAMESPACE
