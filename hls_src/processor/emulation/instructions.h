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

static bool has_token_offsets(const Instruction &code) {
    bool has = false;
    for (const auto &operand : code.operand) has |= operand.valid && operand.offset_table >= 0;
    return has;
}

// An instruction for samples of a length, resolved: its bounds and addresses, and how it is executed.
struct Resolved {
    bool is_known, has_steps, is_planned;  // planned: known but for token offsets
    bool is_joined;                        // a drain that is executed with the ACCUMULATE before it
    Joined *joined;                        // of an ACCUMULATE with which drains are executed
    Nest nest;
    union {
        EnginePlan engine;
        RowPlan rows;
        ShufflePlan shuffle;
    };
    Resolved() {}
};

// Resolved instructions are kept from the first run on, but for addresses with token offsets, which are the sample's own. Those of
// lengths for which there is no room are resolved in each run.
constexpr int MOST_RESOLVED = 1 << 16;
static Resolved resolved_memory[MOST_RESOLVED];
static int first_resolved[SEQUENCE + 1], resolved_count;  // -1: the length has not run

static Resolved &resolved_at(int i, const Sample &sample) { return resolved_memory[first_resolved[sample.tokens] + i]; }

static void forget_resolved() {
    for (int &first : first_resolved) first = -1;
    for (int i = 0; i < resolved_count; i++) {
        resolved_memory[i].is_known = resolved_memory[i].is_planned = resolved_memory[i].is_joined = false;
        resolved_memory[i].joined = nullptr;
    }
    resolved_count = 0;
}

// Makes room for instructions of samples of a length; false if there is some, or none is left.
static bool make_room(int tokens) {
    const bool has_room = program.instructions > 0 && resolved_count + program.instructions <= MOST_RESOLVED;
    if (first_resolved[tokens] >= 0 || !has_room) return false;
    first_resolved[tokens] = resolved_count;
    resolved_count += program.instructions;
    return true;
}

static __attribute__((noinline)) void resolve_all(Resolved &resolved, const Instruction &code, const Sample &sample) {
    Nest &nest = resolved.nest;
    resolved.is_known = !has_token_offsets(code);
    resolved.is_planned = false;
    resolved.has_steps = resolve(nest, code, sample);
    if (!resolved.has_steps) return;
    place_operands(nest, sample);
    if (code.unit <= ENGINE_1) {
        plan_engine(nest, resolved.engine);
        resolved.is_planned = is_lasting(nest);
    }
    if (code.unit == VECTOR) resolved.rows = plan_rows(nest);
    if (code.unit == SHUFFLE) resolved.shuffle = plan_shuffle(nest, resolved.is_known);
}

// A sample reads more instructions than the first-level cache keeps until the next sample.
static inline void prefetch(const Resolved *resolved) {
    const char *line = reinterpret_cast<const char *>(resolved);
    for (unsigned byte = 0; byte < sizeof(Resolved); byte += 64) __builtin_prefetch(line + byte);
}

static bool joins_drains;  // in this run; in a part of a section the instructions are executed one by one

// An instruction with an address outside its memory (the program check rejects those) is skipped, and the sample is marked
// as overflowed.
static void execute_resolved(const Resolved &resolved, Run &run, const Sample &sample) {
    const Nest &nest = resolved.nest;
    if (!resolved.has_steps) return;
    if (!nest.is_inside) {
        run.overflow = true;
        return;
    }
    switch (nest.code->unit) {
        case ENGINE_0:
        case ENGINE_1: return run_engine(nest, resolved.engine, joins_drains ? resolved.joined : nullptr, run);
        case DRAIN_0:
        case DRAIN_1: return run_drain(nest, run);
        case VECTOR: return run_vector(nest, resolved.rows, sample, run);
        case SHUFFLE: return run_shuffle(nest, resolved.shuffle, run);
        case UPDATE: return run_update(nest, run);
    }
}

static void execute(int i, Run &run, const Sample &sample) {
    const Instruction &code = instruction_at(i);
    if (code.unit == UPDATE && run.pending == NOTHING) return;
    if (first_resolved[sample.tokens] < 0) {
        Resolved once;
        once.joined = nullptr;
        resolve_all(once, code, sample);
        return execute_resolved(once, run, sample);
    }
    Resolved &resolved = resolved_at(i, sample);
    prefetch(&resolved + 1);  // most often the next one
    if (resolved.is_joined && joins_drains) return;
    if (resolved.is_planned && !resolved.is_known) {
        place_again(resolved.nest, sample);
    } else if (!resolved.is_known) {
        resolve_all(resolved, code, sample);
    }
    execute_resolved(resolved, run, sample);
}

// Must be called when the program has changed.
static void forget_instructions() {
    for (int i = 0; i < PROGRAM_DEPTH; i++) is_decoded[i] = false;
    forget_resolved();
    forget_maps();
    forget_places();
    take_functions();
}

#endif
