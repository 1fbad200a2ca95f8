// The state on chip: banks, operand buffers, sums, statistics, the program and its tables; and the inputs and outputs of a
// run of the machine. Documented in docs/processor.md.
#ifndef BTTLAB_PROCESSOR_STATE_H
#define BTTLAB_PROCESSOR_STATE_H

#include "isa.h"
#include "vector.h"

// On a host, banks, and the rows of operand buffers, which are separate memories, are spaced by slightly more than a power of
// two; otherwise the vectors of a step would map to one set of its cache.
#if defined(BTTLAB_FAST)
constexpr int BANK_GAP = 21, ROW_GAP = 52;
#else
constexpr int BANK_GAP = 0, ROW_GAP = 0;
#endif
#define DECLARE_BANK(number, depth, block) static Vector bank_##number[depth + BANK_GAP];
BTTLAB_BANKS(DECLARE_BANK)
static Vector operand_buffer[ENGINES][ROWS][OPERAND_BUFFER_DEPTH + ROW_GAP];
// Sums of an engine's rows, in two ping-pong buffers: the engine adds to one, the drain reads the other.
static Vector sums[ENGINES][2][ROWS][ACCUMULATORS];
// Statistics of the vector unit's rows: m, i, p, q.
static float statistic[4][STATISTICS];

// Terms of the loss for each word and, at LAST_ROW, for the intent; read after the loop.
static float loss_sum[SEQUENCE + 1], loss_margin[SEQUENCE + 1];
static int argument[SEQUENCE + 1];

struct Register {
    int offset, shift, low, high;
};

struct Function {
    int base, mode, bits;
    float low, high, steps;
    int first;  // floor(low x steps)
};

struct Range {
    int first, count;
};

// The program, apart from its instructions.
struct Program {
    int instructions;  // 0: none is loaded
    Range section[SECTIONS];
    int sequence_length, intents, slots;
    int token_vectors;  // of a token, in a sample's record: a row of a table that is not on chip; 0 if it is
    int offset_limit[OFFSET_TABLES];
    Register registers[REGISTERS];
    float constant[CONSTANTS];
    Function function[FUNCTIONS];
};
static Program program;
static IntVector instruction_memory[2][PROGRAM_DEPTH];                   // the two halves of an instruction
static short transfer_size[PROGRAM_DEPTH];  // vectors that an instruction moves from or to HBM, -1: it is no transfer
#if defined(BTTLAB_FAST)
static float function_table[3][FUNCTION_ENTRIES];  // c0, c1, c2
static IntVector shuffle_table[SHUFFLE_ENTRIES];     // fields 0-15 entry in, 16-31 entry out
#else
// The loop reads all of it in one cycle: a table for each lane, and the two entries apart.
static float lane_table[LANES][3][FUNCTION_ENTRIES];
static FieldVector shuffle_fields[2][SHUFFLE_ENTRIES];
#endif

// Field f of an instruction (or of two entries of a shuffle), without its sign.
static inline int field_of(const IntVector &half, int f) { return (half[f / 2] >> (f % 2 ? 16 : 0)) & 0xffff; }

struct Sample {
    int tokens, intent;
    float scalar[SCALARS];
    int token_offset[OFFSET_TABLES][SEQUENCE];
    int slot[SEQUENCE];
};

// Vectors that moved from HBM to the chip, and back: the emulated card's counters.
enum Direction { FROM_HBM, TO_HBM };
#if defined(__SYNTHESIS__)
static inline void count_vectors(Direction, int) {}
#else
static long long moved_vectors[2];
static inline void count_vectors(Direction direction, int vectors) { moved_vectors[direction] += vectors; }
#endif

enum OptimizerName { SGD, MOMENTUM, ADAMW };
enum Pending { NOTHING, APPLY, DISCARD };

// An entry of the tables, as LOAD_PROGRAM reads it.
static inline void write_function_entry(int coefficient, int entry, float value) {
#if defined(BTTLAB_FAST)
    function_table[coefficient][entry] = value;
#else
    UNROLL
    for (int c = 0; c < 3; c++) {
        UNROLL
        for (int l = 0; l < LANES; l++) {
            if (c == coefficient) lane_table[l][c][entry] = value;
        }
    }
#endif
}

static inline void write_shuffle_entry(int entry, const IntVector &fields) {
#if defined(BTTLAB_FAST)
    shuffle_table[entry] = fields;
#else
    FieldVector in = {}, out = {};
    UNROLL
    for (int l = 0; l < LANES; l++) in[l] = field_of(fields, l), out[l] = field_of(fields, LANES + l);
    shuffle_fields[0][entry] = in, shuffle_fields[1][entry] = out;
#endif
}

// A run of the loop.
struct Run {
    int first, count;  // instructions
    int optimizer;
    float beta1, rest1, beta2, rest2, epsilon;  // factors of the moments and of the gradient in the update
    int pending;                             // operation of the update unit
    float rate, step, root, keep;            // of the sample that the pending update belongs to
    bool overflow, state_overflow[3];            // sticky overflow flags: a gradient; p, m, v
    bool stuck;                              // the run ended in a deadlock
};

#endif
