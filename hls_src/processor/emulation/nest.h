// Instructions as the emulation runs them: fields taken apart once a program, bounds and addresses settled once a run.
#ifndef BTTLAB_PROCESSOR_EMULATION_NEST_H
#define BTTLAB_PROCESSOR_EMULATION_NEST_H

#include "../state.h"
#include "lanes.h"

struct Instruction {
    int unit, operation, flags;
    int bound[LEVELS], live[LEVELS];  // codes
    struct {
        bool valid;
        int where, slice, group, base, stride[LEVELS];
    } operand[OPERANDS];
    int count, immediate[2];  // codes
    int row_level, row_base, depth_mask, slot_level, word_level, slice_level;
};

static Instruction decoded[PROGRAM_DEPTH];
static bool is_decoded[PROGRAM_DEPTH];

static inline int with_sign(int value, int bits) { return (value ^ (1 << (bits - 1))) - (1 << (bits - 1)); }

static Instruction decode(const IntWord &low, const IntWord &high) {
    int field[INSTRUCTION_FIELDS];
    for (int f = 0; f < INSTRUCTION_FIELDS; f++) field[f] = field_of(f < 32 ? low : high, f % 32);
    Instruction code;
    code.unit = field[FIELD_OPERATION] & 15;
    code.operation = field[FIELD_OPERATION] >> 4 & 255;
    code.flags = field[FIELD_FLAGS];
    for (int j = 0; j < LEVELS; j++) {
        code.bound[j] = field[FIELD_BOUND + j];
        code.live[j] = field[FIELD_LIVE + j];
    }
    for (int o = 0; o < OPERANDS; o++) {
        const int *part = field + FIELD_OPERAND + 6 * o, which = part[0] >> 8 & 3;
        auto &operand = code.operand[o];
        operand.valid = part[0] >> 15;
        operand.where = part[0] & 31;
        operand.slice = which == 1   ? code.flags >> SLICE_A_SHIFT & 3
                        : which == 2 ? code.flags >> SLICE_B_SHIFT & 3
                                     : -1;
        operand.group = part[0] >> 10 & 7;
        operand.base = part[1];
        for (int j = 0; j < LEVELS; j++) operand.stride[j] = with_sign(part[2 + j], 16);
    }
    code.count = field[FIELD_COUNT];
    for (int i = 0; i < 2; i++) code.immediate[i] = field[FIELD_IMMEDIATE + i];
    code.row_level = field[FIELD_ROW] & 3;
    code.row_base = with_sign(field[FIELD_ROW] >> 2 & 63, 6);
    code.depth_mask = field[FIELD_ROW] >> 8 & 15;
    code.slot_level = field[FIELD_ROW] >> 12 & 7;
    code.word_level = code.flags >> WORD_LEVEL_SHIFT & 3;
    code.slice_level = code.flags >> SLICE_LEVEL_SHIFT & 3;
    return code;
}

#define BANK_ADDRESS(number, depth, block) bank_##number,
#define BANK_WORDS(number, depth, block) depth,
static Word *const bank_memory[BANKS] = {BTTLAB_BANKS(BANK_ADDRESS)};
static constexpr int BANK_DEPTH[BANKS] = {BTTLAB_BANKS(BANK_WORDS)};
static_assert(sizeof(bank_memory) / sizeof(bank_memory[0]) == BANKS, "config.h lists all banks");

constexpr int GROUP = 8;  // tokens that a group of slices counts

// What an operand that is not valid reads from, and writes to.
static Word zero_word, scratch_word;

constexpr int HELD_PITCH = sizeof(held[0][0]) / sizeof(Word);  // words from one row of a held operand to the next
static Word zero_rows[ROWS * HELD_PITCH];

// Where the steps of a nest find an operand, in words: start + sum of index x stride (+ slice[index of the slice level]).
struct Reach {
    Word *memory;
    int start, stride[LEVELS];
    const int *slice;
    int low, high;  // all addresses, both included

    long offset(const int *index, int slice_level) const {
        long result = start + (slice ? slice[index[slice_level]] : 0);
        for (int j = 0; j < LEVELS; j++) result += index[j] * stride[j];
        return result;
    }
};

// The indices that steps run through, last one included.
struct Box {
    int from[LEVELS], to[LEVELS];
};

struct Nest {
    const Instruction *code;
    int n[LEVELS], live[LEVELS], end[LEVELS];  // end: the lesser of both
    int count;
    float f0, f1;
    int slot_weight[LEVELS];
    Reach operand[OPERANDS];
    bool is_inside;  // no address lies outside of its memory
};

static inline int code_value(int code, const Sample &sample) {
    if (!(code >> 15)) return code;
    const Register &r = program.registers[code & (REGISTERS - 1)];
    const int value = (sample.tokens + r.offset) >> r.shift;
    return value < r.low ? r.low : value > r.high ? r.high : value;
}

static inline float immediate_value(int code, const Sample &sample) {
    return code >> 15 ? sample.scalar[(code & 15) % SCALARS] : program.constant[code % CONSTANTS];
}

// Everything but the operands. False: the nest has no step.
static inline bool settle(Nest &nest, const Instruction &code, const Sample &sample) {
    nest.code = &code;
    nest.is_inside = true;
    bool has_steps = true;
    for (int j = 0; j < LEVELS; j++) {
        nest.n[j] = code_value(code.bound[j], sample);
        nest.live[j] = code_value(code.live[j], sample);
        nest.end[j] = nest.n[j] < nest.live[j] ? nest.n[j] : nest.live[j];
        has_steps &= nest.n[j] > 0;
    }
    int weight = 1;
    for (int j = LEVELS - 1; j >= 0; j--) {
        nest.slot_weight[j] = code.slot_level >= LEVELS || j > code.slot_level ? weight : 0;
        weight *= nest.n[j];
    }
    nest.count = code_value(code.count, sample);
    nest.f0 = immediate_value(code.immediate[0], sample);
    nest.f1 = immediate_value(code.immediate[1], sample);
    return has_steps;
}

static inline Box live_box(const Nest &nest) {
    Box box;
    for (int j = 0; j < LEVELS; j++) {
        box.from[j] = 0;
        box.to[j] = nest.end[j] - 1;
    }
    return box;
}

// Operand o in a memory of so many words, for the steps of a box.
static inline void place(Nest &nest, int o, Word *memory, int depth, const Box &box, const Sample &sample) {
    const auto &operand = nest.code->operand[o];
    Reach &reach = nest.operand[o];
    reach.memory = memory;
    const int slice_level = nest.code->slice_level;
    reach.slice = operand.slice < 0 ? nullptr : sample.slice[operand.slice % SLICE_TABLES] + GROUP * operand.group;
    bool is_used = true;
    for (int j = 0; j < LEVELS; j++) {
        reach.stride[j] = operand.stride[j];
        is_used &= box.from[j] <= box.to[j];
    }
    reach.start = reach.low = reach.high = 0;
    if (!is_used) return;
    int low = operand.base, high = operand.base;
    for (int j = 0; j < LEVELS; j++) {
        if (j == slice_level && reach.slice) {
            int least = 1 << 30, most = -least;
            if (GROUP * operand.group + box.to[j] >= SEQUENCE) {
                nest.is_inside = false;
                return;
            }
            for (int i = box.from[j]; i <= box.to[j]; i++) {
                const int offset = reach.slice[i] + i * reach.stride[j];
                least = offset < least ? offset : least;
                most = offset > most ? offset : most;
            }
            low += least;
            high += most;
        } else {
            const int a = box.from[j] * reach.stride[j], b = box.to[j] * reach.stride[j];
            low += a < b ? a : b;
            high += a < b ? b : a;
        }
    }
    // Addresses count modulo 2^16: a base just below it is a negative one.
    const int wrapped = high >= depth ? 1 << 16 : low < 0 ? -(1 << 16) : 0;
    reach.start = operand.base - wrapped;
    reach.low = low - wrapped;
    reach.high = high - wrapped;
    nest.is_inside &= reach.low >= 0 && reach.high < depth;
}

static inline void place_nowhere(Nest &nest, int o, Word *word) { nest.operand[o] = {word, 0, {}, nullptr, 0, 0}; }

// Operand o in its bank; if it is not valid, in a word of no meaning.
static inline void place_in_bank(Nest &nest, int o, Word *missing, const Box &box, const Sample &sample) {
    const auto &operand = nest.code->operand[o];
    if (!operand.valid || operand.where >= BANKS) return place_nowhere(nest, o, missing);
    place(nest, o, bank_memory[operand.where], BANK_DEPTH[operand.where], box, sample);
}

static inline bool is_sliced(const Nest &nest, int o, int level) {
    return nest.operand[o].slice && nest.code->slice_level == level;
}

// Whether an operand stays where it is along a level.
static inline bool stays_along(const Nest &nest, int o, int level) {
    return nest.operand[o].stride[level] == 0 && !is_sliced(nest, o, level);
}

static inline bool is_any_sliced(const Nest &nest, int level) {
    bool any = false;
    for (int o = 0; o < OPERANDS; o++) any |= is_sliced(nest, o, level);
    return any;
}

// A step: its indices, the offset of each operand from its memory, and its slot.
struct Step {
    int index[LEVELS];
    long offset[OPERANDS];
    int slot;
};

// Calls `act` for all steps of a box, in the order of the nest: along its innermost level that has several, and around.
template <typename Act>
static inline void each_step(const Nest &nest, const Box &box, Act act) {
    const int slice_level = nest.code->slice_level;
    int inner = LEVELS - 1;
    while (inner > 0 && box.from[inner] == box.to[inner]) inner--;
    Step step;
    for (int j = 0; j < LEVELS; j++) {
        if (box.from[j] > box.to[j]) return;
        step.index[j] = box.from[j];
    }
    const auto find = [&] {
        UNROLL
        for (int o = 0; o < OPERANDS; o++) step.offset[o] = nest.operand[o].offset(step.index, slice_level);
    };
    const bool finds = is_any_sliced(nest, inner);
    // Copies: what a step stores might change the nest, as far as the compiler knows.
    const int first = box.from[inner], last = box.to[inner], weight = nest.slot_weight[inner];
    long stride[OPERANDS];
    UNROLL
    for (int o = 0; o < OPERANDS; o++) stride[o] = nest.operand[o].stride[inner];
    for (;;) {
        step.slot = 0;
        for (int j = 0; j < LEVELS; j++) step.slot += step.index[j] * nest.slot_weight[j];
        find();
        for (int i = first; i <= last; i++) {
            step.index[inner] = i;
            if (finds) find();
            act(step);
            step.slot += weight;
            UNROLL
            for (int o = 0; o < OPERANDS; o++) step.offset[o] += stride[o];
        }
        step.index[inner] = first;
        int outer = inner - 1;
        for (; outer >= 0 && step.index[outer] == box.to[outer]; outer--) step.index[outer] = box.from[outer];
        if (outer < 0) return;
        step.index[outer]++;
    }
}

// All indices of levels in the depth mask are 0; or are the last.
static inline bool is_first(const Nest &nest, const Step &step) {
    bool first = true;
    for (int j = 0; j < LEVELS; j++) first &= !(nest.code->depth_mask >> j & 1) || step.index[j] == 0;
    return first;
}

static inline bool is_last(const Nest &nest, const Step &step) {
    bool last = true;
    for (int j = 0; j < LEVELS; j++) last &= !(nest.code->depth_mask >> j & 1) || step.index[j] == nest.live[j] - 1;
    return last;
}

static inline int row_of(const Nest &nest, const Step &step) {
    return (nest.code->row_base + step.index[nest.code->row_level]) & (ROWS - 1);
}

#endif
