// A step of an engine: each row multiplies a word and adds a word, in one of three ways; two switches before the multiplier
// and two before the adder tell them apart. And a step of its drain, which reads the side of the sums that the engine leaves.
#ifndef BTTLAB_PROCESSOR_ENGINE_H
#define BTTLAB_PROCESSOR_ENGINE_H

#include "nest.h"

enum EngineOperand { HELD_IN, STREAM_IN, SCALARS_IN, ADDEND_IN, BANK_OUT, HELD_OUT };

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

ALWAYS_INLINE Word fold_left(const Word &own, const Word &above) {
    Word left = own;
    UNROLL
    for (int l = LANES / 2; l < LANES; l++) left[l] = above[l - span_of_lane(l)];
    return left;
}

ALWAYS_INLINE Word fold_right(const Word &own, const Word &above, float addend) {
    Word right = own;
    UNROLL
    for (int l = 0; l < LANES / 2; l++) right[l] = own[l + LANES / 2];
    UNROLL
    for (int l = LANES / 2; l < LANES - 1; l++) right[l] = above[l - span_of_lane(l) / 2];
    right[LANES - 1] = addend;
    return right;
}

// Cycles from a row's addition to that of the row below: a switch and the adder. An address that takes as long from row to
// row reads each row's word when its product is wanted; else all words, or their products, would wait side by side.
constexpr int ROW_CYCLES = 6;
BLOCK Address a_row_later(Address address) {
#pragma HLS INLINE off
#pragma HLS PIPELINE II=1
#pragma HLS LATENCY min=ROW_CYCLES max=ROW_CYCLES
    return address;
}

// Cycles after an engine was asked for its words until it gives its result, at least. Who writes a bank that engines write
// is told so much later: words of other units then wait once, and not in each bank's switches.
constexpr int ENGINE_CYCLES = 120;
BLOCK int an_engine_later(int writer) {
#pragma HLS INLINE off
#pragma HLS PIPELINE II=1
#pragma HLS LATENCY min=ENGINE_CYCLES max=ENGINE_CYCLES
    return writer;
}

// What an instruction is: bits, which the switches are made from.
struct EngineOperationBits {
    bool expand, reduce, on_side[2];
};

ALWAYS_INLINE void decode(EngineOperationBits &operation, const Instruction &instruction) {
    const int number = field(instruction, FIELD_OPERATION) >> 4 & 255;
    operation.expand = number == EXPAND;
    operation.reduce = number == REDUCE;
    operation.on_side[0] = !(field(instruction, FIELD_FLAGS) & SIDE);
    operation.on_side[1] = field(instruction, FIELD_FLAGS) & SIDE;
}

struct EngineStep {
    bool writes;   // a result
    Word result;
    Word moved;    // by the drain
};

// The step of engine e; `scalars`, `stream` and `addend` are zeros where the instruction has none.
ALWAYS_INLINE EngineStep engine_step(int e, const Nest &nest, const EngineOperationBits &operation, const Nest &drain,
                                     const Word &stream, const Word &scalars, const Word &addend) {
#pragma HLS INLINE
    const bool acts = is_live(nest, 0), expand = operation.expand, reduce = operation.reduce;
    const bool fold = reduce & is_fold(nest), adds = acts & !expand & !fold;
    const bool first = is_first(nest), has_addend = nest.operand[ADDEND_IN].valid;
    const bool has_one = nest.flags & ONE, writes = acts & (expand | fold);
    const int slot = nest.slot & (SLOTS - 1), drained_slot = drain.operand[HELD_IN].at[LEVELS - 1] & (SLOTS - 1);
    const int drained_row = row_of(drain);
    Address held_address = address_of(e, HELD_IN, nest) & (HELD_DEPTH - 1);
    // Of a side that the engine does not use, the drain's slot is read.
    const bool *on_side = operation.on_side;
    const bool sums_up = acts & !expand;
    const int slot_of_side[2] = {choose(sums_up & on_side[0], slot, drained_slot),
                                 choose(sums_up & on_side[1], slot, drained_slot)};
    Word chain = addend, above = {}, tree = {}, moved = {};
Rows_Unroll:
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        const Word row = held[e][r][held_address];
        held_address = a_row_later(held_address) & (HELD_DEPTH - 1);
        const Word sum_0 = sums[e][0][r][slot_of_side[0]], sum_1 = sums[e][1][r][slot_of_side[1]];
        const Word own = choose(on_side[1], sum_1, sum_0);
        moved = choose(drained_row == r, choose(drain.flags & SIDE, sum_1, sum_0), moved);
        const bool used = r < nest.count;
        const float scalar = choose(used, scalars[r], 0.0f);
        const Word product = choose(reduce, row, splat(scalar)) * choose(expand, row, stream);
        // -0 is what changes no sum, not even one of -0: so the chain passes the rows that are not in use.
        const Word added = choose(expand & !used, splat(-0.0f), product);
        const float last = r < TREE_LEVELS ? 0.0f : choose(has_addend, addend[r - TREE_LEVELS], -0.0f);
        const Word left = choose(expand, chain, choose(fold, fold_left(own, above), choose(first, Word{}, own)));
        const Word total = left + choose(fold, fold_right(own, above, last), added);
        chain = above = total;
        if (adds & on_side[0]) sums[e][0][r][slot] = total;
        if (adds & on_side[1]) sums[e][1][r][slot] = total;
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
    Word folded;
Folded_Unroll:
    UNROLL
    for (int r = 0; r < ROWS; r++) {
        folded[r] = choose(r < nest.count, tree[r], choose(has_one & (r == nest.count), 1.0f, 0.0f));
    }
    return {writes, choose(expand, chain, folded), moved};
}

#endif
