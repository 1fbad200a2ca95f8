// Configuration of the training processor: every width, depth and latency that its structure depends on. Python reads them
// from this file (lib/bttlab/compiler/machine.py). Documented in docs/processor.md.
#ifndef BTTLAB_PROCESSOR_CONFIG_H
#define BTTLAB_PROCESSOR_CONFIG_H

// The clock of the schedule in MHz: 200, that of the overlay, or 300. Python compiles programs for either.
#ifndef BTTLAB_CLOCK_MHZ
#define BTTLAB_CLOCK_MHZ 200
#endif
constexpr int CLOCK_MHZ = BTTLAB_CLOCK_MHZ;

// Lanes of a vector: the FP32 values that a bank or an HBM port moves in a cycle (16 x 32 = 512 bits).
constexpr int LANES = 16;

// Rows of an engine; one vector has a scalar for each.
constexpr int ROWS = 16;
constexpr int ENGINES = 2;

// Accumulators (vectors of sums) of a row, in each of two ping-pong buffers.
constexpr int ACCUMULATORS = 32;

// Vectors of a row of an engine's operand buffer.
constexpr int OPERAND_BUFFER_DEPTH = 1024;

// Units: engines, drains, vector, shuffle, update.
constexpr int UNITS = 7;
constexpr int LEVELS = 4;    // of an instruction's loop nest
constexpr int OPERANDS = 6;  // of an instruction

// Cycles from the step that computes a vector to the first step that may read it, for all units. At 300 MHz an addition takes
// a cycle more.
constexpr int LATENCY = 144 + 8 * (CLOCK_MHZ / 300);
// Fewest cycles between two additions to the same sum (an engine's accumulator, a row of the vector unit).
constexpr int SUM_DISTANCE = 9;
// Cycles from one instruction to the next, of the dispatcher and of a unit: reading and decoding.
constexpr int FETCH = 4;
constexpr int QUEUE = 32;             // depth of a unit's instruction queue
constexpr int PROGRAM_DEPTH = 4096;   // instructions of a program
constexpr int SEQUENCE = 64;          // tokens of a sample's record
constexpr int STATISTICS = 2048;      // rows of each of the four statistics
constexpr int ROW_ACCUMULATORS = 256;   // accumulators of the vector unit
constexpr int LAST_ROW = SEQUENCE;    // where the intent's loss is kept, behind those of the words
constexpr int SHUFFLE_VECTORS = 128;  // of a block of the shuffle unit
constexpr int SHUFFLE_ENTRIES = 1024; // of its tables
constexpr int FUNCTION_ENTRIES = 2048;
constexpr int FUNCTIONS = 16, REGISTERS = 64, CONSTANTS = 64, SCALARS = 14, OFFSET_TABLES = 4;

// Banks: number, vectors, block (U: UltraRAM, B: block RAM).
#define BTTLAB_BANKS(BANK) \
    BANK(0, 512, B)        \
    BANK(1, 512, B)        \
    BANK(2, 8192, U)       \
    BANK(3, 8192, U)       \
    BANK(4, 12288, U)      \
    BANK(5, 8192, U)       \
    BANK(6, 8192, U)       \
    BANK(7, 8192, U)       \
    BANK(8, 12288, U)      \
    BANK(9, 8192, U)       \
    BANK(10, 32768, U)     \
    BANK(11, 32768, U)     \
    BANK(12, 20480, U)     \
    BANK(13, 12288, U)     \
    BANK(14, 8192, U)      \
    BANK(15, 8192, U)      \
    BANK(16, 8192, U)      \
    BANK(17, 8192, U)      \
    BANK(18, 4096, U)      \
    BANK(19, 4096, U)      \
    BANK(20, 8192, U)      \
    BANK(21, 8192, U)
constexpr int BANKS = 22;
constexpr int IN_BANK = 0, OUT_BANK = 1, TRANSFER_VECTORS = 512;

// Ports of the units, loads and stores: name, unit, operand, and the banks that it reaches. A switch costs a LUT a bit for
// every three of them.
#define BTTLAB_READERS(PORT)                                                                            \
    PORT(STREAM_0, ENGINE_0, 1, 4, 5, 8, 13, 14, 15, 16, 17, 18, 20)                                              \
    PORT(SCALARS_0, ENGINE_0, 2, 2, 4, 12, 13, 18, 19, 21)                                                     \
    PORT(ADDEND_0, ENGINE_0, 3, 2, 5, 12, 14, 16, 17, 19)                                                      \
    PORT(STREAM_1, ENGINE_1, 1, 4, 8, 13, 14, 15, 16, 17, 19, 21)                                              \
    PORT(SCALARS_1, ENGINE_1, 2, 3, 5, 13, 18, 19, 20)                                                            \
    PORT(ADDEND_1, ENGINE_1, 3, 3, 4, 5, 8, 9, 13, 14, 15, 16, 17, 19)                                         \
    PORT(VECTOR_A, VECTOR, 0, 0, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16, 17, 19, 20, 21)              \
    PORT(VECTOR_B, VECTOR, 1, 3, 5, 8, 9, 12, 15, 16, 17, 18)                                                  \
    PORT(VECTOR_C, VECTOR, 2, 2, 4, 12)                                                                        \
    PORT(SHUFFLE_SOURCE, SHUFFLE, 1, 2, 3, 4, 5, 9, 12, 13, 14, 15, 16, 17, 20, 21)                            \
    PORT(UPDATE_P, UPDATE, 0, 2, 3, 4, 5)                                                                      \
    PORT(UPDATE_G, UPDATE, 1, 6, 7, 8, 9)                                                                      \
    PORT(UPDATE_M, UPDATE, 2, 10)                                                                              \
    PORT(UPDATE_V, UPDATE, 3, 11)
#define BTTLAB_WRITERS(PORT)                                                                            \
    PORT(ENGINE_OUT_0, ENGINE_0, 4, 6, 8, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21)                              \
    PORT(ENGINE_OUT_1, ENGINE_1, 4, 7, 8, 9, 13, 14, 15, 16, 17, 18, 19, 20, 21)                               \
    PORT(MOVED_0, DRAIN_0, 4, 6, 9, 15, 17, 20)                                                                \
    PORT(MOVED_1, DRAIN_1, 4, 7, 8, 9, 15, 21)                                                                 \
    PORT(VECTOR_R0, VECTOR, 3, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19)                 \
    PORT(VECTOR_R1, VECTOR, 4, 6, 7, 8, 9, 16, 17, 20)                                                         \
    PORT(SHUFFLED, SHUFFLE, 4, 4, 13, 14, 15, 16, 17, 19, 20, 21)                                              \
    PORT(UPDATED_P, UPDATE, 0, 2, 3, 4, 5)                                                                     \
    PORT(CLEARED_G, UPDATE, 1, 8, 9)                                                                           \
    PORT(UPDATED_M, UPDATE, 2, 10)                                                                             \
    PORT(UPDATED_V, UPDATE, 3, 11)

static_assert(ROWS == LANES, "the scalars of a step, one a row, come in one vector");
static_assert((LANES & (LANES - 1)) == 0, "lanes are added up by a tree");

#endif
