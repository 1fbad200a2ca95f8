// A step of an engine: each row multiplies a vector and adds a vector, in one of three ways; two switches before the multiplier
// and two before the adder tell them apart. And a step of its drain, which reads the ping-pong
// buffer of sums that the engine does not use.
#ifndef BTTLAB_PROCESSOR_ENGINE_H
#define BTTLAB_PROCESSOR_ENGINE_H

#include "nest.h"

enum EngineOperand { BUFFER_IN, STREAM_IN, SCALARS_IN, ADDEND_IN, BANK_OUT, BUFFER_OUT };

// The tree of a fold. Lane l of a row's adders adds lanes l and l + LANES/2 of the row's sums, for l < LANES/2; the levels
// above stand in the free lanes of the rows below, a level a row: lanes [LANES - w, LANES - w/2) add what those of the level
// before gave in the row above, for w = LANES/2 .. 2, and the last lane adds the addend to the tree. So all lanes of a row
// add at one time, and a sum is back in its memory one addition after it was read. w is the smallest power of two that is not
// below LANES - l.
constexpr int span_of_lane(int l) {
    const int rest = LANES - l;
    return rest > LANES / 4 ? LANES / 2 : rest > LANES / 8 ? LANES / 4 : rest > 1 ? 2 : 1;
}
static_assert(LANES == 16, "the powers of two in span_of_lane");

ALWAYS_INLINE Vector fold_left(const Vector &own, const Vector &above) {
    Vector left = own;
    UNROLL
    for (int l = LANES / 2; l < LANES; l++) left[l] = above[l - span_of_lane(l)];
    return left;
}

ALWAYS_INLINE Vector fold_right(const Vector &own, const Vector &above, float addend) {
    Vector right = own;
    UNROLL
    for (int l = 0; l < LANES / 2; l++) right[l] = own[l + LANES / 2];
    UNROLL
    for (int l = LANES / 2; l < LANES - 1; l++) right[l] = above[l - span_of_lane(l) / 2];
    right[LANES - 1] = addend;
    return right;
}

// Cycles from a row's addition to that of the row below: a switch and the adder. An address that takes as long from row to
// row reads each row's vector when its product is wanted; else all vectors, or their products, would wait side by side.
constexpr int ROW_CYCLES = 6 + CLOCK_MHZ / 300;

// Cycles after an engine was asked for its vectors until it gives its result, at least. The select signal
// of a bank that engines write is delayed by as much: vectors of other units then wait once, not in every bank's multiplexer.
constexpr int ENGINE_CYCLES = 124 + 20 * (CLOCK_MHZ / 300);

// The decoded operation of an instruction: one bit per switch.
struct EngineOperationBits {
    bool expand, reduce, in_buffer[2];
};

ALWAYS_INLINE void decode(EngineOperationBits &operation, const Instruction &instruction) {
    const int number = field(instruction, FIELD_OPERATION) >> 4 & 255;
    operation.expand = number == EXPAND;
    operation.reduce = number == REDUCE;
    operation.in_buffer[0] = !(field(instruction, FIELD_FLAGS) & PONG);
    operation.in_buffer[1] = field(instruction, FIELD_FLAGS) & PONG;
}

struct EngineStep {
    bool writes;   // a result
    Vector result;
    Vector moved;    // by the drain
};

// A step of engine e; `scalars`, `stream` and `addend` are zero if the instruction does not have them.
ALWAYS_INLINE EngineStep engine_step(int e, const Nest &nest, const EngineOperationBits &operation, const Nest &drain,
                                     const Vector &stream, const Vector &scalars, const Vector &addend) {
#pragma HLS INLINE
    const bool active = is_active(nest, 0), expand = operation.expand, reduce = operation.reduce;
    const bool fold = reduce & is_fold(nest), adds = active & !expand & !fold;
    const bool first = is_first(nest), has_addend = nest.operand[ADDEND_IN].valid;
    const bool has_one = nest.flags & ONE, writes = active & (expand | fold);
    const int accumulator = nest.accumulator & (ACCUMULATORS - 1), drained_index = drain.operand[BUFFER_IN].at[LEVELS - 1] & (ACCUMULATORS - 1);
    const int drained_row = row_of(drain);
    Address buffer_address = cross_slr(address_of(e, BUFFER_IN, nest) & (OPERAND_BUFFER_DEPTH - 1));
    // A ping-pong buffer that the engine does not use is read at the drain's index.
    const bool *in_buffer = operation.in_buffer;
    const bool sums_up = active & !expand;
    const int index_of_buffer[2] = {choose(sums_up & in_buffer[0], accumulator, drained_index),
                                 choose(sums_up & in_buffer[1], accumulator, drained_index)};
    Vector chain = addend, above = {}, tree = {}, moved = {};
Rows_Unroll:
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        const Vector row = operand_buffer[e][r][buffer_address];
        buffer_address = delay<ROW_CYCLES>(buffer_address) & (OPERAND_BUFFER_DEPTH - 1);
        const Vector sum_0 = sums[e][0][r][index_of_buffer[0]], sum_1 = sums[e][1][r][index_of_buffer[1]];
        const Vector own = choose(in_buffer[1], sum_1, sum_0);
        moved = choose(drained_row == r, choose(drain.flags & PONG, sum_1, sum_0), moved);
        const bool used = r < nest.count;
        const float scalar = choose(used, scalars[r], 0.0f);
        const Vector product = choose(reduce, row, splat(scalar)) * choose(expand, row, stream);
        // -0 is what changes no sum, not even one of -0: so the chain passes the rows that are not in use.
        const Vector added = choose(expand & !used, splat(-0.0f), product);
        const float last = r < TREE_LEVELS ? 0.0f : choose(has_addend, addend[r - TREE_LEVELS], -0.0f);
        const Vector left = choose(expand, chain, choose(fold, fold_left(own, above), choose(first, Vector{}, own)));
        const Vector total = left + choose(fold, fold_right(own, above, last), added);
        chain = above = total;
        if (adds & in_buffer[0]) sums[e][0][r][accumulator] = total;
        if (adds & in_buffer[1]) sums[e][1][r][accumulator] = total;
        if (r >= TREE_LEVELS) tree[r - TREE_LEVELS] = total[LANES - 1];
    }
    // The trees of the last rows end below the rows: TREE_LEVELS more rows of adders, of the lanes that are still needed.
    float carried[LANES];
#pragma HLS ARRAY_PARTITION variable=carried complete
    UNROLL
    for (int l = 0; l < LANES; l++) carried[l] = above[l];
Below_Unroll:
    UNROLL
    for (int level = 1, from = LANES / 2; level <= TREE_LEVELS; level++, from += (LANES - from) / 2) {
        const int r = ROWS - 1 - TREE_LEVELS + level;
        const float last = choose(has_addend, addend[r], -0.0f);
        UNROLL
        for (int l = LANES - 1; l >= from; l--) {  // from the last on, since a lane's operands stand before it
            const int span = span_of_lane(l);
            carried[l] = carried[l - span] + (l == LANES - 1 ? last : carried[l - span / 2]);
        }
        tree[r] = carried[LANES - 1];
    }
    Vector folded;
Folded_Unroll:
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        folded[r] = choose(r < nest.count, tree[r], choose(has_one & (r == nest.count), 1.0f, 0.0f));
    }
    return {writes, choose(expand, chain, folded), moved};
}

#endif
