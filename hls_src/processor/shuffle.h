// A step of the shuffle unit: a word's elements into the columns of one half, a word from the columns of the other half.
#ifndef BTTLAB_PROCESSOR_SHUFFLE_H
#define BTTLAB_PROCESSOR_SHUFFLE_H

#include "nest.h"

enum ShuffleOperand { ENTRY_IN = 0, SOURCE_IN = 1, ENTRY_OUT = 2, SHUFFLED_BANK = 4, SHUFFLED_HELD = 5 };

// A column for each lane: two halves of SHUFFLE_WORDS.
static float columns[LANES][2 * SHUFFLE_WORDS];
static_assert((SHUFFLE_WORDS & (SHUFFLE_WORDS - 1)) == 0, "a half is a bit of the place");

// Whether a word goes in, and whether one comes out: of the block before.
ALWAYS_INLINE bool takes_word(const Nest &nest) { return is_live(nest, 1) & !nest.at_last[0]; }

ALWAYS_INLINE bool gives_word(const Nest &nest) {
    return nest.busy & !nest.empty & (nest.index[0] != 0) & (nest.index[LEVELS - 1] < nest.count);
}

ALWAYS_INLINE Word shuffle_step(const Nest &nest, const Word &source) {
#pragma HLS INLINE
    const FieldWord in = shuffle_fields[0][nest.operand[ENTRY_IN].at[LEVELS - 1] & (SHUFFLE_ENTRIES - 1)];
    const FieldWord out = shuffle_fields[1][nest.operand[ENTRY_OUT].at[LEVELS - 1] & (SHUFFLE_ENTRIES - 1)];
    const int half = nest.index[0] & 1 ? SHUFFLE_WORDS : 0;
    const bool takes = takes_word(nest);
    Word column, result;
Out_Unroll:
    UNROLL
    for (int l = 0; l < LANES; l++) {
        column[l] = columns[l][(half ^ SHUFFLE_WORDS) | (out[l] >> 4 & (SHUFFLE_WORDS - 1))];
    }
Lanes_Unroll:
    UNROLL
    for (int l = 0; l < LANES; l++) result[l] = choose(out[l] >> 15, column[out[l] & 15], 0.0f);
In_Unroll:
    UNROLL
    for (int c = 0; c < LANES; c++) {
        const float value = source[in[c] & 15];
        if (takes & (in[c] >> 15)) columns[c][half | (in[c] >> 4 & (SHUFFLE_WORDS - 1))] = value;
    }
    return result;
}
static_assert(LANES == 16, "an entry names a lane by four bits");

#endif
