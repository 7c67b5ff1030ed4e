// Between float32 and bfloat16, one number at a time or as a kernel's last write.
#pragma once

#include "../args.h"

namespace headrace::HEADRACE_NAMESPACE {

inline float widen_bf16(uint32_t half) {
    const uint32_t u = half << 16;
    float x;
    __builtin_memcpy(&x, &u, sizeof x);
    return x;
}

inline uint16_t round_bf16(float x) {
    uint16_t lanes[kLanes];
    store_bf16(lanes, broadcast(x));
    return lanes[0];
}

inline Float load_operands(const float* p) { return load(p); }
inline Float load_operands(const uint16_t* p) { return load_bf16(p); }

inline void store_as(Type type, void* out, int64_t place, Float x) {
    if (type == Type::bfloat16) {
        store_bf16(static_cast<uint16_t*>(out) + place, x);
    } else {
        store(static_cast<float*>(out) + place, x);
    }
}

inline void store_as(Type type, void* out, int64_t place, float x) {
    if (type == Type::bfloat16) {
        static_cast<uint16_t*>(out)[place] = round_bf16(x);
    } else {
        static_cast<float*>(out)[place] = x;
    }
}

}  // namespace headrace::HEADRACE_NAMESPACE
