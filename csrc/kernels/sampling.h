// The choice of a token from one row of logits, and its logprobs, without sorting the vocabulary.
//
// min_p and top_k are thresholds on the logits, and top_p keeps nothing below some bound. So a row goes like this:
//
//   1. The maximum of each block of 64 logits, in one pass. A greedy row ends here.
//   2. A bound, low enough to keep all that is wanted. For top_k the maxima have one: where k blocks have a maximum of
//      at least x, k logits are at least x. It is close, as the largest logits rarely share blocks.
//   3. The candidates: logits of at least the bound, in the order of ids, from those blocks that have any.
//   4. The exact threshold among them, by halving (`find_bound`): the k-th largest for top_k, the least of the nucleus
//      for top_p.
//   5. The draw from what is left, in the order of ids.
//
// A row without top_k, min_p and top_p is drawn from the sums of its blocks.
//
// Not-a-number counts as minus infinity: the end of the last block is filled up with it, no comparison holds for it,
// and max(x, kept) is `kept` then. Sums run in an order that depends on the row alone. Nothing here comes from the
// standard library's templates, of which the linker would keep one instruction set's copy for all.
#pragma once

#include <cstring>

#include "../sampling.h"

namespace headrace::HEADRACE_NAMESPACE {

constexpr float kInfinity = __builtin_inff();
constexpr float kLowest = -3.402823466e+38f;
constexpr float kNaN = __builtin_nanf("");

inline float larger(float a, float b) { return a > b ? a : b; }

// A row in whole blocks.
struct Logits {
    const float* values;  // [size]
    const float* last;    // [kSampleBlock], the last block
    int32_t size, blocks;

    const float* block(int32_t b) const { return b + 1 < blocks ? values + b * kSampleBlock : last; }
};

inline Logits in_blocks(const float* values, int32_t size, float* last) {
    const int32_t blocks = static_cast<int32_t>(sample_blocks(size)), start = (blocks - 1) * kSampleBlock;
    for (int32_t i = 0; i < kSampleBlock; ++i) last[i] = start + i < size ? values[start + i] : kNaN;
    return {values, last, size, blocks};
}

// ---- sparse changes -------------------------------------------------------------------------------------------------

// Sources: Keskar et al., CTRL, 2019 (repetition); OpenAI's API reference (presence and frequency).
inline void penalise(const SampleRow& row, float* logits) {
    for (int32_t i = 0; i < row.num_seen; ++i) {
        float x = logits[row.seen_ids[i]];
        const int32_t count = row.output_counts[i];
        x = x > 0 ? x / row.repetition_penalty : x * row.repetition_penalty;
        x -= row.frequency_penalty * static_cast<float>(count);
        if (count > 0) x -= row.presence_penalty;
        logits[row.seen_ids[i]] = x;
    }
}

// The row's logits as it wants them: its own where it changes nothing, else a copy.
inline const float* edit(const SampleRow& row, float* copy) {
    if (!row.num_allowed && !row.num_banned && !row.num_biased && !row.num_seen) return row.logits;
    if (row.num_allowed) {
        for (int32_t i = 0; i < row.vocab; i += kLanes) store(copy + i, broadcast(-kInfinity));
        for (int32_t i = 0; i < row.num_allowed; ++i) copy[row.allowed_ids[i]] = row.logits[row.allowed_ids[i]];
    } else {
        memcpy(copy, row.logits, sizeof(float) * static_cast<size_t>(row.vocab));
    }
    for (int32_t i = 0; i < row.num_banned; ++i) copy[row.banned_ids[i]] = -kInfinity;
    for (int32_t i = 0; i < row.num_biased; ++i) copy[row.biased_ids[i]] += row.biases[i];
    penalise(row, copy);
    return copy;
}

// ---- passes over the vocabulary -------------------------------------------------------------------------------------

// Fills block_max [blocks] and returns the largest logit, minus infinity if there is no number.
inline float find_block_max(const Logits& logits, float* block_max) {
    float largest = -kInfinity;
    for (int32_t b = 0; b < logits.blocks; ++b) {
        const float* block = logits.block(b);
        Float kept = broadcast(-kInfinity);
        for (int32_t i = 0; i < kSampleBlock; i += kLanes) kept = max(load(block + i), kept);
        block_max[b] = max(kept);
        largest = larger(block_max[b], largest);
    }
    for (int32_t b = logits.blocks; b % kLanes; ++b) block_max[b] = kNaN;
    return largest;
}

// The lowest id with this logit, which is the largest; 0 if there is none, as in a row without numbers.
inline int32_t first_id(const Logits& logits, const float* block_max, float largest) {
    const Float wanted = broadcast(largest);
    for (int32_t b = 0; b < logits.blocks; ++b) {
        if (block_max[b] < largest) continue;
        for (int32_t i = 0; i < kSampleBlock; i += kLanes)
            if (const uint32_t found = bits(load(logits.block(b) + i) == wanted))
                return b * kSampleBlock + i + __builtin_ctz(found);
    }
    return 0;
}

// exp((x - largest) / temperature): a weight of 1 for the most probable token, 0 where there is no number.
struct Weigh {
    Float largest, factor;

    // At the smallest temperatures the factor stays finite, for 0 times infinity is no number.
    Weigh(float largest, double temperature)
        : largest(broadcast(largest)),
          factor(broadcast(temperature > 1e-30 ? static_cast<float>(1 / temperature) : 1e30f)) {}

    Float operator()(Float x) const { return exp(max((x - largest) * factor, broadcast(-100.0f))); }
};

// The inverse.
inline float logit_of_weight(double weight, float largest, double temperature) {
    return static_cast<float>(largest + temperature * __builtin_log(weight));
}

// Fills block_sums [blocks] and returns their sum.
inline double sum_blocks(const Logits& logits, const Weigh& weigh, double* block_sums) {
    double total = 0;
    for (int32_t b = 0; b < logits.blocks; ++b) {
        const float* block = logits.block(b);
        Float kept = broadcast(0.0f);
        for (int32_t i = 0; i < kSampleBlock; i += kLanes) kept = kept + weigh(load(block + i));
        block_sums[b] = sum(kept);
        total += block_sums[b];
    }
    return total;
}

// Not-a-number behind the last candidate, to the end of its vector: no comparison finds it.
inline void end_candidates(int32_t count, const SampleScratch& scratch) {
    for (int32_t i = count; i % kLanes; ++i) scratch.values[i] = kNaN;
}

// Puts the logits of at least `bound` and their ids, in ascending order, into scratch; returns how many. There is no
// branch for each lane, as nobody could predict it.
inline int32_t collect(const Logits& logits, float bound, const SampleScratch& scratch) {
    const Float least = broadcast(bound);
    int32_t count = 0;
    for (int32_t b = 0; b < logits.blocks; ++b) {
        if (scratch.block_max[b] < bound) continue;
        const float* block = logits.block(b);
        for (int32_t i = 0; i < kSampleBlock; i += kLanes) {
            const uint32_t found = bits(load(block + i) >= least);
            if (!found) continue;
            for (int32_t lane = 0; lane < kLanes; ++lane) {
                scratch.ids[count] = b * kSampleBlock + i + lane;
                scratch.values[count] = block[i + lane];
                count += found >> lane & 1;
            }
        }
    }
    end_candidates(count, scratch);
    return count;
}

inline int32_t count_at_least(const Logits& logits, float bound, const float* block_max) {
    const Float least = broadcast(bound), one = broadcast(1.0f), zero = broadcast(0.0f);
    Float counts = zero;  // whole numbers, exact to 2^24 in each lane
    for (int32_t b = 0; b < logits.blocks; ++b) {
        if (block_max[b] < bound) continue;
        const float* block = logits.block(b);
        for (int32_t i = 0; i < kSampleBlock; i += kLanes)
            counts = counts + select(load(block + i) >= least, one, zero);
    }
    return static_cast<int32_t>(sum(counts));
}

// ---- thresholds -----------------------------------------------------------------------------------------------------

// Order of unsigned numbers = order of floats; both zeros are one.
inline uint32_t ordered(float x) {
    const float positive_zero = x + 0.0f;
    uint32_t u;
    memcpy(&u, &positive_zero, sizeof u);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

inline float from_ordered(uint32_t key) {
    const uint32_t u = key & 0x80000000u ? key & 0x7fffffffu : ~key;
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

inline float next_above(float x) { return from_ordered(ordered(x) + 1); }

// The largest bound from `least` to `largest` whose mass, which falls as the bound rises, still reaches `wanted`, or
// `least` if none does. By halving the keys between them: at most 32 passes over values that lie in the cache.
template <class Mass>
inline float find_bound(float least, float largest, double wanted, Mass mass) {
    uint32_t low = ordered(least), high = ordered(largest);
    while (low < high) {
        const uint32_t middle = high - (high - low) / 2;
        const double found = mass(from_ordered(middle));
        if (found == wanted) return from_ordered(middle);
        if (found > wanted) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return from_ordered(low);
}

// The weights of the values of at least `bound`, together. `weights_at(i)` has those of the vector at i.
template <class WeightsAt>
inline double sum_at_least(const float* values, int32_t count, float bound, WeightsAt weights_at) {
    constexpr int32_t kSpan = 32 * kLanes;  // short sums in float32, long ones in float64
    const Float least = broadcast(bound), zero = broadcast(0.0f);
    double total = 0;
    for (int32_t start = 0; start < count; start += kSpan) {
        const int32_t end = start + kSpan < count ? start + kSpan : count;
        Float kept = zero;
        for (int32_t i = start; i < end; i += kLanes)
            kept = kept + select(load(values + i) >= least, weights_at(i), zero);
        total += sum(kept);
    }
    return total;
}

inline double number_at_least(const float* values, int32_t count, float bound) {
    const Float one = broadcast(1.0f);
    return sum_at_least(values, count, bound, [&](int32_t) { return one; });
}

// The `wanted`-th largest of these values, or what separates it from the next one.
inline float find_largest(const float* values, int32_t count, int32_t wanted, float least, float largest) {
    const auto number = [&](float bound) { return number_at_least(values, count, bound); };
    return find_bound(least, largest, wanted, number);
}

// A bound that at least `wanted` logits reach, and not many more: one that as many blocks reach, or with fewer blocks
// the best that there is.
inline float bound_of_largest(const Logits& logits, int32_t wanted, float largest, const SampleScratch& scratch) {
    const float* maxima = scratch.block_max;
    if (wanted <= logits.blocks) return find_largest(maxima, logits.blocks, wanted, -kInfinity, largest);
    const auto number = [&](float bound) { return count_at_least(logits, bound, maxima); };
    return find_bound(-kInfinity, largest, wanted, number);
}

// Drops the candidates below `bound`, and of those that are equal to it all but the first `max_ties`; returns how many
// are left.
inline int32_t keep(float bound, int32_t max_ties, int32_t count, const SampleScratch& scratch) {
    int32_t kept = 0;
    for (int32_t i = 0; i < count; ++i) {
        const float value = scratch.values[i];
        const int32_t is_tie = value == bound && max_ties > 0;
        scratch.ids[kept] = scratch.ids[i];
        scratch.values[kept] = value;
        scratch.weights[kept] = scratch.weights[i];
        kept += (value > bound) | is_tie;
        max_ties -= is_tie;
    }
    end_candidates(kept, scratch);
    return kept;
}

// The `wanted` largest candidates; those that are equal to the last of them are all kept, or only as many as there are
// places. Every candidate is at least `least`.
inline int32_t keep_largest(int32_t wanted, bool keeps_ties, int32_t count, float least, float largest,
                            const SampleScratch& scratch) {
    if (wanted >= count) return count;
    const float bound = find_largest(scratch.values, count, wanted, least, largest);
    if (keeps_ties) return keep(bound, count, count, scratch);
    const double num_above = number_at_least(scratch.values, count, next_above(bound));
    return keep(bound, wanted - static_cast<int32_t>(num_above), count, scratch);
}

inline double weight_at_least(float bound, int32_t count, const SampleScratch& scratch) {
    return sum_at_least(scratch.values, count, bound, [&](int32_t i) { return load(scratch.weights + i); });
}

// The fewest candidates, largest first and then in order, whose weights add up to `wanted`.
inline int32_t keep_nucleus(double wanted, int32_t count, float least, float largest, const SampleScratch& scratch) {
    const auto mass = [&](float bound) { return weight_at_least(bound, count, scratch); };
    const float bound = find_bound(least, largest, wanted, mass);
    double reached = mass(next_above(bound));
    int32_t ties = 0;
    for (int32_t i = 0; i < count && reached < wanted; ++i) {
        if (scratch.values[i] != bound) continue;
        reached += scratch.weights[i];
        ++ties;
    }
    return keep(bound, ties, count, scratch);
}

// ---- the draw -------------------------------------------------------------------------------------------------------

// The first place where the running sum of weights exceeds `target`. Weights of 0 are never drawn, whatever rounding
// does to the last sum.
inline int32_t draw_place(const float* weights, int32_t count, double running, double target) {
    int32_t place = 0;
    for (int32_t i = 0; i < count; ++i) {
        if (!(weights[i] > 0)) continue;
        place = i;
        running += weights[i];
        if (running > target) break;
    }
    return place;
}

inline int32_t draw_from_all(const Logits& logits, const Weigh& weigh, double uniform, double* block_sums) {
    const double target = uniform * sum_blocks(logits, weigh, block_sums);
    int32_t drawn = 0;
    double before = 0, running = 0;
    for (int32_t b = 0; b < logits.blocks; ++b) {
        if (!(block_sums[b] > 0)) continue;
        drawn = b;
        before = running;
        running += block_sums[b];
        if (running > target) break;
    }
    float weights[kSampleBlock];
    for (int32_t i = 0; i < kSampleBlock; i += kLanes) store(weights + i, weigh(load(logits.block(drawn) + i)));
    return drawn * kSampleBlock + draw_place(weights, kSampleBlock, before, target);
}

inline double sum_of(const float* weights, int32_t count) {
    double total = 0;
    for (int32_t i = 0; i < count; ++i) total += weights[i];
    return total;
}

inline void weigh_candidates(const Weigh& weigh, int32_t count, const SampleScratch& scratch) {
    for (int32_t i = 0; i < count; i += kLanes) store(scratch.weights + i, weigh(load(scratch.values + i)));
}

// What is left of the vocabulary before top_p, or (where only top_p drops anything) more than it will keep.
struct Candidates {
    int32_t count;
    float least;   // no candidate is below
    double total;  // the weights that top_p has its share of
};

// min_p, then top_k of what it leaves; at least one of them is on.
inline Candidates above_thresholds(const SampleRow& row, const Logits& logits, const Weigh& weigh, float largest,
                                   const SampleScratch& scratch) {
    const bool has_top_k = 0 < row.top_k && row.top_k < row.vocab;
    float least = kLowest;
    if (has_top_k) least = larger(least, bound_of_largest(logits, row.top_k, largest, scratch));
    if (row.min_p > 0) least = larger(least, logit_of_weight(row.min_p, largest, row.temperature));
    int32_t count = collect(logits, least, scratch);
    if (has_top_k) count = keep_largest(row.top_k, true, count, least, largest, scratch);
    weigh_candidates(weigh, count, scratch);
    return {count, least, sum_of(scratch.weights, count)};
}

// Where the logits below have about `tail` of the weights, going by every sixteenth block. At least `least`.
inline float estimate_tail(const Logits& logits, const Weigh& weigh, double tail, float least, float largest,
                           const SampleScratch& scratch) {
    constexpr int32_t kStep = 16;
    int32_t count = 0;
    for (int32_t b = 0; b < logits.blocks; b += kStep, count += kSampleBlock)
        memcpy(scratch.values + count, logits.block(b), sizeof(float) * kSampleBlock);
    weigh_candidates(weigh, count, scratch);
    const auto mass = [&](float bound) { return weight_at_least(bound, count, scratch); };
    return find_bound(least, largest, mass(least) - tail / kStep, mass);
}

// Half of what top_p leaves out is left out here. The safe bound takes every logit below it for one just below it; a
// guess is ten times closer, and is given up where it turns out to have left out too much.
inline Candidates around_nucleus(const SampleRow& row, const Logits& logits, const Weigh& weigh, float largest,
                                 const SampleScratch& scratch) {
    const double total = sum_blocks(logits, weigh, scratch.block_sums), tail = 0.5 * (1 - row.top_p) * total;
    const float safe = larger(kLowest, logit_of_weight(tail / row.vocab, largest, row.temperature));
    float least = estimate_tail(logits, weigh, tail, safe, largest, scratch);
    for (;; least = safe) {
        const int32_t count = collect(logits, least, scratch);
        weigh_candidates(weigh, count, scratch);
        if (least == safe || sum_of(scratch.weights, count) >= row.top_p * total) return {count, least, total};
    }
}

inline int32_t draw_from_candidates(const SampleRow& row, const Logits& logits, const Weigh& weigh, float largest,
                                    const SampleScratch& scratch) {
    const bool has_thresholds = row.min_p > 0 || (0 < row.top_k && row.top_k < row.vocab);
    const Candidates found = has_thresholds ? above_thresholds(row, logits, weigh, largest, scratch)
                                            : around_nucleus(row, logits, weigh, largest, scratch);
    int32_t count = found.count;
    if (row.top_p < 1) count = keep_nucleus(row.top_p * found.total, count, found.least, largest, scratch);
    const double target = row.uniform * sum_of(scratch.weights, count);
    return scratch.ids[draw_place(scratch.weights, count, 0, target)];
}

inline int32_t choose(const SampleRow& row, const Logits& logits, float largest, const SampleScratch& scratch) {
    const bool is_finite = largest - largest == 0;  // else there is nothing to weigh the others by
    if (row.temperature <= 0 || !is_finite) return first_id(logits, scratch.block_max, largest);
    const Weigh weigh(largest, row.temperature);
    const bool keeps_all = row.min_p <= 0 && (row.top_k <= 0 || row.top_k >= row.vocab) && row.top_p >= 1;
    if (keeps_all) return draw_from_all(logits, weigh, row.uniform, scratch.block_sums);
    return draw_from_candidates(row, logits, weigh, largest, scratch);
}

// ---- logprobs -------------------------------------------------------------------------------------------------------

// Largest value first, lowest id among equals. Shell's sort, with the gaps of Ciura, 2001: a few dozen pairs at most.
inline void sort_pairs(float* values, int32_t* ids, int32_t count) {
    constexpr int32_t kGaps[] = {701, 301, 132, 57, 23, 10, 4, 1};
    for (int32_t gap : kGaps) {
        for (int32_t i = gap; i < count; ++i) {
            const float value = values[i];
            const int32_t id = ids[i];
            int32_t place = i;
            for (; place >= gap; place -= gap) {
                const float before = values[place - gap];
                if (before > value || (before == value && ids[place - gap] < id)) break;
                values[place] = before;
                ids[place] = ids[place - gap];
            }
            values[place] = value;
            ids[place] = id;
        }
    }
}

// The `wanted` largest logits in scratch, largest first.
inline void find_top(const Logits& logits, int32_t wanted, float largest, const SampleScratch& scratch) {
    const float bound = bound_of_largest(logits, wanted, largest, scratch);
    int32_t count = collect(logits, bound, scratch);
    count = keep_largest(wanted, false, count, bound, largest, scratch);
    for (int32_t id = 0; count < wanted; ++id) {  // too few numbers
        if (logits.values[id] == logits.values[id]) continue;
        scratch.ids[count] = id;
        scratch.values[count++] = -kInfinity;
    }
    sort_pairs(scratch.values, scratch.ids, wanted);
}

inline void write_logprobs(const SampleRow& row, const Logits& logits, float largest, const SampleScratch& scratch) {
    const double log_sum = __builtin_log(sum_blocks(logits, Weigh(largest, 1), scratch.block_sums));
    const auto logprob = [&](float x) { return static_cast<float>(static_cast<double>(x) - largest - log_sum); };

    const float chosen = logits.values[*row.token];
    const int32_t rank = count_at_least(logits, chosen, scratch.block_max);
    *row.logprob = logprob(chosen == chosen ? chosen : -kInfinity);
    *row.rank = rank > 0 ? rank : row.vocab;
    if (row.num_top == 0) return;
    find_top(logits, row.num_top, largest, scratch);
    for (int32_t i = 0; i < row.num_top; ++i) {
        row.top_ids[i] = scratch.ids[i];
        row.top_logprobs[i] = logprob(scratch.values[i]);
    }
}

// Writes the row's results. The scratch is of a vocabulary at least as large, and holds nothing between rows.
inline void sample_row(const SampleRow& row, const SampleScratch& scratch) {
    const float* edited = edit(row, scratch.edited);
    Logits logits = in_blocks(edited, row.vocab, scratch.last_block);
    float largest = find_block_max(logits, scratch.block_max);
    *row.token = choose(row, logits, largest, scratch);
    if (!row.logprob) return;
    if (edited != row.logits) {  // logprobs are of the raw ones
        logits = in_blocks(row.logits, row.vocab, scratch.last_block);
        largest = find_block_max(logits, scratch.block_max);
    }
    write_logprobs(row, logits, largest, scratch);
}

}  // namespace headrace::HEADRACE_NAMESPACE
