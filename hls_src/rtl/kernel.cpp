// The kernel without its loop: `make rtl` makes the state machine of trainer.v of it. The loop is a module of its own.
#define run run_in_software
#include "../processor/machine.h"
#undef run

extern "C" int machine_loop(Run &section, const Sample &sample);

static int run(Run &section, const Sample &sample) {
    prepare(sample);
    return machine_loop(section, sample) + LATENCY;
}

#include "../processor/trainer.cpp"
