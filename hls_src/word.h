// The word: LANES floats side by side, the unit of every memory, port and operator.
#ifndef BTTLAB_WORD_H
#define BTTLAB_WORD_H

#include <hls_vector.h>

#include "config.h"

typedef hls::vector<float, LANES> Word;
typedef hls::vector<int, LANES> IntWord;

constexpr int words_for(int elements) { return (elements + LANES - 1) / LANES; }

// Element i of a memory of words.
static inline float element(const Word *memory, int i) {
#if defined(__SYNTHESIS__)
    return memory[i / LANES][i % LANES];
#else
    return reinterpret_cast<const float *>(memory)[i];  // the same address, without the division
#endif
}

static inline void set_element(Word *memory, int i, float value) {
#if defined(__SYNTHESIS__)
    memory[i / LANES][i % LANES] = value;
#else
    reinterpret_cast<float *>(memory)[i] = value;
#endif
}

// Sum of the lanes by a balanced tree, halves first: lane l meets lane l + 8, then l + 4, l + 2, l + 1.
static inline float sum_lanes(const Word &word) {
#pragma HLS INLINE
    float eight[8], four[4], two[2];
Eight_Unroll:
    for (int l = 0; l < 8; l++) {
#pragma HLS UNROLL
        eight[l] = word[l] + word[l + 8];
    }
Four_Unroll:
    for (int l = 0; l < 4; l++) {
#pragma HLS UNROLL
        four[l] = eight[l] + eight[l + 4];
    }
    two[0] = four[0] + four[2];
    two[1] = four[1] + four[3];
    return two[0] + two[1];
}

// The sums of LANES words, side by side.
static inline Word sum_lanes_of_each(const Word *words) {
#if defined(__SYNTHESIS__)
#pragma HLS INLINE
    Word sums;
Words_Unroll:
    for (int l = 0; l < LANES; l++) {
#pragma HLS UNROLL
        sums[l] = sum_lanes(words[l]);
    }
    return sums;
#else
    return hls::sums_of(words);  // the same trees, several a register
#endif
}

#endif
