// Instructions of the functional model: fields are decoded once per program, bounds and addresses once per run.
#ifndef BTTLAB_PROCESSOR_EMULATION_NEST_H
#define BTTLAB_PROCESSOR_EMULATION_NEST_H

#include "../state.h"
#include "lanes.h"

// Packed, since each sample reads the instructions of the whole program.
struct Instruction {
    unsigned char unit, operation;
    unsigned short flags, bound[LEVELS], active[LEVELS], count, immediate[2];  // codes, but for the flags
    signed char row_level, row_base, depth_mask, accumulator_level, vector_level, offset_level;
    struct {
        bool valid;
        signed char where, offset_table, group;
        unsigned short base;
        short stride[LEVELS];
    } operand[OPERANDS];
};

static Instruction decoded[PROGRAM_DEPTH];
static bool is_decoded[PROGRAM_DEPTH];

static inline int with_sign(int value, int bits) { return (value ^ (1 << (bits - 1))) - (1 << (bits - 1)); }

static Instruction decode(const IntVector &low, const IntVector &high) {
    int field[INSTRUCTION_FIELDS];
    for (int f = 0; f < INSTRUCTION_FIELDS; f++) field[f] = field_of(f < 32 ? low : high, f % 32);
    Instruction code;
    code.unit = field[FIELD_OPERATION] & 15;
    code.operation = field[FIELD_OPERATION] >> 4 & 255;
    code.flags = field[FIELD_FLAGS];
    for (int j = 0; j < LEVELS; j++) {
        code.bound[j] = field[FIELD_BOUND + j];
        code.active[j] = field[FIELD_ACTIVE + j];
    }
    for (int o = 0; o < OPERANDS; o++) {
        const int *part = field + FIELD_OPERAND + 6 * o, which = part[0] >> 8 & 3;
        auto &operand = code.operand[o];
        operand.valid = part[0] >> 15;
        operand.where = part[0] & 31;
        operand.offset_table = which == 1   ? code.flags >> OFFSET_A_SHIFT & 3
                        : which == 2 ? code.flags >> OFFSET_B_SHIFT & 3
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
    code.accumulator_level = field[FIELD_ROW] >> 12 & 7;
    code.vector_level = code.flags >> VECTOR_LEVEL_SHIFT & 3;
    code.offset_level = code.flags >> OFFSET_LEVEL_SHIFT & 3;
    return code;
}

#define BANK_ADDRESS(number, depth, block) bank_##number,
#define BANK_VECTORS(number, depth, block) depth,
static Vector *const bank_memory[BANKS] = {BTTLAB_BANKS(BANK_ADDRESS)};
static constexpr int BANK_DEPTH[BANKS] = {BTTLAB_BANKS(BANK_VECTORS)};
static_assert(sizeof(bank_memory) / sizeof(bank_memory[0]) == BANKS, "config.h lists all banks");

constexpr int GROUP = 8;  // tokens that a group of token offsets counts

// Invalid operands read from zero_vector and write to scratch_vector.
static Vector zero_vector, scratch_vector;

constexpr int BUFFER_PITCH = sizeof(operand_buffer[0][0]) / sizeof(Vector);  // vectors from one row of an operand buffer to the next
static Vector zero_rows[ROWS * BUFFER_PITCH];

// Address of an operand in a nest, in vectors: start + sum of index x stride (+ token_offset[index of the offset
// level]).
struct Reach {
    Vector *memory = nullptr;
    const int *token_offset = nullptr;
    int start = 0;
    short stride[LEVELS] = {};
    unsigned short low = 0, high = 0;  // all addresses, both included

    long offset(const int *index, int offset_level) const {
        long result = start + (token_offset ? token_offset[index[offset_level]] : 0);
        for (int j = 0; j < LEVELS; j++) result += index[j] * stride[j];
        return result;
    }
};

// The index range of each level, last index included.
struct Box {
    int from[LEVELS], to[LEVELS];
};

// Packed, since each sample reads the nests of the whole program.
struct Nest {
    const Instruction *code;
    unsigned short n[LEVELS], active[LEVELS], end[LEVELS];  // end: the lesser of both
    int count;
    int accumulator_weight[LEVELS];
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

// Resolves everything but the operands. False if the nest has no step.
static inline bool resolve(Nest &nest, const Instruction &code, const Sample &sample) {
    nest.code = &code;
    nest.is_inside = true;
    bool has_steps = true;
    for (int j = 0; j < LEVELS; j++) {
        nest.n[j] = static_cast<unsigned short>(code_value(code.bound[j], sample));
        nest.active[j] = static_cast<unsigned short>(code_value(code.active[j], sample));
        nest.end[j] = nest.n[j] < nest.active[j] ? nest.n[j] : nest.active[j];
        has_steps &= nest.n[j] > 0;
    }
    int weight = 1;
    for (int j = LEVELS - 1; j >= 0; j--) {
        nest.accumulator_weight[j] = code.accumulator_level >= LEVELS || j > code.accumulator_level ? weight : 0;
        weight *= nest.n[j];
    }
    nest.count = code_value(code.count, sample);
    return has_steps;
}

static inline Box active_box(const Nest &nest) {
    Box box;
    for (int j = 0; j < LEVELS; j++) {
        box.from[j] = 0;
        box.to[j] = nest.end[j] - 1;
    }
    return box;
}

// Resolves operand o in a memory of `depth` vectors, for the steps of a box.
static inline void place(Nest &nest, int o, Vector *memory, int depth, const Box &box, const Sample &sample) {
    const auto &operand = nest.code->operand[o];
    Reach &reach = nest.operand[o];
    reach.memory = memory;
    const int offset_level = nest.code->offset_level;
    reach.token_offset = operand.offset_table < 0 ? nullptr : sample.token_offset[operand.offset_table % OFFSET_TABLES] + GROUP * operand.group;
    for (int j = 0; j < LEVELS; j++) reach.stride[j] = operand.stride[j];
    reach.start = reach.low = reach.high = 0;
    long low = operand.base, high = operand.base;  // a sum of four products of bounds and strides exceeds 32 bits
    for (int j = 0; j < LEVELS; j++) {
        if (box.from[j] > box.to[j]) return;  // no step
        const long a = 1L * box.from[j] * operand.stride[j], b = 1L * box.to[j] * operand.stride[j];
        low += a < b ? a : b;
        high += a < b ? b : a;
    }
    if (reach.token_offset) {
        const int i = offset_level, most_index = box.to[i];
        if (GROUP * operand.group + most_index >= SEQUENCE) {
            nest.is_inside = false;
            return;
        }
        const long a = 1L * box.from[i] * reach.stride[i], b = 1L * most_index * reach.stride[i];
        low -= a < b ? a : b;
        high -= a < b ? b : a;
        long least = 1L << 40, most = -least;
        for (int j = box.from[i]; j <= most_index; j++) {
            const long offset = reach.token_offset[j] + 1L * j * reach.stride[i];
            least = offset < least ? offset : least;
            most = offset > most ? offset : most;
        }
        low += least;
        high += most;
    }
    // Addresses count modulo 2^16: a base just below it is a negative one.
    const int wrapped = high >= depth ? 1 << 16 : low < 0 ? -(1 << 16) : 0;
    reach.start = operand.base - wrapped;
    low -= wrapped, high -= wrapped;
    if (low < 0 || high >= depth) {
        nest.is_inside = false;
        return;
    }
    reach.low = static_cast<unsigned short>(low), reach.high = static_cast<unsigned short>(high);
}

static inline void place_nowhere(Nest &nest, int o, Vector *vector) { nest.operand[o] = {vector, nullptr, 0, {}, 0, 0}; }

// Resolves operand o in its bank, or in a dummy vector if it is not valid.
static inline void place_in_bank(Nest &nest, int o, Vector *missing, const Box &box, const Sample &sample) {
    const auto &operand = nest.code->operand[o];
    if (!operand.valid || operand.where >= BANKS) return place_nowhere(nest, o, missing);
    place(nest, o, bank_memory[operand.where], BANK_DEPTH[operand.where], box, sample);
}

static inline bool has_offset(const Nest &nest, int o, int level) {
    return nest.operand[o].token_offset && nest.code->offset_level == level;
}

// Whether an operand's address is constant along a level.
static inline bool stays_along(const Nest &nest, int o, int level) {
    return nest.operand[o].stride[level] == 0 && !has_offset(nest, o, level);
}

static inline bool is_any_offset(const Nest &nest, int level) {
    bool any = false;
    for (int o = 0; o < OPERANDS; o++) any |= has_offset(nest, o, level);
    return any;
}

// A step: its indices, the offset of each operand from its memory, and its accumulator.
struct Step {
    int *index;  // a separate array; the rest stays in registers
    long offset[OPERANDS];
    int accumulator;
};

// The innermost level with several steps in a box; 0 if there is none.
static inline int innermost(const Box &box) {
    int inner = LEVELS - 1;
    while (inner > 0 && box.from[inner] == box.to[inner]) inner--;
    return inner;
}

// Calls `act` for each row of steps of a box, with the first step, the number of steps, and each operand's stride. Rows run
// along level `inner`; the other levels are loops around it, in the order of the nest. A row is a single step if `inner`
// is -1 or its level has token offsets.
template <typename Act>
static inline void each_row(const Nest &nest, const Box &box, int inner, Act act) {
    const int offset_level = nest.code->offset_level;
    const bool has_offsets = is_any_offset(nest, offset_level);
    if (has_offsets && inner == offset_level) inner = -1;
    int index[LEVELS];
    Step step = {};
    step.index = index;
    long stride[OPERANDS] = {};
    // What advancing a level adds to offsets and accumulator, with the inner levels reset.
    long carry[LEVELS][OPERANDS], back[OPERANDS] = {};
    int accumulator_carry[LEVELS], slot_back = 0;
    for (int j = LEVELS - 1; j >= 0; j--) {
        const int more = box.to[j] - box.from[j];
        if (more < 0) return;
        step.index[j] = box.from[j];
        step.accumulator += step.index[j] * nest.accumulator_weight[j];
        if (more == 0) continue;  // never advanced
        accumulator_carry[j] = nest.accumulator_weight[j] - slot_back;
        if (j != inner) slot_back += more * nest.accumulator_weight[j];
        for (int o = 0; o < OPERANDS; o++) {
            const long along = nest.operand[o].stride[j];
            carry[j][o] = along - back[o];
            if (j != inner) back[o] += more * along;
            if (j == inner) stride[o] = along;
        }
    }
    const int count = inner < 0 ? 1 : box.to[inner] - box.from[inner] + 1;
    for (int o = 0; o < OPERANDS; o++) step.offset[o] = nest.operand[o].offset(step.index, offset_level);
    for (;;) {
        act(step, count, stride);
        int outer = LEVELS - 1;
        for (; outer >= 0 && (outer == inner || step.index[outer] == box.to[outer]); outer--) {
            step.index[outer] = box.from[outer];
        }
        if (outer < 0) return;
        step.index[outer]++;
        step.accumulator += accumulator_carry[outer];
        for (int o = 0; o < OPERANDS; o++) {
            step.offset[o] += carry[outer][o];
            if (nest.operand[o].token_offset) step.offset[o] = nest.operand[o].offset(step.index, offset_level);
        }
    }
}

// Calls `act` for all steps of a box, in the order of the nest.
template <typename Act>
static inline void each_step(const Nest &nest, const Box &box, Act act) {
    const int inner = innermost(box), along = is_any_offset(nest, inner) ? -1 : inner, weight = nest.accumulator_weight[inner];
    each_row(nest, box, along, [&](const Step &start, int count, const long *strides) {
        Step step = start;
        long stride[OPERANDS];  // copies, because the compiler must assume that a step's stores change the nest
        UNROLL
        for (int o = 0; o < OPERANDS; o++) stride[o] = strides[o];
        const int first = step.index[inner];
        for (int i = 0; i < count; i++) {
            step.index[inner] = first + i;
            act(static_cast<const Step &>(step));
            step.accumulator += weight;
            UNROLL
            for (int o = 0; o < OPERANDS; o++) step.offset[o] += stride[o];
        }
        step.index[inner] = first;
    });
}

// All indices of levels in the depth mask are 0; or are the last.
static inline bool is_first(const Nest &nest, const Step &step) {
    bool first = true;
    for (int j = 0; j < LEVELS; j++) first &= !(nest.code->depth_mask >> j & 1) || step.index[j] == 0;
    return first;
}

static inline bool is_last(const Nest &nest, const Step &step) {
    bool last = true;
    for (int j = 0; j < LEVELS; j++) last &= !(nest.code->depth_mask >> j & 1) || step.index[j] == nest.active[j] - 1;
    return last;
}

static inline int row_of(const Nest &nest, const Step &step) {
    return (nest.code->row_base + step.index[nest.code->row_level]) & (ROWS - 1);
}

#endif
