// What a step is made of, as the worker builds it (model/ops.py, StepInputs), and how its attention is divided.
#pragma once

#include <cstdint>

// A function in a header that is compiled for several instruction sets. Left to itself the compiler may put it out of
// line, and the linker keep the copy that was made for a processor which this is not.
#define HEADRACE_SHARED inline __attribute__((always_inline))

namespace headrace {

// Keys and values are read in splits of so many positions, counted from the start of the sequence. A split's share of
// the result is computed on its own and shares are added in order: so who computes them changes no bit.
constexpr int64_t kSplit = 256;

// The cache stores positions in groups of so many slots, one vector of an AVX-512 register.
constexpr int64_t kGroup = 16;

// Some rows of one request: what one thread attends to at a time, for one KV head.
struct AttentionItem {
    int32_t request;
    int32_t first_token, num_tokens;  // of the step's tokens
    int32_t split;                    // the one split that is computed, into `partial`; or kAllSplits
    int32_t num_splits;
    int32_t partial;  // the first of num_splits places for partial results (one token)
};
constexpr int32_t kAllSplits = -1;

struct SampleBatch;

struct Step {
    int64_t num_tokens = 0, num_requests = 0, num_samples = 0;
    int64_t first_sample = 0, num_chunk = 0;  // the samples whose logits are computed at present
    const int32_t* token_ids = nullptr;       // [num_tokens]
    const int32_t* positions = nullptr;       // [num_tokens]
    const int32_t* slots = nullptr;           // [num_tokens]
    const int32_t* query_starts = nullptr;    // [num_requests + 1]
    const int32_t* context_lens = nullptr;    // [num_requests]
    const int32_t* block_tables = nullptr;    // [num_requests, block_table_width]
    int64_t block_table_width = 0;
    const int32_t* sample_rows = nullptr;  // [num_samples]

    const SampleBatch* batch = nullptr;    // how tokens are chosen; null: only logits are wanted

    // [num_shared_tokens], all but the only tokens of requests: several threads may attend to them, or nobody in this step.
    const int32_t* shared_tokens = nullptr;
    int64_t num_shared_tokens = 0;

    const AttentionItem* items = nullptr;
    int64_t num_items = 0;
    // What a thread takes at a time: runs of units, which are an item and one of `run_heads` KV heads. Run r is units runs[r] to
    // runs[r + 1] - 1, of a layer with fewer KV heads in proportion.
    const int64_t* runs = nullptr;
    int64_t num_runs = 0, run_heads = 1;
};

// Which of a step's counts is an op's number of rows.
enum class Rows : int32_t { tokens, samples, chunk };

HEADRACE_SHARED int64_t num_rows(const Step& step, Rows rows) {
    switch (rows) {
        case Rows::tokens: return step.num_tokens;
        case Rows::samples: return step.num_samples;
        default: return step.num_chunk;
    }
}

}  // namespace headrace
