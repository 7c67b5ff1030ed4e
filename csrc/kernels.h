// The face of an instruction set: its kernels, each of which computes one tile of an op.
#pragma once

#include "args.h"
#include "grid.h"
#include "sampling.h"

namespace headrace {

struct Kernels {
    const char* name;
    int64_t max_rows;    // that a product takes at a time
    bool rounds_rows;    // to bfloat16, before they meet bfloat16 weights
    bool has_tiles;      // whose products of bfloat16 are so quick that nothing else is worth it

    // `scratch` is only for matrices of few bits.
    void (*linear)(const LinearArgs&, const Step&, const Grid&, int64_t tile, GroupScratch* scratch);
    void (*gated)(const GatedArgs&, const Step&, const Grid&, int64_t tile, GroupScratch* scratch);
    void (*attention)(const AttentionArgs&, const Step&, int64_t tile, const AttentionScratch&);
    // Rows first to last:
    void (*embed)(const EmbedArgs&, const Step&, int64_t first, int64_t last);
    void (*norm)(const NormArgs&, const Step&, int64_t first, int64_t last, float* room);  // for a row that is mixed
    void (*rope)(const RopeArgs&, const Step&, int64_t first, int64_t last);
    void (*kv_write)(const KVWriteArgs&, const Step&, int64_t first, int64_t last);
    void (*scale)(const ScaleArgs&, const Step&, int64_t first, int64_t last);
    void (*mix)(const MixArgs&, const Step&, int64_t first, int64_t last, float* room);
    void (*sample)(const SampleRow&, const SampleScratch&);

    // kernels/hadamard.h, for packing. Bits are the same with every instruction set.
    void (*round_mixed)(const float* x, int64_t width, float* room, int8_t* quants, float* scale, int32_t* total);

    // For measuring (measure.h).
    int64_t multiply_adds_in_round;
    float (*multiply_adds)(int64_t rounds);
    float (*read_memory)(const float* data, int64_t count);
};

// Of these a build has those that its compiler knows (CMakeLists.txt, cpu.cpp).
const Kernels* scalar_kernels();
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();
const Kernels* avx512bf16_kernels();
const Kernels* amx_kernels();

}  // namespace headrace
