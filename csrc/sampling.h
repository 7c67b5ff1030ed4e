// What the sampling kernel takes and gives: plain structs, the same for every instruction set. What the fields mean and
// in which order they act is said by `Sampler.sample` in headrace/model/ops.py.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace {

// One row of logits and all that it wants. Rows know nothing of each other.
struct SampleRow {
    const float* logits;  // [vocab], never written; nothing past the end is read
    int32_t vocab;        // at least 1

    int32_t top_k;       // 0: off
    double temperature;  // 0: greedy
    double top_p;        // 1: off
    double min_p;        // 0: off
    double uniform;      // in (0, 1)

    // Sparse changes of the logits. Each id is below vocab, and each list names it once.
    int32_t num_allowed;  // 0: every id is
    int32_t num_banned;
    int32_t num_biased;
    int32_t num_seen;              // ids that the penalties look at
    const int32_t* allowed_ids;    // [num_allowed]
    const int32_t* banned_ids;     // [num_banned]
    const int32_t* biased_ids;     // [num_biased]
    const float* biases;           // [num_biased]
    const int32_t* seen_ids;       // [num_seen], in prompt or output
    const int32_t* output_counts;  // [num_seen], how often in the output
    float repetition_penalty;      // 1: off
    float presence_penalty;        // 0: off
    float frequency_penalty;       // 0: off

    int32_t* token;  // the result

    // Results that are wanted where `logprob` is not null.
    int32_t num_top;      // at most vocab
    float* logprob;       // of the token
    int32_t* rank;        // of the token, 1 is the best
    int32_t* top_ids;     // [num_top], best first
    float* top_logprobs;  // [num_top]
};

constexpr int32_t kSampleBlock = 64;  // logits whose maximum and sum are kept; whole vectors on every processor

// A thread's memory for rows of up to some vocabulary.
struct SampleScratch {
    double* block_sums;  // [blocks]
    float* block_max;    // [blocks, rounded up to kSampleBlock]
    float* last_block;   // [kSampleBlock], the end of the logits, filled up to a whole block
    float* edited;       // [blocks * kSampleBlock], the logits after sparse changes
    // Candidates: what is left of the vocabulary, in the order of ids. [blocks * kSampleBlock] each.
    int32_t* ids;
    float* values;   // their logits
    float* weights;  // exp((value - max) / temperature)
};

// These are static, as an inline function would be merged with that of another instruction set.
static constexpr size_t sample_blocks(size_t vocab) { return (vocab + kSampleBlock - 1) / kSampleBlock; }

// 16 bytes for each entry of the vocabulary and a little: 0.8 MB for 49,152, 4.2 MB for 262,144.
static constexpr size_t sample_scratch_bytes(size_t vocab) {
    const size_t blocks = sample_blocks(vocab), padded = blocks * kSampleBlock;
    return sizeof(double) * blocks + sizeof(float) * (sample_blocks(blocks) + 1) * kSampleBlock +
           (3 * sizeof(float) + sizeof(int32_t)) * padded;
}

// `memory` has `sample_scratch_bytes(vocab)`, aligned for a double.
static inline SampleScratch make_sample_scratch(void* memory, size_t vocab) {
    const size_t blocks = sample_blocks(vocab), padded = blocks * kSampleBlock;
    SampleScratch scratch;
    scratch.block_sums = static_cast<double*>(memory);
    scratch.values = reinterpret_cast<float*>(scratch.block_sums + blocks);
    scratch.weights = scratch.values + padded;
    scratch.edited = scratch.weights + padded;
    scratch.last_block = scratch.edited + padded;
    scratch.block_max = scratch.last_block + kSampleBlock;
    scratch.ids = reinterpret_cast<int32_t*>(scratch.block_max + sample_blocks(blocks) * kSampleBlock);
    return scratch;
}

}  // namespace headrace
