// The vector: LANES floats side by side, the unit of every bank, port and operator; and how loops are unrolled.
#ifndef BTTLAB_PROCESSOR_VECTOR_H
#define BTTLAB_PROCESSOR_VECTOR_H

#include "config.h"

#if defined(__VITIS_HLS__)
#include <hls_vector.h>
typedef hls::vector<float, LANES> Vector;
typedef hls::vector<int, LANES> IntVector;
typedef hls::vector<unsigned short, LANES> FieldVector;
#define UNROLL  // all loops inside a pipelined one are
#else
typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef int IntVector __attribute__((vector_size(4 * LANES)));
typedef unsigned short FieldVector __attribute__((vector_size(2 * LANES)));
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 64")
#endif
#endif

// The whole machine becomes one loop.
#define ALWAYS_INLINE static inline __attribute__((always_inline))

template <class V = Vector>
static inline V splat(float value) {
#if defined(__VITIS_HLS__)
    return V(value);
#else
    return value - V{};  // x - 0 is x, and -0 too
#endif
}

// A function that HLS keeps as a separate block with its own latency. What it returns goes through a KEPT variable, or an
// optimizer would see that it is the argument and remove the call, and the delay with it.
#if defined(__SYNTHESIS__)
#define BLOCK static __attribute__((noinline))
#define KEPT volatile
#else
#define BLOCK ALWAYS_INLINE
#define KEPT const
#endif

// A value CYCLES later.
template <int CYCLES, class Value>
BLOCK Value delay(Value value) {
#pragma HLS INLINE off
#pragma HLS PIPELINE II=1
#pragma HLS LATENCY min=CYCLES max=CYCLES
    KEPT Value later = value;
    return later;
}

// Registers of a value that may cross from one SLR of the card to the other: one on each side of the boundary.
constexpr int CROSSING_CYCLES = 2;
ALWAYS_INLINE int cross_slr(int value) { return delay<CROSSING_CYCLES>(value); }
ALWAYS_INLINE Vector cross_slr(Vector vector) {
    Vector later = vector;
#if defined(__SYNTHESIS__)
    UNROLL
    for (int l = 0; l < LANES; l++) later[l] = delay<CROSSING_CYCLES>(vector[l]);
#endif
    return later;
}

// A switch: selects one of two by a bit. Both inputs are computed, so that no tool turns it into a branch and duplicates logic.
ALWAYS_INLINE int choose(bool first, int one, int other) { return first ? one : other; }
ALWAYS_INLINE float choose(bool first, float one, float other) { return first ? one : other; }
ALWAYS_INLINE Vector choose(bool first, Vector one, Vector other) {
#if defined(__VITIS_HLS__)
    Vector chosen;
    for (int l = 0; l < LANES; l++) chosen[l] = first ? one[l] : other[l];
    return chosen;
#else
    return first ? one : other;
#endif
}

// Levels of the adder tree over a vector's lanes.
constexpr int TREE_LEVELS = 4;
static_assert(1 << TREE_LEVELS == LANES, "a level for each halving");

// The vector with zeros in all lanes but one.
ALWAYS_INLINE Vector one_lane(const Vector &vector, int lane) {
#pragma HLS INLINE
    Vector kept;
    UNROLL
    for (int l = 0; l < LANES; l++) kept[l] = choose(l == lane, vector[l], 0.0f);
    return kept;
}

constexpr int parts(int whole, int part) { return (whole + part - 1) / part; }

static inline int bits_of(float value) {
    union {
        float value;
        int bits;
    } view = {value};
    return view.bits;
}

static inline float float_of(int bits) {
    union {
        int bits;
        float value;
    } view = {bits};
    return view.value;
}

static inline bool is_finite(float value) { return (bits_of(value) & 0x7f800000) != 0x7f800000; }

// Overflow limits of an update's operands (docs/accelerator.md): a magnitude of 2^63 or more, for squares 2^127.
constexpr int STATE_LIMIT = 0x5f000000, SQUARE_LIMIT = 0x7f000000;

static inline bool overflows(const Vector &vector, int limit) {
    bool any = false;
    UNROLL
    for (int l = 0; l < LANES; l++) any |= (bits_of(vector[l]) & 0x7fffffff) >= limit;
    return any;
}

#endif
