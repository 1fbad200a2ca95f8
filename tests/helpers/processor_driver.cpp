// The machine and its kernel, with its memories open to tests (processor_native.py): the functional model, or the
// cycle-accurate loop.
#include <cstring>

#define BTTLAB_EVERY_BANK  // operands of these tests lie anywhere
#include "processor/trainer.cpp"

#define OPEN extern "C" __attribute__((visibility("default")))

// A memory by its name; how many vectors (floats for statistics) are returned at `size`.
OPEN void *memory(const char *name, int index, long *size) {
#define NAMED(wanted, array)             \
    if (!strcmp(name, wanted)) {         \
        *size = sizeof(array);           \
        return reinterpret_cast<void *>(&(array)); \
    }
#define BANK_BY_NUMBER(number, depth, block)  \
    if (!strcmp(name, "bank") && index == number) { \
        *size = sizeof(Vector) * depth;         \
        return bank_##number;                 \
    }
    BTTLAB_BANKS(BANK_BY_NUMBER)
    NAMED("operand_buffer", operand_buffer)
    NAMED("sums", sums)
    NAMED("statistic", statistic)
    NAMED("loss_sum", loss_sum)
    NAMED("loss_margin", loss_margin)
    NAMED("argument", argument)
    NAMED("program", program)
    NAMED("instructions", instruction_memory)
    *size = 0;
    return nullptr;
}

// Takes the tables: all c0, all c1, all c2 of the functions, and the entries of shuffles.
OPEN void take_tables(const float *coefficients, const IntVector *entries) {
    for (int i = 0; i < 3 * FUNCTION_ENTRIES; i++) {
        write_function_entry(i / FUNCTION_ENTRIES, i % FUNCTION_ENTRIES, coefficients[i]);
    }
    for (int entry = 0; entry < SHUFFLE_ENTRIES; entry++) write_shuffle_entry(entry, entries[entry]);
}

// To be called when instructions or tables have changed.
OPEN void loaded() {
#if defined(BTTLAB_FAST)
    invalidate();
#endif
}

OPEN int execute(Run *call, const Sample *sample) { return run(*call, *sample); }

#if defined(BTTLAB_FAST)
// Plans samples of a number of tokens, or FLUSH if there are none. For each instruction, counted from the first one: its thread, its
// place in the thread's order, and how many instructions of the other thread it waits for. The costs are `ticks`; null: its steps.
OPEN void plan(int tokens, const unsigned *ticks, short (*of)[3]) {
    const Range range = tokens ? of_sample() : program.section[FLUSH];
    Sample sample = {};
    sample.tokens = tokens;
    Plan &plan = tokens ? plans[tokens] : flush_plan;
    plan.runs = ticks ? MEASURED_RUNS : 0;
    for (int i = 0; ticks && i < range.count; i++) plan.cost[range.first + i] = ticks[i];
    make_plan(plan, range, sample);
    for (int i = 0; i < range.count; i++) {
        const int thread = plan.thread[range.first + i], place = plan.place[range.first + i];
        of[i][0] = static_cast<short>(thread), of[i][1] = static_cast<short>(place), of[i][2] = plan.awaited[thread][place];
    }
}

// How the instructions of a sample are executed, by length and counted from the first one: 0 if it is resolved in each run, 1 if
// it is kept resolved; for an engine's, 0 if it has no step, 1 if it goes step by step, 2 if in tiles. Then with how many drains it
// is executed, -1: a drain that is executed with another instruction; and whether it stores sums that drains move.
OPEN void resolved(int tokens, int (*of)[4]) {
    const int first = program.section[FORWARD].first, kept = first_resolved[tokens];
    const int count = program.section[FORWARD].count + program.section[BACKWARD].count;
    for (int i = 0; i < count; i++) {
        const Resolved *found = kept < 0 ? nullptr : &resolved_memory[kept + first + i];
        of[i][0] = found && found->is_known;
        of[i][1] = found && found->has_steps && found->nest.code->unit <= ENGINE_1 ? found->engine.how : 0;
        of[i][2] = !found ? 0 : found->is_joined ? -1 : found->joined ? found->joined->count : 0;
        of[i][3] = found && found->joined && found->joined->keeps_sums;
    }
}
#endif
