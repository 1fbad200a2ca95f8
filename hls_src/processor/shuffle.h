// A step of the shuffle unit: writes a vector's elements into the columns of one half, and reads a vector from the other half.
#ifndef BTTLAB_PROCESSOR_SHUFFLE_H
#define BTTLAB_PROCESSOR_SHUFFLE_H

#include "nest.h"

enum ShuffleOperand { ENTRY_IN = 0, SOURCE_IN = 1, ENTRY_OUT = 2, SHUFFLED_BANK = 4, SHUFFLED_BUFFER = 5 };

// A column for each lane: two halves of SHUFFLE_VECTORS.
static float columns[LANES][2 * SHUFFLE_VECTORS];
static_assert((SHUFFLE_VECTORS & (SHUFFLE_VECTORS - 1)) == 0, "a half is a bit of the place");

// Whether a vector is written, and whether one of the previous block is read.
ALWAYS_INLINE bool takes_vector(const Nest &nest) { return is_active(nest, 1) & !nest.at_last[0]; }

ALWAYS_INLINE bool gives_vector(const Nest &nest) {
    return nest.busy & !nest.empty & (nest.index[0] != 0) & (nest.index[LEVELS - 1] < nest.count);
}

ALWAYS_INLINE Vector shuffle_step(const Nest &nest, const Vector &source) {
#pragma HLS INLINE
    const FieldVector in = shuffle_fields[0][nest.operand[ENTRY_IN].at[LEVELS - 1] & (SHUFFLE_ENTRIES - 1)];
    const FieldVector out = shuffle_fields[1][nest.operand[ENTRY_OUT].at[LEVELS - 1] & (SHUFFLE_ENTRIES - 1)];
    const int half = nest.index[0] & 1 ? SHUFFLE_VECTORS : 0;
    const bool takes = takes_vector(nest);
    Vector column, result;
Out_Unroll:
    UNROLL
    for (int l = 0; l < LANES; l++) {
        column[l] = columns[l][(half ^ SHUFFLE_VECTORS) | (out[l] >> 4 & (SHUFFLE_VECTORS - 1))];
    }
Lanes_Unroll:
    UNROLL
    for (int l = 0; l < LANES; l++) result[l] = choose(out[l] >> 15, column[out[l] & 15], 0.0f);
In_Unroll:
    UNROLL
    for (int c = 0; c < LANES; c++) {
        const float value = source[in[c] & 15];
        if (takes & (in[c] >> 15)) columns[c][half | (in[c] >> 4 & (SHUFFLE_VECTORS - 1))] = value;
    }
    return result;
}
static_assert(LANES == 16, "an entry names a lane by four bits");

#endif
