// Functional model of the machine of docs/processor.md: executes instructions in program order. Results equal those of the
// cycle-accurate loop (machine.h) bit for bit; time is not modelled.
#ifndef BTTLAB_PROCESSOR_EMULATION_RUN_H
#define BTTLAB_PROCESSOR_EMULATION_RUN_H

#include "threads.h"

// Must be called when the program has changed.
static void invalidate() {
    forget_instructions();
    forget_joined();
    forget_plans();
}

// Executes instructions [run.first, run.first + run.count); returns 0 cycles.
static int run(Run &run, const Sample &sample) {
    if (make_room(sample.tokens)) {
        // Not those of FLUSH: all lengths have one plan of it, and there may be no room for some of them.
        for (int section : {FORWARD, BACKWARD}) join_drains(program.section[section], sample);
    }
    const bool is_flush = run.first == program.section[FLUSH].first && run.count > 0;
    const Range range = is_flush ? program.section[FLUSH] : of_sample();
    const bool is_whole = run.count == range.count || (!is_flush && run.count == program.section[FORWARD].count);
    joins_drains = run.first == range.first && is_whole;
    if (joins_drains && has_second_thread()) {
        run_planned(run, sample, is_flush ? flush_plan : plans[sample.tokens], range);
    } else {
        for (int i = run.first; i < run.first + run.count; i++) execute(i, run, sample);
    }
    return 0;
}

#endif
