// Paged attention: writing keys and values into the cache, and attending to what is there. Prefill and decode are the
// same kernel: some query rows of one request against the positions of its blocks.
//
// Positions are read in splits of 256 from the start of the sequence. Within a split: scores, their maximum, weights
// relative to it, weighted values. Splits are merged in order. A row's result is therefore the same whether its splits
// were computed by one thread or by many, and whichever rows came in the same step. The two products are those of
// gemm.h: the cache stores keys as panels whose columns are positions, values as panels whose inputs are positions.
#pragma once

#include "../args.h"
#include "convert.h"
#include "math.h"
#include "rows.h"
#include "weights.h"

namespace headrace::HEADRACE_NAMESPACE {

// ---- the cache ------------------------------------------------------------------------------------------------------

// Rounds `count` floats; reads up to the next whole vector.
inline void round_row(const float* x, int64_t count, uint16_t* out) {
    for (int64_t i = 0; i < count; i += kLanes) store_bf16(out + i, load(x + i));
}

inline void write_key(const KVCache& cache, uint32_t* group, int64_t lane, const float* key) {
    if (cache.type == Type::float32) {
        for (int64_t i = 0; i < cache.head_dim; ++i) __builtin_memcpy(group + i * kGroup + lane, key + i, sizeof(float));
        return;
    }
    uint16_t rounded[kMaxHeadDim];
    round_row(key, cache.head_dim, rounded);
    uint16_t* halves = reinterpret_cast<uint16_t*>(group) + 2 * lane;
    for (int64_t i = 0; i < cache.head_dim; ++i) halves[i / 2 * 2 * kGroup + i % 2] = rounded[i];
}

inline void write_value(const KVCache& cache, uint32_t* group, int64_t lane, const float* value) {
    uint32_t* values = group + cache.key_words();
    if (cache.type == Type::float32) {  // [panels of 16 elements][16 slots][16 elements]
        for (int64_t i = 0; i < cache.head_dim; ++i)
            __builtin_memcpy(values + (i / kPanel * kGroup + lane) * kPanel + i % kPanel, value + i, sizeof(float));
        return;
    }
    uint16_t rounded[kMaxHeadDim];
    round_row(value, cache.head_dim, rounded);
    uint16_t* halves = reinterpret_cast<uint16_t*>(values);  // [panels][8 pairs of slots][16 elements][2]
    for (int64_t i = 0; i < cache.head_dim; ++i)
        halves[((i / kPanel * kGroup / 2 + lane / 2) * kPanel + i % kPanel) * 2 + lane % 2] = rounded[i];
}

inline void kv_write(const KVWriteArgs& args, const Step& step, int64_t first_row, int64_t last_row) {
    const KVCache& cache = args.cache;
    alignas(64) float head[kMaxHeadDim];
    for (int64_t row = first_row; row < last_row; ++row) {
        const int64_t slot = step.slots[row], lane = slot % kGroup;
        for (int64_t h = 0; h < cache.num_kv_heads; ++h) {
            uint32_t* group = cache.group(slot / kGroup, h);
            const float* key = args.k + row * args.k_stride + h * cache.head_dim;
            const float* value = args.v + row * args.v_stride + h * cache.head_dim;
            if (args.rotation.cos) {
                rotate(args.rotation, step.positions[row], key, head);
            } else {
                __builtin_memcpy(head, key, cache.head_dim * sizeof(float));
            }
            write_key(cache, group, lane, head);
            __builtin_memcpy(head, value, cache.head_dim * sizeof(float));
            write_value(cache, group, lane, head);
        }
    }
}

// Puts groups of positions together where blocks are not whole groups, position by position: slow, and for block sizes
// that nobody should want.
inline void copy_groups(const KVCache& cache, const int32_t* blocks, int64_t kv_head, int64_t start, int64_t count,
                        uint32_t* copy) {
    const int64_t key_rows = cache.key_words() / kGroup;
    const int64_t pair = cache.type == Type::float32 ? 1 : 2, value_rows = kGroup / pair;
    for (int64_t p = 0; p < count; ++p) {
        const int64_t position = start + p;
        const int64_t slot = blocks[position / cache.block_size] * cache.block_size + position % cache.block_size;
        const uint32_t* from = cache.group(slot / kGroup, kv_head);
        uint32_t* to = copy + p / kGroup * cache.group_words();
        for (int64_t i = 0; i < key_rows; ++i) to[i * kGroup + p % kGroup] = from[i * kGroup + slot % kGroup];
        from += cache.key_words();
        to += cache.key_words();
        for (int64_t panel = 0; panel < cache.value_width() / kPanel; ++panel)
            for (int64_t i = 0; i < kPanel; ++i) {
                const uint32_t word = from[(panel * value_rows + slot % kGroup / pair) * kPanel + i];
                uint32_t& place = to[(panel * value_rows + p % kGroup / pair) * kPanel + i];
                if (pair == 1) {
                    place = word;
                } else {
                    const uint32_t half = word >> (slot % 2 * 16) & 0xffffu;
                    place = p % 2 ? (place & 0xffffu) | half << 16 : half;
                }
            }
    }
}

// The groups that hold the positions of one split, for one KV head: keys[g] and values[g] of positions 16 g to 16 g + 15.
struct SplitGroups {
    const uint32_t* keys[kSplit / kGroup + kMaxPanels];  // behind the last is what will be read then: values
    const uint32_t* values[kSplit / kGroup];
};

// Where blocks are whole groups, a group of positions is a group of the cache. Else it is put together in `copy`.
inline void find_groups(const KVCache& cache, const int32_t* blocks, int64_t kv_head, int64_t start, int64_t count,
                        uint32_t* copy, SplitGroups& groups) {
    const int64_t num_groups = (count + kGroup - 1) / kGroup;
    if (cache.block_size % kGroup == 0) {
        const int64_t groups_in_block = cache.block_size / kGroup;
        for (int64_t g = 0; g < num_groups; ++g) {
            const int64_t place = start / kGroup + g;
            const int64_t group = blocks[place / groups_in_block] * groups_in_block + place % groups_in_block;
            groups.keys[g] = cache.group(group, kv_head);
        }
    } else {
        copy_groups(cache, blocks, kv_head, start, count, copy);
        for (int64_t g = 0; g < num_groups; ++g) groups.keys[g] = copy + g * cache.group_words();
    }
    for (int64_t g = 0; g < num_groups; ++g) groups.values[g] = groups.keys[g] + cache.key_words();
    for (int64_t p = 0; p < kMaxPanels; ++p) groups.keys[num_groups + p] = groups.values[p < num_groups ? p : 0];
}

// ---- one split ------------------------------------------------------------------------------------------------------

// Positions first to last of the split, both from 0 to its `count`, are those that a row sees.
struct Visible {
    int64_t first, last;
    bool any() const { return first < last; }
};

inline Visible visible(const AttentionArgs& args, int64_t position, int64_t start, int64_t count) {
    const auto within = [&](int64_t place) { return place < 0 ? 0 : place < count ? place : count; };
    return {args.window ? within(position + 1 - args.window - start) : 0, within(position + 1 - start)};
}

// Scores [count rounded up to groups] to weights relative to their maximum, as operands; zero where nothing is seen.
template <class Operand>
inline RowTotal weigh(const AttentionArgs& args, float* scores, int64_t width, const Visible& seen, Operand* weights) {
    if (args.softcap > 0.0f) {
        const Float cap = broadcast(args.softcap);
        for (int64_t i = 0; i < width; i += kLanes) store(scores + i, cap * tanh(load(scores + i) / cap));
    }
    for (int64_t i = 0; i < seen.first; ++i) scores[i] = -__builtin_inff();
    for (int64_t i = seen.last; i < width; ++i) scores[i] = -__builtin_inff();
    Float peaks = load(scores);
    for (int64_t i = kLanes; i < width; i += kLanes) peaks = max(peaks, load(scores + i));
    const float peak = max(peaks);
    Float total = broadcast(0.0f);
    for (int64_t i = 0; i < width; i += kLanes) {
        const Float weight = exp(load(scores + i) - broadcast(peak));
        total = total + weight;
        if constexpr (sizeof(Operand) == sizeof(float)) {
            store(weights + i, weight);
        } else {
            store_bf16(weights + i, weight);
        }
    }
    return {peak, sum(total)};
}

// total += part, both relative to their own peaks. Elements are whole vectors.
inline void merge(RowTotal& total, float* sums, const RowTotal& part, const float* part_sums, int64_t width) {
    if (total.peak == -__builtin_inff()) {
        total = part;
        __builtin_memcpy(sums, part_sums, width * sizeof(float));
        return;
    }
    const float peak = total.peak > part.peak ? total.peak : part.peak;
    const float keep = exp(total.peak - peak), add = exp(part.peak - peak);
    for (int64_t i = 0; i < width; i += kLanes)
        store(sums + i, fma(load(part_sums + i), broadcast(add), load(sums + i) * broadcast(keep)));
    total = {peak, total.weight * keep + part.weight * add};
}

inline void finish_row(const AttentionArgs& args, const RowTotal& total, const float* sums, int64_t token, int64_t head) {
    const int64_t head_dim = args.cache.head_dim, at = token * args.out_stride + head * head_dim;
    const float factor = 1.0f / total.weight;
    int64_t i = 0;
    for (; i + kLanes <= head_dim; i += kLanes) store_as(args.out_type, args.out, at + i, load(sums + i) * broadcast(factor));
    for (; i < head_dim; ++i) store_as(args.out_type, args.out, at + i, sums[i] * factor);
}

// ---- one item: some rows of a request, one KV head ------------------------------------------------------------------

template <class Weights>
struct Attention {
    using Operand = typename Weights::Operand;

    const AttentionArgs& args;
    const Step& step;
    const AttentionItem& item;
    const int64_t kv_head;
    const AttentionScratch& scratch;

    int64_t group() const { return args.num_heads / args.cache.num_kv_heads; }
    int64_t num_rows() const { return item.num_tokens * group(); }
    int64_t token(int64_t row) const { return item.first_token + row / group(); }
    int64_t head(int64_t row) const { return kv_head * group() + row % group(); }
    int64_t query_stride() const { return round_up(args.cache.head_dim, kPanel); }
    Operand* query(int64_t row) const { return static_cast<Operand*>(scratch.queries) + row * query_stride(); }

    // Rows are the query heads of each token, rotated and scaled.
    void load_queries() const {
        const int64_t head_dim = args.cache.head_dim;
        alignas(64) float rotated[kMaxHeadDim];
        for (int64_t row = 0; row < num_rows(); ++row) {
            const float* q = args.q + token(row) * args.q_stride + head(row) * head_dim;
            if (args.rotation.cos) {
                rotate(args.rotation, step.positions[token(row)], q, rotated);
            } else {
                __builtin_memcpy(rotated, q, head_dim * sizeof(float));
            }
            for (int64_t i = 0; i < head_dim; i += kLanes) {
                const Float scaled = load(rotated + i) * broadcast(args.scale);
                if constexpr (sizeof(Operand) == sizeof(float)) {
                    store(query(row) + i, scaled);
                } else {
                    store_bf16(query(row) + i, scaled);
                }
            }
        }
    }

    // Adds a split to the totals of all rows.
    void add_split(int64_t split) const {
        const KVCache& cache = args.cache;
        const int64_t start = split * kSplit;
        const int64_t end = step.positions[item.first_token + item.num_tokens - 1] + 1;  // of the last row
        const int64_t count = end - start < kSplit ? end - start : kSplit;
        const int64_t width = round_up(count, kGroup), value_width = cache.value_width();
        const int32_t* blocks = step.block_tables + item.request * step.block_table_width;
        SplitGroups groups = {};
        find_groups(cache, blocks, kv_head, start, count, scratch.copy, groups);

        const PanelSource keys{Layout::keys, groups.keys, cache.head_dim, cache.head_dim, 0};
        const PanelSource values{Layout::values, groups.values, kGroup, count,
                                 cache.value_words() / (value_width / kPanel)};
        constexpr int64_t kMost = Weights::kRowsAtOnce;
        alignas(64) float scores[kMost * kSplit];
        alignas(64) Operand weights[kMost * kSplit];
        alignas(64) float sums[kMost * kMaxHeadDim];
        RowTotal parts[kMost];
        for (int64_t row = 0; row < num_rows(); row += kMost) {
            const int64_t rows = num_rows() - row < kMost ? num_rows() - row : kMost;
            bool is_seen = false;
            for (int64_t r = 0; r < rows; ++r)
                is_seen |= visible(args, step.positions[token(row + r)], start, count).any();
            if (!is_seen) continue;
            Weights::multiply(rows, query(row), query_stride(), keys, 0, width / kGroup, scores, kSplit);
            for (int64_t r = 0; r < rows; ++r)
                parts[r] = weigh(args, scores + r * kSplit, width,
                                 visible(args, step.positions[token(row + r)], start, count), weights + r * kSplit);
            Weights::multiply(rows, weights, kSplit, values, 0, value_width / kPanel, sums, kMaxHeadDim);
            for (int64_t r = 0; r < rows; ++r)
                if (visible(args, step.positions[token(row + r)], start, count).any())
                    merge(scratch.rows[row + r], scratch.totals + (row + r) * value_width, parts[r],
                          sums + r * kMaxHeadDim, value_width);
        }
    }

    void compute() const {
        load_queries();
        for (int64_t row = 0; row < num_rows(); ++row) scratch.rows[row] = {-__builtin_inff(), 0.0f};
        if (item.split != kAllSplits) return compute_part();
        for (int64_t split = first_split(); split < item.num_splits; ++split) add_split(split);
        for (int64_t row = 0; row < num_rows(); ++row)
            finish_row(args, scratch.rows[row], total(row), token(row), head(row));
    }

    // The first split that the item's first row sees.
    int64_t first_split() const {
        const int64_t first = args.window ? step.positions[item.first_token] + 1 - args.window : 0;
        return first > 0 ? first / kSplit : 0;
    }

    float* total(int64_t row) const { return scratch.totals + row * args.cache.value_width(); }

    // One split of one token. Whoever finishes the last one merges them, in order.
    void compute_part() const {
        add_split(item.split);
        for (int64_t row = 0; row < num_rows(); ++row) {
            float* place = partial(item.split, head(row));
            __builtin_memcpy(place, total(row), args.cache.value_width() * sizeof(float));
            __builtin_memcpy(place + args.cache.value_width(), &scratch.rows[row], sizeof(RowTotal));
        }
        int32_t* remaining = args.remaining + item.first_token * args.cache.num_kv_heads + kv_head;
        const int32_t finished = __atomic_add_fetch(remaining, 1, __ATOMIC_ACQ_REL);
        if (finished < item.num_splits) return;
        __atomic_store_n(remaining, 0, __ATOMIC_RELAXED);
        for (int64_t row = 0; row < num_rows(); ++row) {
            scratch.rows[row] = {-__builtin_inff(), 0.0f};
            for (int64_t split = 0; split < item.num_splits; ++split) {
                const float* place = partial(split, head(row));
                RowTotal part;
                __builtin_memcpy(&part, place + args.cache.value_width(), sizeof part);
                if (part.peak != -__builtin_inff())
                    merge(scratch.rows[row], total(row), part, place, args.cache.value_width());
            }
            finish_row(args, scratch.rows[row], total(row), token(row), head(row));
        }
    }

    float* partial(int64_t split, int64_t head) const {
        return args.partials + ((item.partial + split) * args.num_heads + head) * args.partial_width();
    }
};

inline void attention(const AttentionArgs& args, const Step& step, int64_t tile, const AttentionScratch& scratch) {
    const AttentionItem& item = step.items[tile / args.cache.num_kv_heads];
    const int64_t kv_head = tile % args.cache.num_kv_heads;
    if (args.cache.type == Type::bfloat16) {
        Attention<BFloat16Weights>{args, step, item, kv_head, scratch}.compute();
    } else {
        Attention<Float32Weights>{args, step, item, kv_head, scratch}.compute();
    }
}

}  // namespace headrace::HEADRACE_NAMESPACE
