// How instructions come from the program to the units: the dispatcher, the queues, and what an instruction waits for.
#ifndef BTTLAB_PROCESSOR_DISPATCH_H
#define BTTLAB_PROCESSOR_DISPATCH_H

#include "nest.h"

// From the cycle that first sees the count of an instruction that ended, to the one in which others that need its results
// are let begin: they do their first step LATENCY cycles after its last.
constexpr int DRAIN_CYCLES = LATENCY - 2;

// After so many cycles in which no unit does a step and nothing is sent, nothing can happen any more: the program waits for
// itself.
constexpr int STUCK_CYCLES = 2 * LATENCY;

// Instructions that wait at a unit, and how many have ended and begun, DRAIN_CYCLES ago the oldest.
static IntWord queue[UNITS][2][QUEUE];
static Count ended_before[UNITS][DRAIN_CYCLES], begun_before[UNITS][DRAIN_CYCLES];
// The sample's registers, a memory for each field that may name one: bounds, live, count.
constexpr int CODES = 2 * LEVELS + 1;
static Count registers[CODES][REGISTERS];

// What a unit has to do with the dispatcher. An instruction is read from the queue FETCH - 1 cycles before it begins.
struct Supply {
    Count sent, seen, taken, begun, ended;  // instructions of this run; `seen`: sent, `begun`: taken, a cycle ago
    bool ready[FETCH - 1];                  // the head of the queue was read so many cycles ago
    Instruction fetched[FETCH - 1];
};

// The dispatcher: reads the program as the units read their queues, and turns registers into numbers on the way.
struct Dispatcher {
    Count next, end;
    bool ready[FETCH - 1];
    Instruction fetched[FETCH - 1];
};

// A code of the instruction as a number, in the field that had the code. Codes are taken `from` the instruction as it was, so
// all of them are settled side by side.
ALWAYS_INLINE void settle(IntWord &half, const IntWord &from, int f, int memory) {
    const int code = field_of(from, f), value = choose(code >> 15, registers[memory][code & (REGISTERS - 1)], code);
    const int other = half[f / 2] & (f % 2 ? 0xffff : static_cast<int>(0xffff0000));
    half[f / 2] = other | value << (f % 2 ? 16 : 0);
}

ALWAYS_INLINE Instruction settled(const Instruction &from) {
#pragma HLS INLINE
    Instruction instruction = from;
    UNROLL
    for (int j = 0; j < LEVELS; j++) {
        settle(instruction.low, from.low, FIELD_BOUND + j, j);
        settle(instruction.low, from.low, FIELD_LIVE + j, LEVELS + j);
    }
    settle(instruction.high, from.high, FIELD_COUNT - 2 * LANES, 2 * LEVELS);
    return instruction;
}

// Whether an instruction's counts are reached: of those that ended, ended DRAIN_CYCLES ago, or (bit 15) begun as long ago.
ALWAYS_INLINE bool may_begin(const Instruction &instruction, const Count *ended, const Count *drained,
                             const Count *chained) {
    bool all = true;
    UNROLL
    for (int u = 0; u < UNITS; u++) {
        all &= ended[u] >= field(instruction, FIELD_AFTER_END + u);
        const int after = field(instruction, FIELD_AFTER_DRAIN + u);
        all &= choose(after >> 15, chained[u], drained[u]) >= (after & 0x7fff);
    }
    return all;
}

#endif
