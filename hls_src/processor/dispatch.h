// The path of instructions from the program to the units: dispatcher, queues, and issue conditions.
#ifndef BTTLAB_PROCESSOR_DISPATCH_H
#define BTTLAB_PROCESSOR_DISPATCH_H

#include "nest.h"

// Cycles from the first that counts an instruction as ended to the one that lets instructions which read its results begin.
// Their first step comes LATENCY cycles after its last one.
constexpr int DRAIN_CYCLES = LATENCY - 2;

// The program is deadlocked after this many cycles without a step and without a sent instruction.
constexpr int STUCK_CYCLES = 2 * LATENCY;

// A unit sees the instructions sent up to two cycles ago.
constexpr int QUEUE_DISTANCE = 2;

// Whether an instruction may begin is known a cycle ahead, so counts are kept for a cycle less.
constexpr int COUNTED_CYCLES = DRAIN_CYCLES - 1;

// Instructions waiting at a unit, and counts of ended and begun instructions over the last COUNTED_CYCLES.
static IntVector queue[UNITS][2][QUEUE];
static Count ended_before[UNITS][COUNTED_CYCLES], begun_before[UNITS][COUNTED_CYCLES];
// The sample's registers, a memory for each field that may name one: bounds, active, count.
constexpr int CODES = 2 * LEVELS + 1;
static Count registers[CODES][REGISTERS];

// Issue state of a unit. An instruction is read from the queue FETCH - 1 cycles before it begins.
struct IssueState {
    Count sent, seen, taken, begun, ended;  // instructions of this run; `seen`: sent, `begun`: taken, a cycle ago
    bool is_full;                           // of the queue: sent - taken == QUEUE
    bool may_begin;                         // the oldest instruction fetched: whether its counts are reached
    bool ready[FETCH - 1];                  // cycles since the head of the queue was read
    Instruction fetched[FETCH - 1];
};

// The dispatcher: reads the program as the units read their queues, and replaces register codes by their values.
struct Dispatcher {
    Count next, end;
    bool ready[FETCH - 1];
    Instruction fetched[FETCH - 1];
};

// Replaces the code in field f of an instruction by its value. Codes are read `from` the instruction as fetched, so that all
// fields resolve in parallel.
ALWAYS_INLINE void resolve(IntVector &half, const IntVector &from, int f, int memory) {
    const int code = field_of(from, f), value = choose(code >> 15, registers[memory][code & (REGISTERS - 1)], code);
    const int other = half[f / 2] & (f % 2 ? 0xffff : static_cast<int>(0xffff0000));
    half[f / 2] = other | value << (f % 2 ? 16 : 0);
}

ALWAYS_INLINE Instruction resolved(const Instruction &from) {
#pragma HLS INLINE
    Instruction instruction = from;
    UNROLL
    for (int j = 0; j < LEVELS; j++) {
        resolve(instruction.low, from.low, FIELD_BOUND + j, j);
        resolve(instruction.low, from.low, FIELD_ACTIVE + j, LEVELS + j);
    }
    resolve(instruction.high, from.high, FIELD_COUNT - 2 * LANES, 2 * LEVELS);
    return instruction;
}

// Instructions of each unit that ended, that ended DRAIN_CYCLES ago, and that began DRAIN_CYCLES ago.
struct Counts {
    Count ended[UNITS], drained[UNITS], chained[UNITS];
};

// Counts until the beginning of the next cycle; `ends`: of the units in this one. `oldest` is the entry of COUNTED_CYCLES ago,
// which those of now replace.
ALWAYS_INLINE void count_instructions(Counts &counts, const IssueState *issue, const bool *ends, int oldest, bool has_oldest) {
#pragma HLS INLINE
    UNROLL
    for (int u = 0; u < UNITS; u++) {
        counts.ended[u] = issue[u].ended + ends[u];
        const Count before = ended_before[u][oldest];
        counts.drained[u] = has_oldest ? before : 0;
        ended_before[u][oldest] = issue[u].ended;
        const Count begun = begun_before[u][oldest];
        counts.chained[u] = has_oldest ? begun : 0;
        begun_before[u][oldest] = issue[u].begun;
    }
}

// Returns whether an instruction's counts are reached: of those that ended, ended DRAIN_CYCLES ago, or (bit 15) begun as long ago.
ALWAYS_INLINE bool may_begin(const Instruction &instruction, const Counts &counts) {
    bool all = true;
    UNROLL
    for (int u = 0; u < UNITS; u++) {
        all &= counts.ended[u] >= field(instruction, FIELD_AFTER_END + u);
        const int after = field(instruction, FIELD_AFTER_DRAIN + u);
        all &= choose(after >> 15, counts.chained[u], counts.drained[u]) >= (after & 0x7fff);
    }
    return all;
}

// What the dispatcher sends in one cycle.
struct Outgoing {
    bool valid;
    int unit;
    Instruction instruction;
};

// Sends the oldest fetched instruction unless its unit's queue is full, and fetches the next one.
ALWAYS_INLINE void dispatch(Outgoing &outgoing, Dispatcher &dispatcher, const IssueState *issue) {
#pragma HLS INLINE
    outgoing.instruction = dispatcher.fetched[FETCH - 2];
    outgoing.unit = field(outgoing.instruction, FIELD_OPERATION) & 15;
    bool is_full = false;
    UNROLL
    for (int u = 0; u < UNITS; u++) {
        is_full |= (outgoing.unit == u) & issue[u].is_full;
    }
    const bool sends = dispatcher.ready[FETCH - 2] & !is_full;
    const bool has_next = dispatcher.next != dispatcher.end;
    UNROLL
    for (int i = FETCH - 2; i > 1; i--) dispatcher.fetched[i] = dispatcher.fetched[i - 1];
    dispatcher.fetched[1] = resolved(dispatcher.fetched[0]);
    dispatcher.fetched[0] = {instruction_memory[0][dispatcher.next & (PROGRAM_DEPTH - 1)],
                             instruction_memory[1][dispatcher.next & (PROGRAM_DEPTH - 1)]};
    UNROLL
    for (int i = FETCH - 2; i > 0; i--) dispatcher.ready[i] = dispatcher.ready[i - 1] & !sends;
    dispatcher.ready[0] = has_next & !sends;
    dispatcher.next += sends;
    outgoing.valid = sends;
}

// Advances a unit's instructions by a stage: from its queue towards its nest, and from the dispatcher into its queue.
ALWAYS_INLINE void fetch(IssueState &unit, int u, const Outgoing &outgoing, const Counts &counts, bool begins) {
#pragma HLS INLINE
    const Instruction head = {queue[u][0][unit.taken & (QUEUE - 1)], queue[u][1][unit.taken & (QUEUE - 1)]};
    const bool waits = unit.seen != unit.taken;
    unit.may_begin = may_begin(unit.fetched[FETCH - 3], counts);
    UNROLL
    for (int i = FETCH - 2; i > 0; i--) {
        unit.fetched[i] = unit.fetched[i - 1];
        unit.ready[i] = unit.ready[i - 1] & !begins;
    }
    unit.fetched[0] = head;
    unit.ready[0] = waits & !begins;
    const bool receives = outgoing.valid & (outgoing.unit == u);
    if (receives) {
        queue[u][0][unit.sent & (QUEUE - 1)] = outgoing.instruction.low;
        queue[u][1][unit.sent & (QUEUE - 1)] = outgoing.instruction.high;
    }
    const bool has_one_place = static_cast<Count>(unit.sent - unit.taken) == QUEUE - 1;
    unit.is_full = receives == begins ? unit.is_full : receives & has_one_place;
    unit.seen = unit.sent;
    unit.sent += receives;
    unit.begun = unit.taken;
    unit.taken += begins;
    unit.ended = counts.ended[u];
}

#endif
