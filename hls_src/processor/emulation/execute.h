// Functional model of the machine of docs/processor.md: executes instructions one after the other, in program order.
// Results equal those of the cycle-accurate loop (machine.h) bit for bit; time is not modelled.
#ifndef BTTLAB_PROCESSOR_EMULATION_EXECUTE_H
#define BTTLAB_PROCESSOR_EMULATION_EXECUTE_H

#include "engine.h"
#include "shuffle.h"
#include "update.h"
#include "vector_unit.h"

// Must be called when the program has changed.
static void invalidate() {
    for (int i = 0; i < PROGRAM_DEPTH; i++) is_decoded[i] = false;
    forget_maps();
    take_functions();
}

// Executes instructions [run.first, run.first + run.count); returns 0 cycles. An instruction with an address outside its memory
// (the program check rejects those) is skipped, and the sample is marked as overflowed.
static int run(Run &run, const Sample &sample) {
    for (int i = run.first; i < run.first + run.count; i++) {
        if (!is_decoded[i]) {
            decoded[i] = decode(instruction_memory[0][i], instruction_memory[1][i]);
            is_decoded[i] = true;
        }
        Nest nest;
        if (!resolve(nest, decoded[i], sample)) continue;
        switch (decoded[i].unit) {
            case ENGINE_0:
            case ENGINE_1: run_engine(nest, sample, run); break;
            case DRAIN_0:
            case DRAIN_1: run_drain(nest, sample, run); break;
            case VECTOR: run_vector(nest, sample, run); break;
            case SHUFFLE: run_shuffle(nest, sample, run); break;
            case UPDATE: run_update(nest, sample, run); break;
        }
    }
    return 0;
}

#endif
