// How the samples of a step want their tokens chosen, as the arrays of `SamplingInputs` (headrace/model/ops.py), and
// where the results go. Null is what no row wants.
#pragma once

#include "sampling.h"
#include "step.h"

namespace headrace {

struct TokenLists {
    const int32_t* starts = nullptr;  // [num_samples + 1]
    const int32_t* ids = nullptr;     // [starts[num_samples]]
};

struct SampleBatch {
    const double* temperature = nullptr;  // these [num_samples]
    const int32_t* top_k = nullptr;
    const double* top_p = nullptr;
    const double* min_p = nullptr;
    const double* uniform = nullptr;

    TokenLists allowed, banned, biased, seen;
    const float* biases = nullptr;           // beside biased.ids
    const int32_t* output_counts = nullptr;  // beside seen.ids
    const float* repetition = nullptr;       // these [num_samples], null without `seen`
    const float* presence = nullptr;
    const float* frequency = nullptr;

    int64_t num_wanted = 0;                // rows that want logprobs
    const int32_t* wanted = nullptr;       // [num_wanted], ascending
    const int32_t* top_starts = nullptr;   // [num_wanted + 1]

    int32_t* tokens = nullptr;  // [num_samples]
    float* logprobs = nullptr;  // [num_wanted]
    int32_t* ranks = nullptr;   // [num_wanted]
    int32_t* top_ids = nullptr;  // [top_starts[num_wanted]]
    float* top_logprobs = nullptr;

    // All that sample number `sample` wants.
    SampleRow row(int64_t sample, const float* logits, int32_t vocab) const;
};

}  // namespace headrace
