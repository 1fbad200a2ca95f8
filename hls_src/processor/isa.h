// The names of docs/processor.md as numbers: units, operations, flags, fields. Python reads them from this file.
#ifndef BTTLAB_PROCESSOR_ISA_H
#define BTTLAB_PROCESSOR_ISA_H

enum Unit { ENGINE_0, ENGINE_1, DRAIN_0, DRAIN_1, VECTOR, SHUFFLE, UPDATE };

enum EngineOperation { EXPAND, ACCUMULATE, REDUCE };

enum VectorOperation {
    COPY,
    ADD,
    SUM,
    VARIANCE,
    NORMALIZE,
    AFFINE,
    NORM_SUMS,
    NORM_BACK,
    COLUMNS,
    FUNCTION,
    TIMES_FUNCTION,
    TANH_BACK,
    MAXIMUM,
    EXPONENT,
    SCALE,
    LOSS_BACK,
    DOT,
    SOFTMAX_BACK
};

enum FunctionMode { PLAIN, EXPONENTIAL };

enum Flag { CHECK = 1, ONE = 2, PONG = 4, CLEAR = 8, INTENT = 16, LOSS = 32 };
enum FlagShift { OFFSET_A_SHIFT = 8, OFFSET_B_SHIFT = 10, VECTOR_LEVEL_SHIFT = 12, OFFSET_LEVEL_SHIFT = 14 };

enum Field {
    FIELD_OPERATION = 0,
    FIELD_FLAGS = 1,
    FIELD_AFTER_END = 2,
    FIELD_AFTER_DRAIN = 9,
    FIELD_BOUND = 16,
    FIELD_ACTIVE = 20,
    FIELD_OPERAND = 24,
    FIELD_COUNT = 60,
    FIELD_IMMEDIATE = 61,
    FIELD_ROW = 63,
    INSTRUCTION_FIELDS = 64
};

enum Section { FORWARD, BACKWARD, FLUSH, LOAD_SECTION, STORE_SECTION, CLEAR_SECTION, SECTIONS };

enum Command { DESCRIBE, LOAD, STORE, TRAIN, PREDICT, LOAD_PROGRAM };

enum Status {
    NOT_REACHED,
    DONE,
    BAD_LENGTH,
    BAD_TOKEN,
    BAD_INTENT,
    BAD_SLOT,
    BAD_LEARNING_RATE,
    BAD_OPTIMIZER,
    LOSS_NOT_FINITE,
    STATE_NOT_FINITE,
    GRADIENT_NOT_FINITE,
    UPDATE_NOT_FINITE,
    NO_PROGRAM,
    PROGRAM_STUCK
};

constexpr int MAGIC = 0x42545431;  // "1TTB"
constexpr int VERSION = 2;
// Added to the version of a program whose samples bring rows of a table in their records, and of one that sums gradients, whose
// FLUSH may follow any sample of a call: earlier machines refuse them.
enum Feature { WITH_ROWS = 1, WITH_SUMS = 2, FEATURES = 4 };

#endif
