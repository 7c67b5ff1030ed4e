// What Python sees: memory, matrices, a pool of threads, tapes. Addresses are plain integers, and whoever passes one keeps
// what it points to alive (headrace/backends/native does).

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cpu.h"
#include "measure.h"
#include "memory.h"
#include "pack.h"
#include "populate.h"
#include "tape.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace headrace;

namespace {

using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Doubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MutableInts = nb::ndarray<int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MutableFloats = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig>;
using Table = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <class T>
T* at(uintptr_t address) {
    return reinterpret_cast<T*>(address);
}

const Kernels& kernels_named(const std::string& name) {
    for (const Kernels* kernels : usable_kernels())
        if (name == kernels->name) return *kernels;
    throw std::invalid_argument("this build or this processor has no kernels named " + name);
}

struct PythonPool {
    PythonPool(int num_threads, uintptr_t progress) : pool(num_threads, at<std::atomic<uint64_t>>(progress)) {}
    Pool pool;
};

Step make_step(const Ints& token_ids, const Ints& positions, const Ints& slots, const Ints& query_starts,
               const Ints& context_lens, const Table& block_tables, const Ints& sample_rows) {
    Step step;
    step.num_tokens = static_cast<int64_t>(token_ids.shape(0));
    step.num_requests = static_cast<int64_t>(context_lens.shape(0));
    step.num_samples = static_cast<int64_t>(sample_rows.shape(0));
    step.token_ids = token_ids.data();
    step.positions = positions.data();
    step.slots = slots.data();
    step.query_starts = query_starts.data();
    step.context_lens = context_lens.data();
    step.block_tables = block_tables.data();
    step.block_table_width = static_cast<int64_t>(block_tables.shape(1));
    step.sample_rows = sample_rows.data();
    return step;
}

}  // namespace

NB_MODULE(_native, m) {
    // A start that fails leaves objects behind, and what the operator should read then is why it failed.
    nb::set_leak_warnings(false);
    m.doc() = "Kernels of the native CPU backend.";
    m.attr("PANEL") = kPanel;
    m.attr("GROUP") = kGroup;
    m.attr("EXPANDED_PANELS") = kExpandedPanels;
    m.attr("FEW_ROWS") = kFewRows;
    m.attr("MAX_MIXED") = kMaxMixed;
    m.attr("SPLIT") = kSplit;
    m.attr("MAX_HEAD_DIM") = kMaxHeadDim;
    m.def("max_tile_rows", [] {
        int64_t most = 0;
        for (const Kernels* kernels : usable_kernels()) most = std::max(most, max_tile_rows(kernels->max_rows));
        return most;
    }, "Rows of a tile of any product, at most.");

    m.def("instruction_sets", [] {
        std::vector<std::string> names;
        for (const Kernels* kernels : usable_kernels()) names.emplace_back(kernels->name);
        return names;
    }, "Names of the kernels that this processor can run, the quickest first.");
    m.def("rounds_rows", [](const std::string& name) { return kernels_named(name).rounds_rows; }, "name"_a,
          "Whether these kernels round rows to bfloat16 before they meet bfloat16 weights.");
    m.def("has_tiles", [](const std::string& name) { return kernels_named(name).has_tiles; }, "name"_a,
          "Whether these kernels multiply bfloat16 on tiles, beside which nothing else is worth it.");

    m.def("mixed_row_bytes", [](int64_t width) { return mixed_row_bytes(width) + int64_t{kPanel * sizeof(float)}; }, "width"_a,
          "Of a row that is mixed and rounded, with what is behind its quants.");

    m.def("max_partials", &AttentionPlan::max_partials, "max_model_len"_a, "num_threads"_a,
          "Places for partial results of attention that a step may need.");

    nb::enum_<Type>(m, "Type").value("float32", Type::float32).value("bfloat16", Type::bfloat16)
        .value("uint4", Type::uint4).value("uint8", Type::uint8)
        .value("int8", Type::int8).value("fp8", Type::fp8);
    nb::enum_<Stored>(m, "Stored")
        .value("float32", Stored::float32)
        .value("bfloat16", Stored::bfloat16)
        .value("float16", Stored::float16)
        .value("q4_0", Stored::q4_0)
        .value("q4_1", Stored::q4_1)
        .value("q5_0", Stored::q5_0)
        .value("q5_1", Stored::q5_1)
        .value("q8_0", Stored::q8_0)
        .value("q4_k", Stored::q4_k)
        .value("q5_k", Stored::q5_k)
        .value("q6_k", Stored::q6_k);
    nb::enum_<Rows>(m, "Rows").value("tokens", Rows::tokens).value("samples", Rows::samples).value("chunk", Rows::chunk);
    nb::enum_<Activation>(m, "Activation")
        .value("silu", Activation::silu)
        .value("gelu_tanh", Activation::gelu_tanh);

    nb::class_<Buffer>(m, "Buffer")
        .def(nb::init<size_t>(), "size"_a)
        .def_prop_ro("address", [](const Buffer& self) { return reinterpret_cast<uintptr_t>(self.data()); })
        .def_prop_ro("size", &Buffer::size)
        .def("array", [](nb::handle self) {
            const Buffer& buffer = nb::cast<const Buffer&>(self);
            const size_t shape[1] = {buffer.size()};
            return nb::ndarray<nb::numpy, uint8_t>(buffer.data(), 1, shape, self);
        }, "Its bytes as an array, which keeps it alive.");

    nb::class_<Populator>(m, "Populator")
        .def("__init__", [](Populator* self, const std::vector<const Buffer*>& buffers) {
            std::vector<Populator::Span> spans;
            for (const Buffer* buffer : buffers) spans.push_back({buffer->data(), buffer->size()});
            new (self) Populator(std::move(spans));
        }, "buffers"_a, nb::keep_alive<1, 2>(), "Touches all pages of these buffers, soon and without hurry.")
        .def_prop_ro("is_done", &Populator::is_done);

    nb::class_<Matrix>(m, "Matrix")
        .def("__init__", [](Matrix* self, uintptr_t panels, uintptr_t bias, int64_t out, int64_t in, Type type,
                            int32_t group, int32_t zero, bool wide_scales, Type product,
                            int32_t row_bytes) {
            new (self) Matrix{at<const uint32_t>(panels), at<const float>(bias), out, in, type,
                              {group, zero, wide_scales, product, row_bytes}};
            const bool is_rounded = product == Type::uint8 && row_bytes == 1 && zero == 128 && wide_scales;
            const bool is_mixed = group == in && in % 32 == 0 && in > 32 && in <= kMaxMixed && is_rounded;
            const bool fits = type == Type::uint4 ? group == 32 : group == 32 || group == 16 || is_mixed;
            if (self->is_grouped() && (!fits || in % group)) throw std::invalid_argument("no such groups");
            if (product == Type::uint4 || row_bytes < 1 || row_bytes > 2) throw std::invalid_argument("no such product");
        }, "panels"_a, "bias"_a, "out"_a, "in_"_a, "type"_a, "group"_a = 0, "zero"_a = 0, "wide_scales"_a = false,
           "product"_a = Type::uint8, "row_bytes"_a = 1,
           "The last five are of a matrix of few bits: inputs that share a scale (all of them: they are mixed,\n"
           "kernels/hadamard.h), the quant that stands for 0 or -1\n"
           "where groups have minimums, whether scales are float32 and not float16, and what products are made of:\n"
           "uint8 for rows that are rounded to integers of so many bytes, else numbers that quants become.")
        .def_ro("out", &Matrix::out)
        .def_ro("in_", &Matrix::in)
        .def_ro("type", &Matrix::type)
        .def_prop_ro("is_mixed", &Matrix::is_mixed)
        .def_prop_ro("product", &Matrix::product)
        .def_prop_ro("num_words", [](const Matrix& self) { return self.num_panels() * self.panel_words(); })
        .def("pack", [](const Matrix& self, Bytes rows, Stored stored,
                        int64_t num_rows, int64_t first, int64_t panel_step, int64_t panel_offset) {
            if (self.is_grouped() && !self.is_mixed()) throw std::invalid_argument("the matrix has groups");
            const int64_t row_bytes = stored_row_bytes(self, stored);
            const int64_t last_panel = (first + num_rows - 1) / kPanel * panel_step + panel_offset;
            if (row_bytes < 0 || static_cast<int64_t>(rows.size()) != num_rows * row_bytes || last_panel >= self.num_panels())
                throw std::invalid_argument("rows do not fit the matrix");
            nb::gil_scoped_release release;
            const auto pack = self.is_mixed() ? pack_mixed : pack_rows;
            pack(self, const_cast<uint32_t*>(self.panels), rows.data(), stored, num_rows, first, panel_step, panel_offset);
        }, "rows"_a, "stored"_a, "num_rows"_a, "first"_a, "panel_step"_a = 1, "panel_offset"_a = 0)
        .def("pack_groups", [](const Matrix& self, Bytes quants, Bytes scales, Bytes minimums, int64_t num_rows,
                               int64_t first, int64_t panel_step, int64_t panel_offset) {
            if (!self.is_grouped() || self.is_mixed()) throw std::invalid_argument("the matrix has no groups");
            const auto size = static_cast<size_t>(num_rows * self.in);
            const size_t scale_bytes = size / self.format.size * (self.format.wide_scales ? 4 : 2);
            const int64_t last_panel = (first + num_rows - 1) / kPanel * panel_step + panel_offset;
            if (quants.size() != size || scales.size() != scale_bytes || last_panel >= self.num_panels() ||
                minimums.size() != (self.format.has_minimums() ? scale_bytes : 0))
                throw std::invalid_argument("rows do not fit the matrix");
            nb::gil_scoped_release release;
            pack_groups(self, const_cast<uint32_t*>(self.panels), quants.data(), scales.data(), minimums.data(), num_rows,
                        first, panel_step, panel_offset);
        }, "quants"_a, "scales"_a, "minimums"_a, "num_rows"_a, "first"_a, "panel_step"_a = 1, "panel_offset"_a = 0,
           "Rows [num_rows, in] of quants, and bytes of the scales and minimums [num_rows, groups].");

    nb::class_<KVCache>(m, "KVCache")
        .def("__init__", [](KVCache* self, uintptr_t data, Type type, int64_t num_kv_heads, int64_t head_dim,
                            int64_t block_size, Type arithmetic) {
            new (self) KVCache{at<void>(data), type, num_kv_heads, head_dim, block_size, arithmetic};
        }, "data"_a, "type"_a, "num_kv_heads"_a, "head_dim"_a, "block_size"_a, "arithmetic"_a,
           "`arithmetic` is bfloat16 where rows may be rounded before they meet keys and values, else float32.")
        .def_prop_ro("group_bytes", [](const KVCache& self) { return self.num_kv_heads * self.group_words() * 4; },
                     "Bytes of 16 slots, of all heads.");

    nb::class_<Rotation>(m, "Rotation")
        .def("__init__", [](Rotation* self, uintptr_t cos, uintptr_t sin, int64_t dim) {
            new (self) Rotation{at<const float>(cos), at<const float>(sin), dim};
        }, "cos"_a = 0, "sin"_a = 0, "dim"_a = 0);

    nb::class_<PythonPool>(m, "Pool")
        .def(nb::init<int, uintptr_t>(), "num_threads"_a, "progress"_a)
        .def_prop_ro("num_threads", [](const PythonPool& self) { return self.pool.num_threads(); })
        .def("stop", [](PythonPool& self) {
            nb::gil_scoped_release release;
            self.pool.stop();
        }, "End its threads.");

    m.def("measure_bandwidth", [](PythonPool& pool, const std::string& kernels, size_t bytes) {
        const Kernels& chosen = kernels_named(kernels);
        nb::gil_scoped_release release;
        return measure_bandwidth(pool.pool, chosen, bytes);
    }, "pool"_a, "kernels"_a, "bytes"_a, "Bytes a second that all threads together read.");
    m.def("measure_arithmetic", [](PythonPool& pool, const std::string& kernels) {
        const Kernels& chosen = kernels_named(kernels);
        nb::gil_scoped_release release;
        return measure_arithmetic(pool.pool, chosen);
    }, "pool"_a, "kernels"_a, "Operations a second of all threads, on registers alone.");

    nb::class_<Tape>(m, "Tape")
        .def("__init__", [](Tape* self, PythonPool& pool, const std::string& kernels) {
            new (self) Tape(pool.pool, kernels_named(kernels));
        }, "pool"_a, "kernels"_a, nb::keep_alive<1, 2>())
        .def_prop_ro("num_ops", &Tape::num_phases)
        .def("embed", [](Tape& self, const Matrix& table, uintptr_t out, int64_t out_stride) {
            self.append(EmbedArgs{table, at<float>(out), out_stride});
        }, nb::kw_only(), "table"_a, "out"_a, "out_stride"_a)
        .def("norm", [](Tape& self, Rows rows, uintptr_t x, int64_t x_stride, uintptr_t weight, int64_t width,
                        int64_t runs, float eps, uintptr_t residual, int64_t residual_stride, uintptr_t out,
                        int64_t out_stride, Type out_type) {
            self.append(NormArgs{rows, at<const float>(x), x_stride, at<const float>(weight), width, runs, eps,
                                 at<const float>(residual), residual_stride, at<void>(out), out_stride, out_type});
        }, nb::kw_only(), "rows"_a, "x"_a, "x_stride"_a, "weight"_a, "width"_a, "runs"_a, "eps"_a, "residual"_a,
           "residual_stride"_a, "out"_a, "out_stride"_a, "out_type"_a)
        .def("linear", [](Tape& self, Rows rows, uintptr_t x, int64_t x_stride, Type x_type, const Matrix& w,
                          uintptr_t residual, int64_t residual_stride, uintptr_t out, int64_t out_stride) {
            self.append(LinearArgs{rows, {at<const void>(x), x_stride, x_type}, w, at<const float>(residual),
                                   residual_stride, at<float>(out), out_stride});
        }, nb::kw_only(), "rows"_a, "x"_a, "x_stride"_a, "x_type"_a, "w"_a, "residual"_a, "residual_stride"_a, "out"_a,
           "out_stride"_a)
        .def("gated", [](Tape& self, Rows rows, uintptr_t x, int64_t x_stride, Type x_type, const Matrix& w,
                         Activation activation, uintptr_t out, int64_t out_stride, Type out_type) {
            self.append(GatedArgs{rows, {at<const void>(x), x_stride, x_type}, w, activation, at<void>(out), out_stride,
                                  out_type});
        }, nb::kw_only(), "rows"_a, "x"_a, "x_stride"_a, "x_type"_a, "w"_a, "activation"_a, "out"_a, "out_stride"_a,
           "out_type"_a)
        .def("mix", [](Tape& self, Rows rows, uintptr_t x, int64_t x_stride, int64_t width, uintptr_t out, int64_t out_stride) {
            self.append(MixArgs{rows, at<const float>(x), x_stride, width, at<int8_t>(out), out_stride});
        }, nb::kw_only(), "rows"_a, "x"_a, "x_stride"_a, "width"_a, "out"_a, "out_stride"_a)
        .def("rope", [](Tape& self, Rows rows, uintptr_t x, int64_t x_stride, const Rotation& rotation,
                        int64_t num_heads, uintptr_t out, int64_t out_stride) {
            self.append(RopeArgs{rows, at<const float>(x), x_stride, rotation, num_heads, at<float>(out), out_stride});
        }, nb::kw_only(), "rows"_a, "x"_a, "x_stride"_a, "rotation"_a, "num_heads"_a, "out"_a, "out_stride"_a)
        .def("kv_write", [](Tape& self, uintptr_t k, int64_t k_stride, uintptr_t v, int64_t v_stride,
                            const Rotation& rotation, const KVCache& cache) {
            self.append(KVWriteArgs{at<const float>(k), k_stride, at<const float>(v), v_stride, rotation, cache});
        }, nb::kw_only(), "k"_a, "k_stride"_a, "v"_a, "v_stride"_a, "rotation"_a, "cache"_a,
           "Goes before the attention to these keys and values, which writes those of a request's only token itself.")
        .def("attention", [](Tape& self, uintptr_t q, int64_t q_stride, const Rotation& rotation, uintptr_t k,
                             int64_t k_stride, const Rotation& k_rotation, uintptr_t v, int64_t v_stride,
                             const KVCache& cache, int64_t num_heads, float scale, float softcap, int64_t window,
                             uintptr_t out, int64_t out_stride, Type out_type, uintptr_t partials, uintptr_t remaining) {
            const KVWriteArgs write{at<const float>(k), k_stride, at<const float>(v), v_stride, k_rotation, cache};
            self.append(AttentionArgs{at<const float>(q), q_stride, rotation, cache, num_heads, scale, softcap, window,
                                      at<void>(out), out_stride, out_type, at<float>(partials), write,
                                      at<int32_t>(remaining)});
        }, nb::kw_only(), "q"_a, "q_stride"_a, "rotation"_a, "k"_a, "k_stride"_a, "k_rotation"_a, "v"_a, "v_stride"_a,
           "cache"_a, "num_heads"_a, "scale"_a, "softcap"_a, "window"_a, "out"_a, "out_stride"_a, "out_type"_a, "partials"_a, "remaining"_a)
        .def("take_rows", [](Tape& self, uintptr_t x, int64_t x_stride, uintptr_t out, int64_t out_stride,
                             int64_t row_bytes) {
            self.append(TakeRowsArgs{at<const void>(x), x_stride, at<void>(out), out_stride, row_bytes});
        }, nb::kw_only(), "x"_a, "x_stride"_a, "out"_a, "out_stride"_a, "row_bytes"_a, "Strides are in bytes.")
        .def("scale", [](Tape& self, Rows rows, uintptr_t x, int64_t x_stride, float factor, float softcap,
                         int64_t width, uintptr_t out, int64_t out_stride, Type out_type) {
            self.append(ScaleArgs{rows, at<const float>(x), x_stride, factor, softcap, width, at<void>(out), out_stride,
                                  out_type});
        }, nb::kw_only(), "rows"_a, "x"_a, "x_stride"_a, "factor"_a, "softcap"_a, "width"_a, "out"_a, "out_stride"_a,
           "out_type"_a)
        .def("replay", [](Tape& self, const Ints& token_ids, const Ints& positions, const Ints& slots,
                          const Ints& query_starts, const Ints& context_lens, const Table& block_tables,
                          const Ints& sample_rows) {
            const Step step = make_step(token_ids, positions, slots, query_starts, context_lens, block_tables,
                                        sample_rows);
            nb::gil_scoped_release release;
            self.replay(step);
        }, "token_ids"_a, "positions"_a, "slots"_a, "query_starts"_a, "context_lens"_a, "block_tables"_a,
           "sample_rows"_a)
        .def("sample", [](Tape& self, uintptr_t logits, int64_t stride, int64_t vocab) {
            self.append(SampleArgs{at<const float>(logits), stride, vocab});
        }, nb::kw_only(), "logits"_a, "stride"_a, "vocab"_a)
        .def("replay_samples", [](Tape& self, int64_t first, int64_t count, const SampleBatch* batch) {
            Step step;
            step.first_sample = first;
            step.num_chunk = count;
            step.batch = batch;
            nb::gil_scoped_release release;
            self.replay(step);
        }, "first"_a, "count"_a, "batch"_a.none(),
           "Ops whose rows are a chunk: samples first to first + count. Without a batch no tokens are chosen.");

    nb::class_<SampleBatch>(m, "SampleBatch", nb::dynamic_attr())
        .def("__init__", [](SampleBatch* self, const Doubles& temperature, const Ints& top_k, const Doubles& top_p,
                            const Doubles& min_p, const Doubles& uniform, const MutableInts& tokens) {
            new (self) SampleBatch;
            self->temperature = temperature.data();
            self->top_k = top_k.data();
            self->top_p = top_p.data();
            self->min_p = min_p.data();
            self->uniform = uniform.data();
            self->tokens = tokens.data();
        }, nb::kw_only(), "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a, "uniform"_a, "tokens"_a)
        .def("allow", [](SampleBatch& self, const Ints& starts, const Ints& ids) {
            self.allowed = {starts.data(), ids.data()};
        }, "starts"_a, "ids"_a)
        .def("ban", [](SampleBatch& self, const Ints& starts, const Ints& ids) {
            self.banned = {starts.data(), ids.data()};
        }, "starts"_a, "ids"_a)
        .def("bias", [](SampleBatch& self, const Ints& starts, const Ints& ids, const Floats& values) {
            self.biased = {starts.data(), ids.data()};
            self.biases = values.data();
        }, "starts"_a, "ids"_a, "values"_a)
        .def("penalise", [](SampleBatch& self, const Ints& starts, const Ints& ids, const Ints& output_counts,
                            const Floats& repetition, const Floats& presence, const Floats& frequency) {
            self.seen = {starts.data(), ids.data()};
            self.output_counts = output_counts.data();
            self.repetition = repetition.data();
            self.presence = presence.data();
            self.frequency = frequency.data();
        }, "starts"_a, "ids"_a, "output_counts"_a, "repetition"_a, "presence"_a, "frequency"_a)
        .def("want_logprobs", [](SampleBatch& self, const Ints& rows, const Ints& top_starts,
                                 const MutableFloats& logprobs, const MutableInts& ranks, const MutableInts& top_ids,
                                 const MutableFloats& top_logprobs) {
            self.num_wanted = static_cast<int64_t>(rows.shape(0));
            self.wanted = rows.data();
            self.top_starts = top_starts.data();
            self.logprobs = logprobs.data();
            self.ranks = ranks.data();
            self.top_ids = top_ids.data();
            self.top_logprobs = top_logprobs.data();
        }, "rows"_a, "top_starts"_a, "logprobs"_a, "ranks"_a, "top_ids"_a, "top_logprobs"_a);
}
