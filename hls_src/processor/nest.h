// The loop nest of a unit: the state of its instruction, the address of each operand, and the transition from step to step.
#ifndef BTTLAB_PROCESSOR_NEST_H
#define BTTLAB_PROCESSOR_NEST_H

#include "state.h"

typedef unsigned short Address;  // of a vector; modulo 2^16
typedef unsigned short Count;    // bounds, indices, instructions

// An instruction between the program and a unit: its two halves.
struct Instruction {
    IntVector low, high;
};

ALWAYS_INLINE int field(const Instruction &instruction, int f) {
    return f < 2 * LANES ? field_of(instruction.low, f) : field_of(instruction.high, f - 2 * LANES);
}

// `at[j]` is the address at the first step of the current iteration of level j, so at[LEVELS - 1] is the current step's. A
// level that advances adds its stride, and all levels inside it start there: no multiplication is needed.
struct Operand {
    bool valid;
    int where, offset_table, group;
    Address at[LEVELS], stride[LEVELS];
};

struct Nest {
    bool busy;   // a step is done in this cycle
    bool empty;  // of an instruction without steps
    int flags;
    Count active[LEVELS], index[LEVELS];
    // State of a level, computed one step ahead: whether its index is the last, how many are left, whether it has only one.
    Count left[LEVELS], all_left[LEVELS];
    bool at_last[LEVELS], single[LEVELS];
    Operand operand[OPERANDS];
    Count count, accumulator;
    int immediate[2];
    int row_level, row_base, depth, accumulator_level;
};

// Starts an instruction; its bounds are resolved to numbers.
ALWAYS_INLINE void begin(Nest &nest, const Instruction &instruction, bool has_no_step) {
#pragma HLS INLINE
    nest.busy = true;
    nest.flags = field(instruction, FIELD_FLAGS);
    nest.empty = has_no_step;
Bounds_Unroll:
    UNROLL
    for (int j = 0; j < LEVELS; j++) nest.empty |= field(instruction, FIELD_BOUND + j) == 0;
Levels_Unroll:
    UNROLL
    for (int j = 0; j < LEVELS; j++) {
        const Count bound = field(instruction, FIELD_BOUND + j);
        nest.all_left[j] = nest.left[j] = bound - 1;
        nest.at_last[j] = nest.single[j] = nest.empty | (bound == 1);
        nest.active[j] = field(instruction, FIELD_ACTIVE + j);
        nest.index[j] = 0;
    }
Operands_Unroll:
    UNROLL
    for (int o = 0; o < OPERANDS; o++) {
        const int first = FIELD_OPERAND + o * (LEVELS + 2), where = field(instruction, first);
        Operand &operand = nest.operand[o];
        operand.valid = where >> 15 & 1;
        operand.where = where & 31;
        operand.offset_table = where >> 8 & 3;
        operand.group = where >> 10 & 7;
    Strides_Unroll:
        UNROLL
        for (int j = 0; j < LEVELS; j++) {
            operand.at[j] = field(instruction, first + 1);
            operand.stride[j] = field(instruction, first + 2 + j);
        }
    }
    nest.count = field(instruction, FIELD_COUNT);
    nest.immediate[0] = field(instruction, FIELD_IMMEDIATE);
    nest.immediate[1] = field(instruction, FIELD_IMMEDIATE + 1);
    const int row = field(instruction, FIELD_ROW);
    nest.row_level = row & 3;
    nest.row_base = row >> 2 & 63;
    nest.depth = row >> 8 & 15;
    nest.accumulator_level = row >> 12 & 7;
    nest.accumulator = 0;
}

// Whether this step is the last.
ALWAYS_INLINE bool is_end(const Nest &nest) {
    bool end = true;
    UNROLL
    for (int j = 0; j < LEVELS; j++) end &= nest.at_last[j];
    return end;
}

// The next step. A level changes when all levels inside it are at their last index: those from the one that advances on.
ALWAYS_INLINE void advance(Nest &nest) {
#pragma HLS INLINE
    bool changes[LEVELS], advances[LEVELS], inner_end = true;
Carry_Unroll:
    UNROLL
    for (int j = LEVELS - 1; j >= 0; j--) {
        changes[j] = inner_end;
        advances[j] = inner_end & !nest.at_last[j];
        inner_end &= nest.at_last[j];
    }
    bool begins_accumulators = false;
Index_Unroll:
    UNROLL
    for (int j = 0; j < LEVELS; j++) {
        nest.index[j] = advances[j] ? nest.index[j] + 1 : changes[j] ? 0 : nest.index[j];
        const bool comes_to_last = nest.left[j] == 1;
        nest.left[j] = advances[j] ? nest.left[j] - 1 : changes[j] ? nest.all_left[j] : nest.left[j];
        nest.at_last[j] = advances[j] ? comes_to_last : changes[j] ? nest.single[j] : nest.at_last[j];
        begins_accumulators |= changes[j] & (nest.accumulator_level == j);
    }
    nest.accumulator = begins_accumulators ? 0 : nest.accumulator + 1;
Address_Unroll:
    UNROLL
    for (int o = 0; o < OPERANDS; o++) {
        Operand &operand = nest.operand[o];
        Address from = 0, stride = 0;
        UNROLL
        for (int j = 0; j < LEVELS; j++) {
            from |= advances[j] ? operand.at[j] : 0;
            stride |= advances[j] ? operand.stride[j] : 0;
        }
        const Address next = from + stride;
        UNROLL
        for (int j = 0; j < LEVELS; j++) operand.at[j] = changes[j] ? next : operand.at[j];
    }
}

// Whether the step's indices of levels [from, LEVELS) are within their active range.
ALWAYS_INLINE bool is_active(const Nest &nest, int from) {
    bool active = nest.busy & !nest.empty;
    UNROLL
    for (int j = 0; j < LEVELS; j++) active &= (j < from) | (nest.index[j] < nest.active[j]);
    return active;
}

// First and last step of a sum along the levels of the depth mask, and whether the last is at the end of its bound.
ALWAYS_INLINE bool is_first(const Nest &nest) {
    bool first = true;
    UNROLL
    for (int j = 0; j < LEVELS; j++) first &= !(nest.depth >> j & 1) | (nest.index[j] == 0);
    return first;
}

ALWAYS_INLINE bool is_last(const Nest &nest) {
    bool last = true;
    UNROLL
    for (int j = 0; j < LEVELS; j++) last &= !(nest.depth >> j & 1) | (nest.index[j] + 1 == nest.active[j]);
    return last;
}

ALWAYS_INLINE bool is_fold(const Nest &nest) {
    bool fold = true;
    UNROLL
    for (int j = 0; j < LEVELS; j++) fold &= !(nest.depth >> j & 1) | nest.at_last[j];
    return fold;
}

// The index of a level that an instruction names.
ALWAYS_INLINE Count index_of(const Nest &nest, int level) {
    Count index = 0;
    UNROLL
    for (int j = 0; j < LEVELS; j++) index |= level == j ? nest.index[j] : 0;
    return index;
}

ALWAYS_INLINE int row_of(const Nest &nest) { return (nest.row_base + index_of(nest, nest.row_level)) & (ROWS - 1); }

// Offsets of the sample's tokens, a memory for each operand of each unit: all of them are read in one cycle.
constexpr int TOKEN_GROUP = 8;
static Address token_offsets[UNITS][OPERANDS][OFFSET_TABLES * SEQUENCE];

// The address of operand o of unit u in this step.
ALWAYS_INLINE Address address_of(int u, int o, const Nest &nest) {
#pragma HLS INLINE
    const Operand &operand = nest.operand[o];
    const int table = (operand.offset_table == 2 ? nest.flags >> OFFSET_B_SHIFT : nest.flags >> OFFSET_A_SHIFT) & (OFFSET_TABLES - 1);
    const int token = TOKEN_GROUP * operand.group + index_of(nest, nest.flags >> OFFSET_LEVEL_SHIFT & 3);
    const Address offset = token_offsets[u][o][table * SEQUENCE + (token & (SEQUENCE - 1))];
    return operand.at[LEVELS - 1] + (operand.offset_table ? offset : 0);
}
static_assert((SEQUENCE & (SEQUENCE - 1)) == 0 && (OFFSET_TABLES & (OFFSET_TABLES - 1)) == 0, "token offsets are addressed by bits");

#endif
