// What an instruction reads and writes: which instructions must keep their order.
#ifndef BTTLAB_PROCESSOR_EMULATION_ACCESSES_H
#define BTTLAB_PROCESSOR_EMULATION_ACCESSES_H

#include "instructions.h"

// Memories by number: the banks, each engine's operand buffer and its two buffers of sums, and what no operand names: the
// vector unit's statistics and sums, the blocks and maps of the shuffle unit.
constexpr int BUFFERS = BANKS, SUMS = BUFFERS + ENGINES, OF_VECTOR_UNIT = SUMS + 2 * ENGINES, OF_SHUFFLE_UNIT = OF_VECTOR_UNIT + 1;

static int number_of(const Vector *memory) {
    for (int m = 0; m < SUMS; m++) {
        if (memory == (m < BUFFERS ? bank_memory[m] : operand_buffer[m - BUFFERS][0])) return m;
    }
    int number = SUMS;
    while (number < OF_VECTOR_UNIT && memory != sums[(number - SUMS) / 2][(number - SUMS) % 2][0]) number++;
    return number;
}

struct Access {
    short memory;
    bool writes;
    int low, high;  // addresses, both included
};

constexpr int HIDDEN = 1;  // access to what no operand names
constexpr int EVERYWHERE = 1 << 30;

struct Accesses {
    int count;
    Access access[OPERANDS + HIDDEN + MOST_JOINED];

    void add(int memory, bool writes, int low, int high) { access[count++] = {static_cast<short>(memory), writes, low, high}; }
};

static bool changes_sums(const Instruction &code) { return code.unit <= ENGINE_1 && code.operation != EXPAND; }

static Accesses accesses_of(int i, const Sample &sample) {
    Accesses accesses = {};
    const Instruction &code = instruction_at(i);
    Nest nest;
    if (!resolve(nest, code, sample)) return accesses;
    place_operands(nest, sample);
    for (int o = 0; o < OPERANDS; o++) {
        const Reach &reach = nest.operand[o];
        if (!code.operand[o].valid || reach.memory == nullptr || reach.memory == &scratch_vector) continue;
        const bool writes = code.unit == UPDATE || o > C_IN + (code.unit != VECTOR);
        const bool is_any = reach.token_offset || !nest.is_inside;  // other samples of this length have other addresses
        accesses.add(number_of(reach.memory), writes, is_any ? 0 : reach.low, is_any ? EVERYWHERE : reach.high);
    }
    // Instructions that access what no operand names keep their order.
    if (code.unit == VECTOR) accesses.add(OF_VECTOR_UNIT, true, 0, EVERYWHERE);
    if (code.unit == SHUFFLE) accesses.add(OF_SHUFFLE_UNIT, true, 0, EVERYWHERE);
    if (changes_sums(code)) accesses.add(SUMS + 2 * (code.unit - ENGINE_0) + (code.flags & PONG ? 1 : 0), true, 0, EVERYWHERE);
    return accesses;
}

static bool conflict(const Accesses &a, const Accesses &b) {
    for (int i = 0; i < a.count; i++) {
        for (int j = 0; j < b.count; j++) {
            const Access &x = a.access[i], &y = b.access[j];
            if (x.memory == y.memory && (x.writes || y.writes) && x.low <= y.high && y.low <= x.high) return true;
        }
    }
    return false;
}

#endif
