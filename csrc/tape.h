// The tape: a forward recorded once, as ops with fixed buffers, and replayed by one call for any number of tokens.
#pragma once

#include <atomic>
#include <variant>
#include <vector>

#include "kernels.h"
#include "memory.h"
#include "pool.h"
#include "sample_batch.h"

namespace headrace {

using Op = std::variant<EmbedArgs, NormArgs, LinearArgs, GatedArgs, RopeArgs, KVWriteArgs, AttentionArgs, TakeRowsArgs,
                        ScaleArgs, MixArgs, SampleArgs>;

// How the rows of a step are shared among threads for attention, the same for all layers.
class AttentionPlan {
  public:
    // Fills step.shared_tokens, step.items and step.runs. `group` is the largest number of query heads that share a KV head.
    void make(Step& step, int64_t group, int64_t num_kv_heads, int num_threads);

    // An upper bound of the places for partial results that any plan uses.
    static int64_t max_partials(int64_t max_model_len, int num_threads);

  private:
    void divide(const Step& step, int64_t num_kv_heads, int num_threads);

    std::vector<int32_t> shared_tokens_;
    std::vector<AttentionItem> items_;
    std::vector<int64_t> runs_;
};

class Tape final : public Job {
  public:
    Tape(Pool& pool, const Kernels& kernels) : pool_(pool), kernels_(kernels) {}

    Tape(const Tape&) = delete;
    Tape& operator=(const Tape&) = delete;

    void append(const Op& op);

    // Computes all ops for this step. Called without the GIL; `step` is not kept.
    void replay(const Step& step);

    int64_t num_phases() const override { return static_cast<int64_t>(ops_.size()); }
    int64_t num_tiles(int64_t phase) const override { return cuts_[phase].num_tiles; }
    void compute(int64_t phase, int64_t tile, int thread) override;

  private:
    struct Cut {
        int64_t num_tiles;
        Grid grid;              // of a product
        int64_t rows, num_rows;  // of a tile, and of all, of an op on rows
    };

    Cut cut(const Op& op) const;
    void prepare_scratch(const AttentionArgs& args);
    void prepare_scratch(const SampleArgs& args);
    void prepare_room(int64_t width);
    void prepare_scratch(const Matrix& w);
    GroupScratch* scratch_of(int64_t phase, int thread);

    Pool& pool_;
    const Kernels& kernels_;
    std::vector<Op> ops_;
    std::vector<Cut> cuts_;  // of the step that is being replayed
    Step step_;
    AttentionPlan plan_;
    // The largest of any attention; 0: there is none.
    int64_t group_ = 0, num_kv_heads_ = 0, value_width_ = 0, copy_words_ = 0, widened_words_ = 0;

    std::vector<Buffer> scratch_memory_;  // one for each thread
    std::vector<AttentionScratch> scratch_;
    // The largest of any matrix of few bits (GroupScratch): bytes and groups of a row, words of few rows and of panels.
    int64_t row_width_ = 0, row_groups_ = 0, few_row_words_ = 0, expanded_words_ = 0;
    std::vector<Buffer> group_memory_;          // one for each thread
    std::vector<GroupScratch> group_scratch_;
    std::vector<int64_t> row_phases_;  // the op whose rows are in it
    std::vector<Buffer> sample_memory_;  // one for each thread
    std::vector<SampleScratch> sample_scratch_;
    std::vector<Buffer> rooms_;  // one for each thread, for a row that is mixed
};

}  // namespace headrace
