#include "sample_batch.h"

#include <algorithm>

namespace headrace {

namespace {

struct List {
    int32_t size = 0, start = 0;
    const int32_t* ids = nullptr;
};

List list_of(const TokenLists& lists, int64_t sample) {
    if (!lists.starts) return {};
    const int32_t start = lists.starts[sample];
    return {lists.starts[sample + 1] - start, start, lists.ids + start};
}

}  // namespace

SampleRow SampleBatch::row(int64_t sample, const float* logits, int32_t vocab) const {
    SampleRow row = {};
    row.logits = logits;
    row.vocab = vocab;
    row.top_k = top_k[sample];
    row.temperature = temperature[sample];
    row.top_p = top_p[sample];
    row.min_p = min_p[sample];
    row.uniform = uniform[sample];

    const List allowed_list = list_of(allowed, sample), banned_list = list_of(banned, sample);
    const List biased_list = list_of(biased, sample), seen_list = list_of(seen, sample);
    row.num_allowed = allowed_list.size;
    row.allowed_ids = allowed_list.ids;
    row.num_banned = banned_list.size;
    row.banned_ids = banned_list.ids;
    row.num_biased = biased_list.size;
    row.biased_ids = biased_list.ids;
    row.biases = biases + biased_list.start;
    row.num_seen = seen_list.size;
    row.seen_ids = seen_list.ids;
    row.output_counts = output_counts + seen_list.start;
    row.repetition_penalty = seen.starts ? repetition[sample] : 1.0f;
    row.presence_penalty = seen.starts ? presence[sample] : 0.0f;
    row.frequency_penalty = seen.starts ? frequency[sample] : 0.0f;

    row.token = tokens + sample;
    const int32_t* place = std::lower_bound(wanted, wanted + num_wanted, static_cast<int32_t>(sample));
    if (place != wanted + num_wanted && *place == sample) {
        const int64_t index = place - wanted;
        row.num_top = top_starts[index + 1] - top_starts[index];
        row.logprob = logprobs + index;
        row.rank = ranks + index;
        row.top_ids = top_ids + top_starts[index];
        row.top_logprobs = top_logprobs + top_starts[index];
    }
    return row;
}

}  // namespace headrace
