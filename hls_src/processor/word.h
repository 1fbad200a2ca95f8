// The word: LANES floats side by side, the unit of every bank, port and operator; and how loops are unrolled.
#ifndef BTTLAB_PROCESSOR_WORD_H
#define BTTLAB_PROCESSOR_WORD_H

#include "config.h"

#if defined(__VITIS_HLS__)
#include <hls_vector.h>
typedef hls::vector<float, LANES> Word;
typedef hls::vector<int, LANES> IntWord;
typedef hls::vector<unsigned short, LANES> FieldWord;
#define UNROLL  // all loops inside a pipelined one are
#else
typedef float Word __attribute__((vector_size(4 * LANES)));
typedef int IntWord __attribute__((vector_size(4 * LANES)));
typedef unsigned short FieldWord __attribute__((vector_size(2 * LANES)));
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 64")
#endif
#endif

// All of the machine becomes one loop.
#define ALWAYS_INLINE static inline __attribute__((always_inline))

static inline Word splat(float value) {
#if defined(__VITIS_HLS__)
    return Word(value);
#else
    return value - Word{};  // x - 0 is x, and -0 too
#endif
}

// A function that is a block of its own, with a latency of its own.
#if defined(__SYNTHESIS__)
#define BLOCK static __attribute__((noinline))
#else
#define BLOCK ALWAYS_INLINE
#endif

// One of two, by a bit: a switch. Both are there, so that no tool makes a branch of it and what stands before it twice.
ALWAYS_INLINE int choose(bool first, int one, int other) { return first ? one : other; }
ALWAYS_INLINE float choose(bool first, float one, float other) { return first ? one : other; }
ALWAYS_INLINE Word choose(bool first, Word one, Word other) {
#if defined(__VITIS_HLS__)
    Word chosen;
    for (int l = 0; l < LANES; l++) chosen[l] = first ? one[l] : other[l];
    return chosen;
#else
    return first ? one : other;
#endif
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

// Limits of what an update is made from (docs/accelerator.md): a magnitude of 2^63 or more, for squares 2^127.
constexpr int STATE_LIMIT = 0x5f000000, SQUARE_LIMIT = 0x7f000000;

static inline bool is_beyond(const Word &word, int limit) {
    bool any = false;
    UNROLL
    for (int l = 0; l < LANES; l++) any |= (bits_of(word[l]) & 0x7fffffff) >= limit;
    return any;
}

#endif
