// LOAD_PROGRAM: reads a program's image from HBM into the chip, and checks it against the machine's widths.
#ifndef BTTLAB_PROCESSOR_LOAD_PROGRAM_H
#define BTTLAB_PROCESSOR_LOAD_PROGRAM_H

#include "reach.h"
#include "state.h"

// All constants of config.h in its order, then the depths of the banks, then the banks of the ports, a bit each.
#define DEPTH_OF(number, depth, block) , depth
constexpr int WIDTHS[] = {CLOCK_MHZ, LANES, ROWS, ENGINES, ACCUMULATORS, OPERAND_BUFFER_DEPTH, UNITS, LEVELS, OPERANDS, LATENCY,
                          SUM_DISTANCE, FETCH, QUEUE, PROGRAM_DEPTH, SEQUENCE, STATISTICS, ROW_ACCUMULATORS, LAST_ROW,
                          SHUFFLE_VECTORS, SHUFFLE_ENTRIES, FUNCTION_ENTRIES, FUNCTIONS, REGISTERS,
                          CONSTANTS, SCALARS, OFFSET_TABLES, BANKS, IN_BANK, OUT_BANK, TRANSFER_VECTORS BTTLAB_BANKS(DEPTH_OF)
                          BTTLAB_READERS(REACH_OF_PORT) BTTLAB_WRITERS(REACH_OF_PORT)};
constexpr int WIDTH_COUNT = sizeof(WIDTHS) / sizeof(WIDTHS[0]);

// FNV-1a over the widths, a number at a time; without its sign.
constexpr int digest_of_widths() {
    unsigned digest = 2166136261u;
    for (int i = 0; i < WIDTH_COUNT; i++) digest = (digest ^ static_cast<unsigned>(WIDTHS[i])) * 16777619u;
    return static_cast<int>(digest & 0x7fffffffu);
}
constexpr int DIGEST = digest_of_widths();

// DESCRIBE: {MAGIC, VERSION, DIGEST, number of widths}, then the widths.
constexpr int DESCRIPTION_VECTORS = 1 + parts(WIDTH_COUNT, LANES);

static void describe(IntVector *results) {
    count_vectors(TO_HBM, DESCRIPTION_VECTORS);
    IntVector head = {};
    head[0] = MAGIC, head[1] = VERSION, head[2] = DIGEST, head[3] = WIDTH_COUNT;
    results[0] = head;
Describe_Vectors:
    for (int w = 0; w < parts(WIDTH_COUNT, LANES); w++) {
        IntVector vector = {};
    Describe_Lanes:
        for (int l = 0; l < LANES; l++) vector[l] = w * LANES + l < WIDTH_COUNT ? WIDTHS[w * LANES + l] : 0;
        results[1 + w] = vector;
    }
}

// An image, in vectors: {MAGIC, VERSION, DIGEST, instructions, sections}, {sequence length, intents, slots, offset limits,
// checksum, vectors of a token in a record}, registers, constants, functions, tables of functions and shuffles, instructions.
constexpr int REGISTERS_AT = 2, REGISTERS_PER_VECTOR = LANES / 4;
constexpr int CONSTANTS_AT = REGISTERS_AT + REGISTERS / REGISTERS_PER_VECTOR;
constexpr int FUNCTIONS_AT = CONSTANTS_AT + CONSTANTS / LANES, FUNCTIONS_PER_VECTOR = LANES / 8;
constexpr int TABLES_AT = FUNCTIONS_AT + FUNCTIONS / FUNCTIONS_PER_VECTOR, TABLE_VECTORS = FUNCTION_ENTRIES / LANES;
constexpr int SHUFFLES_AT = TABLES_AT + 3 * TABLE_VECTORS;
constexpr int INSTRUCTIONS_AT = SHUFFLES_AT + SHUFFLE_ENTRIES;

// Most steps of an instruction: indices of steps stay small numbers, and every program ends. Compiled ones have some 20,000.
constexpr int MOST_STEPS = 1 << 20;
// Offsets of tokens, and numbers that follow from a sample's length, are 16 bits in the loop.
constexpr int MOST_OFFSET = 1 << 16;

// Whether an instruction has at most MOST_STEPS steps for samples of any length.
static bool has_few_steps(const IntVector &low) {
    long long steps = 1;
    bool good = true;
    UNROLL
    for (int j = 0; j < LEVELS; j++) {
        const int code = field_of(low, FIELD_BOUND + j);
        const int bound = code >> 15 ? program.registers[code & (REGISTERS - 1)].high : code;
        steps *= bound > 1 ? bound : 1;
        good &= steps <= MOST_STEPS;
        if (!good) steps = 1;
    }
    return good;
}

// Vectors that a transfer instruction moves: the steps of its nest, whose bounds are constants; -1 if it is no transfer.
static int vectors_of_transfer(const IntVector &low) {
    int vectors = field_of(low, FIELD_OPERATION) == (VECTOR | COPY << 4) ? 1 : -1;
    UNROLL
    for (int j = 0; j < LEVELS; j++) {
        const int bound = field_of(low, FIELD_BOUND + j);
        const int product = vectors * bound;
        vectors = choose((vectors < 0) | (bound > TRANSFER_VECTORS) | (product > TRANSFER_VECTORS), -1, product);
    }
    return vectors;
}

// The sum over all transfers of a section, or -1.
static int transfer_vectors(const Range &section) {
    int vectors = 0;
    bool good = true;
Transfer_Vectors:
    for (int i = section.first; i < section.first + section.count; i++) {
        const int moved = transfer_size[i];
        good &= moved >= 0;
        vectors += moved;
    }
    return good ? vectors : -1;
}

// Whether every port that an instruction uses reaches the bank that its operand names.
static bool reaches_its_banks(const IntVector &low, const IntVector &high) {
    const int unit = field_of(low, FIELD_OPERATION) & 15;
    const bool clears = (field_of(low, FIELD_FLAGS) & CLEAR) != 0;
    bool good = true;
    UNROLL
    for (int p = 0; p < READERS + WRITERS; p++) {
        const int banks = p < READERS ? read_by(p) : written_by(p - READERS);
        const int first = FIELD_OPERAND + UNIT_PORTS[p].operand * (LEVELS + 2);
        const int where = first < 2 * LANES ? field_of(low, first) : field_of(high, first - 2 * LANES);
        const bool used = (UNIT_PORTS[p].unit == unit) & (where >> 15 != 0) & ((p != READERS + CLEARED_G) | clears);
        good &= !used | ((banks >> (where & 31) & 1) != 0);
    }
    return good;
}

static IntVector checked_vector(const IntVector *image, int i, int &checksum) {
#pragma HLS INLINE
    const IntVector vector = image[i];
    unsigned sum = static_cast<unsigned>(checksum);
    UNROLL
    for (int l = 0; l < LANES; l++) sum += static_cast<unsigned>(vector[l]);
    checksum = static_cast<int>(sum);
    return vector;
}

// Returns true if every register has a value of 16 bits for samples of any length.
static bool load_registers(const IntVector *image, int &checksum) {
    bool good = true;
Registers:
    for (int r = 0; r < REGISTERS; r += REGISTERS_PER_VECTOR) {
        const IntVector vector = checked_vector(image, REGISTERS_AT + r / REGISTERS_PER_VECTOR, checksum);
        for (int i = 0; i < REGISTERS_PER_VECTOR; i++) {
            const Register rule = {vector[4 * i], vector[4 * i + 1] & 31, vector[4 * i + 2], vector[4 * i + 3]};
            program.registers[r + i] = rule;
            good &= rule.offset > -MOST_OFFSET && rule.offset < MOST_OFFSET;
            good &= rule.low >= 0 && rule.low <= rule.high && rule.high < MOST_OFFSET;
        }
    }
Constants:
    for (int w = 0; w < CONSTANTS / LANES; w++) {
        const IntVector vector = checked_vector(image, CONSTANTS_AT + w, checksum);
        for (int l = 0; l < LANES; l++) program.constant[w * LANES + l] = float_of(vector[l]);
    }
    return good;
}

static void load_tables(const IntVector *image, int &checksum) {
Functions:
    for (int f = 0; f < FUNCTIONS; f += FUNCTIONS_PER_VECTOR) {
        const IntVector vector = checked_vector(image, FUNCTIONS_AT + f / FUNCTIONS_PER_VECTOR, checksum);
        for (int i = 0; i < FUNCTIONS_PER_VECTOR; i++) {
            const int at = 8 * i;
            program.function[f + i] = {vector[at], vector[at + 1], vector[at + 2] & 15, float_of(vector[at + 3]),
                                       float_of(vector[at + 4]), float_of(vector[at + 5]), vector[at + 6]};
        }
    }
Tables:
    for (int w = 0; w < 3 * TABLE_VECTORS; w++) {
        const IntVector vector = checked_vector(image, TABLES_AT + w, checksum);
        const int coefficient = w / TABLE_VECTORS, first = w % TABLE_VECTORS * LANES;
    Table_Entries:
        for (int i = 0; i < LANES; i++) {
#pragma HLS PIPELINE II=1
            write_function_entry(coefficient, first + i, float_of(vector[i]));
        }
    }
Shuffles:
    for (int i = 0; i < SHUFFLE_ENTRIES; i++) {
#pragma HLS PIPELINE II=1
        write_shuffle_entry(i, checked_vector(image, SHUFFLES_AT + i, checksum));
    }
}

// Returns true if every instruction names a unit, has operands in banks that the unit reaches, and not too many steps.
static bool load_instructions(const IntVector *image, int instructions, int &checksum) {
    bool good = true;
Instructions:
    for (int i = 0; i < instructions; i++) {
        const IntVector low = checked_vector(image, INSTRUCTIONS_AT + 2 * i, checksum);
        const IntVector high = checked_vector(image, INSTRUCTIONS_AT + 2 * i + 1, checksum);
        instruction_memory[0][i] = low, instruction_memory[1][i] = high;
        transfer_size[i] = static_cast<short>(vectors_of_transfer(low));
        good &= ((field_of(low, FIELD_OPERATION) & 15) < UNITS) & reaches_its_banks(low, high) & has_few_steps(low);
    }
    return good;
}

// Loads a program of `vectors` vectors. If it was not compiled for this machine, none is loaded. The integers of an image sum to 0.
static int load_program(const IntVector *image, int vectors) {
    int checksum = 0;
    program.instructions = 0;
    if (vectors < INSTRUCTIONS_AT) return NO_PROGRAM;
    count_vectors(FROM_HBM, 2);
    const IntVector head = checked_vector(image, 0, checksum), model = checked_vector(image, 1, checksum);
    const int instructions = head[3];
    const int features = head[1] - VERSION;
    if (head[0] != MAGIC || features < 0 || features >= FEATURES || head[2] != DIGEST) return NO_PROGRAM;
    if (instructions < 0 || instructions > PROGRAM_DEPTH) return NO_PROGRAM;
    if (vectors != INSTRUCTIONS_AT + 2 * instructions) return NO_PROGRAM;
    int first = 0;  // each section begins where the one before ends
    bool good = true;
Sections:
    for (int s = 0; s < SECTIONS; s++) {
        const int count = head[5 + 2 * s];
        good &= head[4 + 2 * s] == first && count >= 0 && count <= instructions - first;
        program.section[s] = {first, count};
        if (good) first += count;
    }
    if (!good) return NO_PROGRAM;
    count_vectors(FROM_HBM, vectors - 2);
    program.sequence_length = model[0];
    program.intents = model[1];
    program.slots = model[2];
    program.token_vectors = (features & WITH_ROWS) != 0 ? model[8] : 0;
Offset_Limits:
    for (int s = 0; s < OFFSET_TABLES; s++) {
        program.offset_limit[s] = model[3 + s];
        good &= model[3 + s] >= 0 && model[3 + s] <= MOST_OFFSET;
    }
    good &= load_registers(image, checksum);
    load_tables(image, checksum);
    good &= load_instructions(image, instructions, checksum);
    const int loaded = transfer_vectors(program.section[LOAD_SECTION]);
    const int stored = transfer_vectors(program.section[STORE_SECTION]);
    good &= loaded == stored && loaded >= 0;
    good &= program.sequence_length >= 1 && program.sequence_length <= SEQUENCE;
    good &= program.token_vectors >= 0 && program.token_vectors <= TRANSFER_VECTORS;
    good &= program.sequence_length * program.token_vectors <= TRANSFER_VECTORS;
    if (!good || checksum != 0) return NO_PROGRAM;
    program.instructions = instructions;
    return DONE;
}

#endif
