#include "tape.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "denormals.h"

namespace headrace {

// ---- attention ------------------------------------------------------------------------------------------------------

namespace {

constexpr int64_t kItemRows = 48;  // query rows of an item: enough to read keys and values from a near cache
constexpr int64_t kEnoughTiles = 4;  // for each thread; with so many there is no need to compute splits apart

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t tokens_of_item(int64_t group) { return std::max<int64_t>(1, kItemRows / group); }

int64_t work_of(const Step& step, const AttentionItem& item) {
    const int64_t seen = step.positions[item.first_token + item.num_tokens - 1] + 1;
    return item.num_tokens * (item.split == kAllSplits ? seen : std::min<int64_t>(seen, kSplit));
}

}  // namespace

void AttentionPlan::make(Step& step, int64_t group, int64_t num_kv_heads, int num_threads) {
    items_.clear();
    shared_tokens_.clear();
    const int64_t step_tokens = tokens_of_item(group);
    int64_t num_items = 0;
    for (int64_t r = 0; r < step.num_requests; ++r)
        num_items += ceil_div(step.query_starts[r + 1] - step.query_starts[r], step_tokens);
    const auto add_tokens = [&](int32_t first, int32_t last) {
        for (int32_t token = first; token < last; ++token) shared_tokens_.push_back(token);
    };
    const bool is_short_of_tiles = num_threads > 1 && num_items * num_kv_heads < kEnoughTiles * num_threads;
    int32_t num_partials = 0;
    for (int32_t r = 0; r < step.num_requests; ++r) {
        const int32_t start = step.query_starts[r], end = step.query_starts[r + 1];
        const auto num_splits = static_cast<int32_t>(ceil_div(step.context_lens[r], kSplit));
        if (end - start > 1) add_tokens(start, end);
        if (is_short_of_tiles && end - start == 1 && num_splits > 1) {
            for (int32_t split = 0; split < num_splits; ++split)
                items_.push_back({r, start, 1, split, num_splits, num_partials});
            num_partials += num_splits;
            continue;
        }
        for (int32_t first = start; first < end; first += static_cast<int32_t>(step_tokens)) {
            const auto count = static_cast<int32_t>(std::min<int64_t>(step_tokens, end - first));
            const auto seen = static_cast<int32_t>(ceil_div(step.positions[first + count - 1] + 1, kSplit));
            items_.push_back({r, first, count, kAllSplits, seen, 0});
        }
    }
    add_tokens(step.query_starts[step.num_requests], static_cast<int32_t>(step.num_tokens));
    // The longest first, so that no thread begins one when the others have finished.
    std::stable_sort(items_.begin(), items_.end(), [&](const AttentionItem& a, const AttentionItem& b) {
        return work_of(step, a) > work_of(step, b);
    });
    step.shared_tokens = shared_tokens_.data();
    step.num_shared_tokens = static_cast<int64_t>(shared_tokens_.size());
    step.items = items_.data();
    step.num_items = static_cast<int64_t>(items_.size());
    divide(step, num_kv_heads, num_threads);
    step.runs = runs_.data();
    step.num_runs = static_cast<int64_t>(runs_.size()) - 1;
    step.run_heads = num_kv_heads;
}

// A thread knows what it reads next within a run, so runs are long: half of what would be its share of all that is left. They
// become shorter to the end, so that threads finish together.
void AttentionPlan::divide(const Step& step, int64_t num_kv_heads, int num_threads) {
    int64_t left = 0, of_run = 0;
    for (const AttentionItem& item : items_) left += work_of(step, item) * num_kv_heads;
    runs_.assign(1, 0);
    for (int64_t unit = 0; unit < step.num_items * num_kv_heads; ++unit) {
        of_run += work_of(step, items_[unit / num_kv_heads]);
        if (of_run * 2 * num_threads < left) continue;
        runs_.push_back(unit + 1);
        left -= of_run;
        of_run = 0;
    }
}

int64_t AttentionPlan::max_partials(int64_t max_model_len, int num_threads) {
    return kEnoughTiles * num_threads * ceil_div(max_model_len, kSplit);
}

// ---- the tape -------------------------------------------------------------------------------------------------------

void Tape::append(const Op& op) {
    if (num_phases() == Pool::kMaxPhases) throw std::length_error("the model has more ops than a tape can hold");
    if (const auto* attention = std::get_if<AttentionArgs>(&op)) prepare_scratch(*attention);
    if (const auto* sample = std::get_if<SampleArgs>(&op)) prepare_scratch(*sample);
    if (const auto* mix = std::get_if<MixArgs>(&op)) prepare_room(mix->width);
    if (const auto* norm = std::get_if<NormArgs>(&op); norm && norm->out_type == Type::int8)
        prepare_room(norm->runs * norm->width);
    if (const auto* linear = std::get_if<LinearArgs>(&op)) prepare_scratch(linear->w);
    if (const auto* gated = std::get_if<GatedArgs>(&op)) prepare_scratch(gated->w);
    ops_.push_back(op);
    cuts_.resize(ops_.size());
}

void Tape::prepare_scratch(const AttentionArgs& args) {
    const int64_t group = args.num_heads / args.cache.num_kv_heads;
    group_ = std::max(group_, group);
    num_kv_heads_ = std::max(num_kv_heads_, args.cache.num_kv_heads);
    value_width_ = std::max(value_width_, args.cache.value_width());
    copy_words_ = std::max(copy_words_, kSplit / kGroup * args.cache.group_words());
    widened_words_ = std::max(widened_words_, args.cache.widened_words());
    const int64_t rows = std::max(kItemRows, group_), row_words = rows * value_width_;
    const int64_t words = 2 * row_words + copy_words_ + widened_words_ + 2 * rows;
    scratch_memory_.clear();
    scratch_.clear();
    for (int thread = 0; thread < pool_.num_threads(); ++thread) {
        scratch_memory_.emplace_back(static_cast<size_t>(words) * sizeof(float));
        float* memory = static_cast<float*>(scratch_memory_.back().data());
        AttentionScratch scratch;
        scratch.queries = memory;
        scratch.totals = memory + row_words;
        scratch.copy = reinterpret_cast<uint32_t*>(memory + 2 * row_words);
        scratch.widened = scratch.copy + copy_words_;
        scratch.rows = reinterpret_cast<RowTotal*>(scratch.widened + widened_words_);
        scratch_.push_back(scratch);
    }
}

void Tape::prepare_scratch(const SampleArgs& args) {
    const auto vocab = static_cast<int32_t>(args.vocab);
    sample_memory_.clear();
    sample_scratch_.clear();
    for (int thread = 0; thread < pool_.num_threads(); ++thread) {
        sample_memory_.emplace_back(sample_scratch_bytes(vocab));
        sample_scratch_.push_back(make_sample_scratch(sample_memory_.back().data(), vocab));
    }
}

void Tape::prepare_room(int64_t width) {
    const auto size = static_cast<size_t>(width) * sizeof(float);
    if (!rooms_.empty() && size <= rooms_.front().size()) return;
    rooms_.clear();
    for (int thread = 0; thread < pool_.num_threads(); ++thread) rooms_.emplace_back(size);
}

void Tape::prepare_scratch(const Matrix& w) {
    if (!w.is_grouped() || w.is_mixed()) return;
    const bool rounds_rows = w.product() == Type::uint8;
    const int64_t width = std::max(row_width_, rounds_rows ? w.format.row_bytes * w.in : 0);
    const int64_t row_groups = std::max(row_groups_, w.num_groups());
    const int64_t few_rows = std::max(few_row_words_, rounds_rows ? 0 : kFewRows * w.in);
    const int64_t expanded = std::max(expanded_words_, rounds_rows ? 0 : kExpandedPanels * w.product_panel_words());
    if (width == row_width_ && row_groups == row_groups_ && few_rows == few_row_words_ && expanded == expanded_words_) return;
    row_width_ = width;
    row_groups_ = row_groups;
    few_row_words_ = few_rows;
    expanded_words_ = expanded;
    const int64_t rows = max_tile_rows(kernels_.max_rows), groups = rows * row_groups_;
    const int64_t words =
        expanded_words_ + few_row_words_ + 3 * groups + ceil_div(rows * row_width_, int64_t{sizeof(float)});
    group_memory_.clear();
    group_scratch_.clear();
    row_phases_.assign(pool_.num_threads(), -1);
    for (int thread = 0; thread < pool_.num_threads(); ++thread) {
        group_memory_.emplace_back(static_cast<size_t>(words) * sizeof(float));
        GroupScratch scratch;
        scratch.panels = static_cast<uint32_t*>(group_memory_.back().data());
        scratch.few_rows = reinterpret_cast<float*>(scratch.panels + expanded_words_);
        scratch.scales = scratch.few_rows + few_row_words_;
        scratch.offsets = scratch.scales + groups;
        scratch.starts = reinterpret_cast<int32_t*>(scratch.offsets + groups);
        scratch.quants = reinterpret_cast<int8_t*>(scratch.starts + groups);
        scratch.forget();
        group_scratch_.push_back(scratch);
    }
}

GroupScratch* Tape::scratch_of(int64_t phase, int thread) {
    if (group_scratch_.empty()) return nullptr;
    if (row_phases_[thread] != phase) group_scratch_[thread].forget();
    row_phases_[thread] = phase;
    return &group_scratch_[thread];
}

void Tape::replay(const Step& step) {
    step_ = step;
    std::fill(row_phases_.begin(), row_phases_.end(), -1);
    if (group_) plan_.make(step_, group_, num_kv_heads_, pool_.num_threads());
    for (size_t i = 0; i < ops_.size(); ++i) cuts_[i] = cut(ops_[i]);
    pool_.run(*this);
}

namespace {

template <class... Cases>
struct Overloaded : Cases... {
    using Cases::operator()...;
};
template <class... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

constexpr int64_t kMaxTileRows = 16;  // of an op on rows

}  // namespace

Tape::Cut Tape::cut(const Op& op) const {
    const int64_t threads = pool_.num_threads();
    const auto product = [&](int64_t rows, const Matrix& w, int64_t together) {
        const Grid grid = make_grid(rows, w, together, kernels_.max_rows, threads);
        return Cut{grid.num_tiles(), grid, 0, 0};
    };
    const auto by_rows = [&](int64_t rows) {
        const int64_t each = std::clamp<int64_t>(ceil_div(rows, 4 * threads), 1, kMaxTileRows);
        return Cut{ceil_div(rows, each), {}, each, rows};
    };
    return std::visit(
        Overloaded{
            [&](const LinearArgs& args) { return product(num_rows(step_, args.rows), args.w, 1); },
            [&](const GatedArgs& args) { return product(num_rows(step_, args.rows), args.w, 2); },
            [&](const AttentionArgs&) { return Cut{step_.num_runs, {}, 0, 0}; },
            [&](const EmbedArgs&) { return by_rows(step_.num_tokens); },
            [&](const KVWriteArgs&) { return by_rows(step_.num_shared_tokens); },
            [&](const TakeRowsArgs&) { return by_rows(step_.num_samples); },
            [&](const SampleArgs&) { return Cut{step_.batch ? step_.num_chunk : 0, {}, 0, 0}; },
            [&](const auto& args) { return by_rows(num_rows(step_, args.rows)); },
        },
        op);
}

void Tape::compute(int64_t phase, int64_t tile, int thread) {
    const Cut& cut = cuts_[phase];
    const int64_t first = tile * cut.rows, last = std::min(first + cut.rows, cut.num_rows);
    auto* room = rooms_.empty() ? nullptr : static_cast<float*>(rooms_[thread].data());
    // Choosing tokens compares every float as what it is.
    const DenormalsAreZero unless_sampling(!std::holds_alternative<SampleArgs>(ops_[phase]));
    std::visit(Overloaded{
                   [&](const LinearArgs& args) { kernels_.linear(args, step_, cut.grid, tile, scratch_of(phase, thread)); },
                   [&](const GatedArgs& args) { kernels_.gated(args, step_, cut.grid, tile, scratch_of(phase, thread)); },
                   [&](const AttentionArgs& args) { kernels_.attention(args, step_, tile, scratch_[thread]); },
                   [&](const EmbedArgs& args) { kernels_.embed(args, step_, first, last); },
                   [&](const MixArgs& args) { kernels_.mix(args, step_, first, last, room); },
                   [&](const NormArgs& args) { kernels_.norm(args, step_, first, last, room); },
                   [&](const RopeArgs& args) { kernels_.rope(args, step_, first, last); },
                   [&](const KVWriteArgs& args) { kernels_.kv_write(args, step_, first, last); },
                   [&](const ScaleArgs& args) { kernels_.scale(args, step_, first, last); },
                   [&](const SampleArgs& args) {
                       const float* logits = args.logits + tile * args.stride;
                       const auto vocab = static_cast<int32_t>(args.vocab);
                       kernels_.sample(step_.batch->row(step_.first_sample + tile, logits, vocab),
                                       sample_scratch_[thread]);
                   },
                   [&](const TakeRowsArgs& args) {
                       for (int64_t row = first; row < last; ++row)
                           std::memcpy(static_cast<char*>(args.out) + row * args.out_stride,
                                       static_cast<const char*>(args.x) + step_.sample_rows[row] * args.x_stride,
                                       static_cast<size_t>(args.row_bytes));
                   },
               },
               ops_[phase]);
}

}  // namespace headrace
