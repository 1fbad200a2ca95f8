// Executes one instruction of the functional model.
#ifndef BTTLAB_PROCESSOR_EMULATION_INSTRUCTIONS_H
#define BTTLAB_PROCESSOR_EMULATION_INSTRUCTIONS_H

#include "engine.h"
#include "shuffle.h"
#include "update.h"
#include "vector_unit.h"

static const Instruction &instruction_at(int i) {
    if (!is_decoded[i]) {
        decoded[i] = decode(instruction_memory[0][i], instruction_memory[1][i]);
        is_decoded[i] = true;
    }
    return decoded[i];
}

static void place_operands(Nest &nest, const Sample &sample) {
    switch (nest.code->unit) {
        case ENGINE_0:
        case ENGINE_1: return place_engine(nest, sample);
        case DRAIN_0:
        case DRAIN_1: return place_drain(nest, sample);
        case VECTOR: return place_vector(nest, sample);
        case SHUFFLE: return place_shuffle(nest, sample);
        case UPDATE: return place_update(nest, sample);
    }
}

// An instruction with an address outside its memory (the program check rejects those) is skipped, and the sample is marked
// as overflowed.
static void execute(int i, Run &run, const Sample &sample) {
    const Instruction &code = instruction_at(i);
    Nest nest;
    if ((code.unit == UPDATE && run.pending == NOTHING) || !resolve(nest, code, sample)) return;
    place_operands(nest, sample);
    if (!nest.is_inside) {
        run.overflow = true;
        return;
    }
    switch (code.unit) {
        case ENGINE_0:
        case ENGINE_1: return run_engine(nest, run);
        case DRAIN_0:
        case DRAIN_1: return run_drain(nest, run);
        case VECTOR: return run_vector(nest, sample, run);
        case SHUFFLE: return run_shuffle(nest, run);
        case UPDATE: return run_update(nest, run);
    }
}

// Must be called when the program has changed.
static void forget_instructions() {
    for (int i = 0; i < PROGRAM_DEPTH; i++) is_decoded[i] = false;
    forget_maps();
    take_functions();
}

#endif
