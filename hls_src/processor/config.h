// How large the training processor is. Every width, depth and latency that structure depends on stands here; Python reads
// them from this file (lib/bttlab/card/machine.py). docs/processor.md says what they mean.
#ifndef BTTLAB_PROCESSOR_CONFIG_H
#define BTTLAB_PROCESSOR_CONFIG_H

constexpr int CLOCK_MHZ = 200;

// Lanes of a word: FP32 values that every bank and HBM port moves in a cycle (16 x 32 = 512 bits).
constexpr int LANES = 16;

// Rows of an engine; a word holds the scalars of all of them.
constexpr int ROWS = 16;
constexpr int ENGINES = 2;

// Words of sums a row keeps, on each of two sides.
constexpr int SLOTS = 64;

// Words of a held memory's row.
constexpr int HELD_DEPTH = 1024;

// Units: engines, drains, vector, shuffle, update.
constexpr int UNITS = 7;
constexpr int LEVELS = 4;    // of an instruction's loop nest
constexpr int OPERANDS = 6;  // of an instruction

// Cycles from the step that computes a word to the first step that may read it, for all units.
constexpr int LATENCY = 136;
// The same sum (of an engine's slot, of a row of the vector unit) is added to again after so many cycles at least.
constexpr int SUM_DISTANCE = 8;
// Cycles from one instruction to the next, of the dispatcher and of a unit: reading and decoding.
constexpr int FETCH = 4;
constexpr int QUEUE = 64;             // instructions that wait at a unit
constexpr int PROGRAM_DEPTH = 4096;   // instructions of a program
constexpr int SEQUENCE = 64;          // tokens of a sample's record
constexpr int STATISTICS = 2048;      // rows of each of the four statistics
constexpr int ROW_SLOTS = 1024;       // accumulators of the vector unit
constexpr int LAST_ROW = SEQUENCE;    // where the intent's loss is kept, behind those of the words
constexpr int SHUFFLE_WORDS = 128;    // of a block of the shuffle unit
constexpr int SHUFFLE_GAP = 16;       // idle steps between its blocks
constexpr int SHUFFLE_ENTRIES = 1024; // of its tables
constexpr int FUNCTION_ENTRIES = 2048;
constexpr int FUNCTIONS = 16, REGISTERS = 64, CONSTANTS = 64, SCALARS = 14, SLICE_TABLES = 4;

// Banks: number, words, block (U: UltraRAM, B: block RAM).
#define BTTLAB_BANKS(BANK) \
    BANK(0, 1024, B)       \
    BANK(1, 1024, B)       \
    BANK(2, 8192, U)       \
    BANK(3, 8192, U)       \
    BANK(4, 16384, U)      \
    BANK(5, 12288, U)      \
    BANK(6, 8192, U)       \
    BANK(7, 8192, U)       \
    BANK(8, 16384, U)      \
    BANK(9, 12288, U)      \
    BANK(10, 36864, U)     \
    BANK(11, 36864, U)     \
    BANK(12, 20480, U)     \
    BANK(13, 20480, U)     \
    BANK(14, 20480, U)     \
    BANK(15, 16384, U)     \
    BANK(16, 8192, U)      \
    BANK(17, 8192, U)      \
    BANK(18, 8192, U)      \
    BANK(19, 8192, U)      \
    BANK(20, 8192, U)      \
    BANK(21, 8192, U)      \
    BANK(22, 12288, U)      \
    BANK(23, 12288, U)
constexpr int BANKS = 24;
constexpr int IN_BANK = 0, OUT_BANK = 1, TRANSFER_WORDS = 1024;

static_assert(ROWS == LANES, "the scalars of a step, one a row, come in one word");
static_assert((LANES & (LANES - 1)) == 0, "lanes are added up by a tree");

#endif
