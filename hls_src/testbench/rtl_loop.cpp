// The kernel with its loop in Verilog: all around the loop is the source's C++, the loop itself is what Verilator made of
// `bttlab rtl` (loop_host.h tells its memories, inputs and results). So the Verilog trains through the kernel's own port.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define run run_in_software
#include "processor/machine.h"
#undef run

#include "Vmachine_loop.h"
#include "Vmachine_loop___024root.h"
#include "loop_host.h"
#include "verilated.h"
#if defined(BTTLAB_TRACE)
#include "verilated_fst_c.h"
#endif

static Vmachine_loop *loop() {
    static Vmachine_loop *model = new Vmachine_loop;
    return model;
}

static long long now = 0;  // half cycles
#if defined(BTTLAB_TRACE)
// The file that $BTTLAB_TRACE names gets the cycles from $BTTLAB_TRACE_FROM on, as many as $BTTLAB_TRACE_CYCLES.
static void trace() {
    static VerilatedFstC *file = nullptr;
    static const long long from = std::atoll(std::getenv("BTTLAB_TRACE_FROM")), cycles = std::atoll(std::getenv("BTTLAB_TRACE_CYCLES"));
    if (!file) {
        file = new VerilatedFstC;
        loop()->trace(file, 2);
        file->open(std::getenv("BTTLAB_TRACE"));
    }
    if (now / 2 >= from && now / 2 < from + cycles) file->dump(static_cast<unsigned long long>(now));
    if (now / 2 == from + cycles) file->close();
}
#else
static void trace() {}
#endif

static void half_cycle(int clock) {
    loop()->clock = clock;
    loop()->eval();
    trace();
    now++;
}

// What the loop reads and does not write comes from the source's arrays, which have the same layout; what it writes and does
// not read goes back to them; all else, banks above all, stays in the Verilog.
#define TO_VERILOG(memory, array)                                                              \
    static_assert(sizeof(array) == sizeof(loop()->rootp->memory), "a memory of other words"); \
    std::memcpy(&loop()->rootp->memory, &(array), sizeof(array));
#define FROM_VERILOG(memory, array) std::memcpy(&(array), &loop()->rootp->memory, sizeof(array));
#define SET_INPUT(port, argument, offset) \
    std::memcpy(&loop()->port, reinterpret_cast<const char *>(&argument) + offset, sizeof(loop()->port));
#define GET_RESULT(port, argument, offset) \
    std::memcpy(reinterpret_cast<char *>(&argument) + offset, &loop()->port, sizeof(loop()->port));

static int run(Run &section, const Sample &sample) {
    prepare(sample);
    LOOP_READ(TO_VERILOG)
    LOOP_INPUTS(SET_INPUT)
    const long long before = now;
    loop()->start = 1;
    do {
        half_cycle(0);
        half_cycle(1);
        loop()->start = 0;
    } while (loop()->busy);
    LOOP_WRITTEN(FROM_VERILOG)
    LOOP_RESULTS(GET_RESULT)
    const int cycles = static_cast<int>(loop()->LOOP_RETURNED) + LATENCY;
    // From `start` to the end of the last iteration, a cycle apart on either side.
    const long long taken = (now - before) / 2, modelled = cycles - LATENCY + LOOP_STAGES + 3;
    if (taken > modelled) std::fprintf(stderr, "the loop was busy for %lld cycles, not %lld\n", taken, modelled);
    return taken > modelled ? -1 : cycles;
}

#include "processor/trainer.cpp"
