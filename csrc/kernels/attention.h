// Paged attention: writing keys and values into the cache, and attending to what is there. Prefill and decode are the
// same kernel: some query rows of one request against the positions of its blocks.
//
// Positions are read in splits of 256 from the start of the sequence. Within a split: scores, their maximum, weights
// relative to it, weighted values. Splits are merged in order. A row's result is therefore the same whether its splits
// were computed by one thread or by many, and whichever rows came in the same step. The two products are those of
// gemm.h: the cache stores keys as panels whose columns are positions, values as panels whose inputs are positions.
//
// A cache of int8 or fp8 has a scale for each slot and head, of its key and of its value. Its numbers are widened to
// bfloat16, which holds them exactly, a split at a time, and multiplied as they are; scales go onto scores and weights.
#pragma once

#include "../args.h"
#include "convert.h"
#include "math.h"
#include "rows.h"
#include "weights.h"

namespace headrace::HEADRACE_NAMESPACE {

// ---- the cache ------------------------------------------------------------------------------------------------------

// One slot of a group, for one KV head: where its elements lie. Types of less than a word lie in pairs.
template <class Element>
struct Slot {
    static constexpr int64_t kPair = sizeof(Element) == sizeof(uint32_t) ? 1 : 2;

    Element *keys, *values;
    int64_t lane;

    Slot(const KVCache& cache, uint32_t* group, int64_t lane)
        : keys(reinterpret_cast<Element*>(group)),
          values(reinterpret_cast<Element*>(group + cache.key_words())),
          lane(lane) {}

    Element& key(int64_t i) const { return keys[(i / kPair * kGroup + lane) * kPair + i % kPair]; }
    Element& value(int64_t i) const {  // [panels of 16 elements][slots, or pairs of them][16 elements]
        return values[((i / kPanel * (kGroup / kPair) + lane / kPair) * kPanel + i % kPanel) * kPair + lane % kPair];
    }
};

// Of a group of int8 or fp8: those of its keys, then those of its values.
inline float* scales_of(const KVCache& cache, uint32_t* group) {
    return reinterpret_cast<float*>(group + cache.key_words() + cache.value_words());
}

// What a cache holds of a head goes to `out`; the result is what that is to be multiplied by. `x` is filled up with zeros
// to whole vectors.
inline float round_head(Type, const float* x, int64_t count, uint32_t* out) {
    __builtin_memcpy(out, x, count * sizeof(float));
    return 1.0f;
}

inline float round_head(Type, const float* x, int64_t count, uint16_t* out) {
    for (int64_t i = 0; i < count; i += kLanes) store_bf16(out + i, load(x + i));
    return 1.0f;
}

// To the nearest, ties to even; |x| is at most a little more than 448, the largest fp8. Numbers below 2^-6 are multiples of
// 2^-9: adding 2^23 to so many leaves them in the lowest bits.
inline uint8_t round_fp8(float x) {
    uint32_t u, multiple;
    __builtin_memcpy(&u, &x, sizeof u);
    const uint32_t sign = u >> 24 & 0x80u;
    u &= 0x7fffffffu;
    const uint32_t normal = ((u + 0x7ffffu + (u >> 20 & 1u)) >> 20) - (120u << 3);
    const float sum = __builtin_fabsf(x) * 512.0f + 0x1p23f;
    __builtin_memcpy(&multiple, &sum, sizeof multiple);
    const uint32_t magnitude = u < 121u << 23 ? multiple & 15u : normal;
    return static_cast<uint8_t>(sign | (magnitude < 0x7eu ? magnitude : 0x7eu));
}

// The largest element becomes the largest number of the type. A head of zeros, or of hardly more, has the scale 0; one with
// an element that is not finite has none: NaN.
inline float round_head(Type type, const float* x, int64_t count, uint8_t* out) {
    Float peaks = broadcast(0.0f), strange = broadcast(0.0f);
    for (int64_t i = 0; i < count; i += kLanes) {
        const Float part = load(x + i);
        peaks = max(peaks, max(part, broadcast(0.0f) - part));
        strange = strange + (part - part);
    }
    const float scale = max(peaks) / (type == Type::int8 ? 127.0f : 448.0f) + sum(strange);
    if (!(scale >= 0x1p-126f)) {
        __builtin_memset(out, 0, count);
        return scale < 0x1p-126f ? 0.0f : scale;
    }
    alignas(64) float multiples[kMaxHeadDim];
    for (int64_t i = 0; i < count; i += kLanes) store(multiples + i, load(x + i) / broadcast(scale));
    if (type == Type::int8) {
        alignas(64) int32_t nearest[kMaxHeadDim];
        for (int64_t i = 0; i < count; i += kLanes) store_int(nearest + i, to_int(load(multiples + i)));
        for (int64_t i = 0; i < count; ++i) out[i] = static_cast<uint8_t>(nearest[i]);
    } else {
        for (int64_t i = 0; i < count; ++i) out[i] = round_fp8(multiples[i]);
    }
    return scale;
}

template <class Element>
inline void write_slot(const KVCache& cache, int64_t slot, int64_t kv_head, const float* key, const float* value) {
    uint32_t* group = cache.group(slot / kGroup, kv_head);
    const Slot<Element> to(cache, group, slot % kGroup);
    alignas(64) Element rounded[kMaxHeadDim];
    const float key_scale = round_head(cache.type, key, cache.head_dim, rounded);
    if constexpr (sizeof(Element) == sizeof(uint16_t)) {  // pairs of elements, which are words
        if (cache.head_dim % 2) rounded[cache.head_dim] = 0;
        for (int64_t i = 0; i < cache.head_dim; i += 2)
            __builtin_memcpy(group + i / 2 * kGroup + to.lane, rounded + i, sizeof(uint32_t));
    } else {
        for (int64_t i = 0; i < cache.head_dim; ++i) to.key(i) = rounded[i];
    }
    const float value_scale = round_head(cache.type, value, cache.head_dim, rounded);
    for (int64_t i = 0; i < cache.head_dim; ++i) to.value(i) = rounded[i];
    if (cache.is_quantized()) {
        scales_of(cache, group)[to.lane] = key_scale;
        scales_of(cache, group)[kGroup + to.lane] = value_scale;
    }
}

inline void write_token(const KVWriteArgs& args, const Step& step, int64_t token, int64_t kv_head) {
    const KVCache& cache = args.cache;
    alignas(64) float key[kMaxHeadDim], value[kMaxHeadDim];
    const int64_t filled = round_up(cache.head_dim, kPanel);
    const float* k = args.k + token * args.k_stride + kv_head * cache.head_dim;
    if (args.rotation.cos) {
        rotate(args.rotation, step.positions[token], k, key);
    } else {
        __builtin_memcpy(key, k, cache.head_dim * sizeof(float));
    }
    __builtin_memcpy(value, args.v + token * args.v_stride + kv_head * cache.head_dim, cache.head_dim * sizeof(float));
    for (int64_t i = cache.head_dim; i < filled; ++i) key[i] = value[i] = 0.0f;
    const auto write = cache.type == Type::float32    ? write_slot<uint32_t>
                       : cache.type == Type::bfloat16 ? write_slot<uint16_t>
                                                      : write_slot<uint8_t>;
    write(cache, step.slots[token], kv_head, key, value);
}

inline void kv_write(const KVWriteArgs& args, const Step& step, int64_t first_row, int64_t last_row) {
    for (int64_t row = first_row; row < last_row; ++row)
        for (int64_t h = 0; h < args.cache.num_kv_heads; ++h)
            write_token(args, step, step.shared_tokens[row], h);
}

// Puts groups of positions together where blocks are not whole groups, element by element: slow, and for block sizes that
// nobody should want.
template <class Element>
inline void copy_groups(const KVCache& cache, const int32_t* blocks, int64_t kv_head, int64_t start, int64_t count,
                        uint32_t* copy) {
    for (int64_t p = 0; p < count; ++p) {
        const int64_t position = start + p;
        const int64_t slot = blocks[position / cache.block_size] * cache.block_size + position % cache.block_size;
        uint32_t* from_group = cache.group(slot / kGroup, kv_head);
        uint32_t* to_group = copy + p / kGroup * cache.group_words();
        const Slot<Element> from(cache, from_group, slot % kGroup), to(cache, to_group, p % kGroup);
        for (int64_t i = 0; i < cache.head_dim; ++i) to.key(i) = from.key(i);
        for (int64_t i = 0; i < cache.head_dim; ++i) to.value(i) = from.value(i);
        if (!cache.is_quantized()) continue;
        for (int64_t first = 0; first < 2 * kGroup; first += kGroup)
            scales_of(cache, to_group)[first + to.lane] = scales_of(cache, from_group)[first + from.lane];
    }
}

// The groups that hold the positions of one split, for one KV head: keys[g] and values[g] of positions 16 g to 16 g + 15, where
// the split begins at 0.
struct SplitGroups {
    int64_t start, count;  // positions
    const uint32_t* keys[kSplit / kGroup + kMaxPanels];  // behind the last is what will be read then: values
    const uint32_t* values[kSplit / kGroup];
};

// Where blocks are whole groups, a group of positions is a group of the cache. Else it is put together in `copy`.
inline void find_groups(const KVCache& cache, const int32_t* blocks, int64_t kv_head, int64_t start, int64_t count,
                        uint32_t* copy, SplitGroups& groups) {
    groups.start = start;
    groups.count = count;
    const int64_t num_groups = (count + kGroup - 1) / kGroup;
    if (cache.block_size % kGroup == 0) {
        const int64_t groups_in_block = cache.block_size / kGroup;
        for (int64_t g = 0; g < num_groups; ++g) {
            const int64_t place = start / kGroup + g;
            const int64_t group = blocks[place / groups_in_block] * groups_in_block + place % groups_in_block;
            groups.keys[g] = cache.group(group, kv_head);
        }
    } else {
        const auto copy_all = cache.type == Type::float32    ? copy_groups<uint32_t>
                              : cache.type == Type::bfloat16 ? copy_groups<uint16_t>
                                                             : copy_groups<uint8_t>;
        copy_all(cache, blocks, kv_head, start, count, copy);
        for (int64_t g = 0; g < num_groups; ++g) groups.keys[g] = copy + g * cache.group_words();
    }
    for (int64_t g = 0; g < num_groups; ++g) groups.values[g] = groups.keys[g] + cache.key_words();
    for (int64_t p = 0; p < kMaxPanels; ++p) groups.keys[num_groups + p] = groups.values[p < num_groups ? p : 0];
}

// The first split that an item's first row sees.
inline int64_t first_split(const AttentionArgs& args, const Step& step, const AttentionItem& item) {
    const int64_t first = args.window ? step.positions[item.first_token] + 1 - args.window : 0;
    return first > 0 ? first / kSplit : 0;
}

// The splits that some units read, items of some rows and one of their KV heads, in the order in which they are computed. While
// one is computed, the next is fetched.
class SplitReader {
  public:
    Prefetcher prefetcher;

    SplitReader(const AttentionArgs& args, const Step& step, uint32_t* copy, int64_t first_unit, int64_t last_unit)
        : args_(args), step_(step), copy_(copy), unit_(first_unit), last_unit_(last_unit) {
        begin_unit();
        if (looks_ahead()) find();
    }

    const SplitGroups& take() {
        if (!looks_ahead()) find();
        const SplitGroups& taken = splits_[place_];
        place_ = !place_;
        if (++split_ == end_split_) {
            ++unit_;
            begin_unit();
        }
        if (looks_ahead() && unit_ < last_unit_) {
            find();
            const SplitGroups& next = splits_[place_];
            prefetcher.start(next.keys, (next.count + kGroup - 1) / kGroup, args_.cache.group_words());
        } else {
            prefetcher.stop();
        }
        return taken;
    }

  private:
    // Splits that have to be put together are so one at a time.
    bool looks_ahead() const { return args_.cache.block_size % kGroup == 0; }
    const AttentionItem& item() const { return step_.items[unit_ / args_.cache.num_kv_heads]; }

    void begin_unit() {
        if (unit_ == last_unit_) return;
        split_ = item().split == kAllSplits ? first_split(args_, step_, item()) : item().split;
        end_split_ = item().split == kAllSplits ? item().num_splits : item().split + 1;
    }

    void find() {
        const int64_t start = split_ * kSplit;
        const int64_t end = step_.positions[item().first_token + item().num_tokens - 1] + 1;  // of the last row
        const int32_t* blocks = step_.block_tables + item().request * step_.block_table_width;
        find_groups(args_.cache, blocks, unit_ % args_.cache.num_kv_heads, start, end - start < kSplit ? end - start : kSplit,
                    copy_, splits_[place_]);
    }

    const AttentionArgs& args_;
    const Step& step_;
    uint32_t* const copy_;
    int64_t unit_;  // of the split that will be taken next
    const int64_t last_unit_;
    int64_t split_ = 0, end_split_ = 0;
    bool place_ = false;
    SplitGroups splits_[2] = {};
};

// ---- int8 and fp8 ---------------------------------------------------------------------------------------------------

// The scales of a split, position by position.
struct SplitScales {
    alignas(64) float keys[kSplit];
    alignas(64) float values[kSplit];
};

// Bytes, a whole number of cache lines, to words of two bfloat16. What will be widened soon is fetched from `ahead`.
template <Type kType>
inline void widen(const uint8_t* bytes, const uint8_t* ahead, int64_t num_words, uint32_t* words) {
    for (int64_t line = 0; line < num_words; line += 2 * kPanel) {
        prefetch(ahead + 2 * line);
        for (int64_t i = line; i < line + 2 * kPanel; i += kLanes)
            store_pairs(words + i, kType == Type::int8 ? load_int8_pairs(bytes + 2 * i) : load_fp8_pairs(bytes + 2 * i));
    }
}

// The keys and values of a split as bfloat16, which holds them exactly: keys in panels of a group each, then values in
// panels whose inputs are all positions.
template <Type kType>
inline void widen_split(const KVCache& cache, const SplitGroups& groups, int64_t count, uint32_t* widened,
                        SplitScales& scales) {
    constexpr int64_t kAhead = 2;
    const int64_t num_groups = (count + kGroup - 1) / kGroup, num_panels = cache.value_width() / kPanel;
    const int64_t key_words = cache.widened_key_words(), panel_words = kGroup / 2 * kPanel;
    uint32_t* values = widened + kSplit / kGroup * key_words;
    const auto bytes = [](const uint32_t* words) { return reinterpret_cast<const uint8_t*>(words); };
    for (int64_t g = 0; g < num_groups; ++g) {
        const int64_t next = g + kAhead < num_groups ? g + kAhead : g;
        widen<kType>(bytes(groups.keys[g]), bytes(groups.keys[next]), key_words, widened + g * key_words);
        for (int64_t panel = 0; panel < num_panels; ++panel) {
            const int64_t at = panel * panel_words * 2;
            widen<kType>(bytes(groups.values[g]) + at, bytes(groups.values[next]) + at, panel_words,
                         values + panel * cache.widened_panel_words() + g * panel_words);
        }
        const uint32_t* from = groups.values[g] + cache.value_words();
        __builtin_memcpy(scales.keys + g * kGroup, from, kGroup * sizeof(float));
        __builtin_memcpy(scales.values + g * kGroup, from + kGroup, kGroup * sizeof(float));
    }
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

// Scores [count rounded up to groups] to weights relative to their maximum, as operands; zero where nothing is seen. With
// scales, a score is first multiplied by its key's, and a weight, once it is in the total, by its value's.
template <class Operand>
inline RowTotal weigh(const AttentionArgs& args, float* scores, int64_t width, const Visible& seen,
                      const SplitScales* scales, Operand* weights, Prefetcher& prefetcher) {
    if (scales)
        for (int64_t i = 0; i < width; i += kLanes) store(scores + i, load(scores + i) * load(scales->keys + i));
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
        prefetcher.fetch();
        Float weight = exp(load(scores + i) - broadcast(peak));
        total = total + weight;
        if (scales) weight = weight * load(scales->values + i);
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
    SplitReader& reader;
    typename Weights::Shapes& shapes;

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

    // Adds the next split to the totals of all rows.
    void add_split() const {
        const KVCache& cache = args.cache;
        const SplitGroups& groups = reader.take();
        const int64_t start = groups.start, count = groups.count;
        const int64_t width = round_up(count, kGroup), value_width = cache.value_width();

        Prefetcher* next = &reader.prefetcher;
        PanelSource keys{Layout::keys, groups.keys, cache.head_dim, cache.head_dim, 0, false, next};
        PanelSource values{Layout::values, groups.values, kGroup, count, cache.value_words() / (value_width / kPanel), false, next};
        SplitScales split_scales;
        const uint32_t* const widened[] = {scratch.widened, scratch.widened + kSplit / kGroup * cache.widened_key_words()};
        if (cache.is_quantized()) {
            const auto widen_all = cache.type == Type::int8 ? widen_split<Type::int8> : widen_split<Type::fp8>;
            widen_all(cache, groups, count, scratch.widened, split_scales);
            keys = {Layout::matrix, &widened[0], cache.head_dim, cache.head_dim, cache.widened_key_words(), true, next};
            values = {Layout::matrix, &widened[1], count, count, cache.widened_panel_words(), true, next};
        }
        const SplitScales* scales = cache.is_quantized() ? &split_scales : nullptr;
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
            Weights::multiply(shapes, rows, query(row), query_stride(), keys, 0, width / kGroup, scores, kSplit);
            for (int64_t r = 0; r < rows; ++r)
                parts[r] = weigh(args, scores + r * kSplit, width,
                                 visible(args, step.positions[token(row + r)], start, count), scales,
                                 weights + r * kSplit, *next);
            Weights::multiply(shapes, rows, weights, kSplit, values, 0, value_width / kPanel, sums, kMaxHeadDim);
            for (int64_t r = 0; r < rows; ++r)
                if (visible(args, step.positions[token(row + r)], start, count).any())
                    merge(scratch.rows[row + r], scratch.totals + (row + r) * value_width, parts[r],
                          sums + r * kMaxHeadDim, value_width);
        }
    }

    // Whether a request's only token is written here: it is the last position of the last split.
    bool writes() const {
        const int32_t* starts = step.query_starts + item.request;
        return starts[1] - starts[0] == 1 && (item.split == kAllSplits || item.split + 1 == item.num_splits);
    }

    void compute() const {
        if (writes()) write_token(args.write, step, item.first_token, kv_head);
        load_queries();
        for (int64_t row = 0; row < num_rows(); ++row) scratch.rows[row] = {-__builtin_inff(), 0.0f};
        if (item.split != kAllSplits) return compute_part();
        for (int64_t split = first_split(args, step, item); split < item.num_splits; ++split) add_split();
        for (int64_t row = 0; row < num_rows(); ++row)
            finish_row(args, scratch.rows[row], total(row), token(row), head(row));
    }

    float* total(int64_t row) const { return scratch.totals + row * args.cache.value_width(); }

    // One split of one token. Whoever finishes the last one merges them, in order.
    void compute_part() const {
        add_split();
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

// A run of units.
template <class Weights>
inline void attend(const AttentionArgs& args, const Step& step, int64_t run, const AttentionScratch& scratch) {
    const int64_t heads = args.cache.num_kv_heads;
    const int64_t first = step.runs[run] * heads / step.run_heads, last = step.runs[run + 1] * heads / step.run_heads;
    SplitReader reader(args, step, scratch.copy, first, last);
    typename Weights::Shapes shapes;
    for (int64_t unit = first; unit < last; ++unit)
        Attention<Weights>{args, step, step.items[unit / heads], unit % heads, scratch, reader, shapes}.compute();
}

inline void attention(const AttentionArgs& args, const Step& step, int64_t tile, const AttentionScratch& scratch) {
    if (args.cache.type == Type::float32) {
        attend<Float32Weights>(args, step, tile, scratch);
    } else if (args.cache.arithmetic == Type::bfloat16) {
        attend<BFloat16Weights>(args, step, tile, scratch);
    } else {
        attend<WidenedWeights>(args, step, tile, scratch);
    }
}

}  // namespace headrace::HEADRACE_NAMESPACE
