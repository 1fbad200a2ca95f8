// The fast emulation alone, with its memories open to a test (processor_interpreter.py has the same memories in NumPy).
#include <cstring>

#include "processor/emulation/execute.h"

#define OPEN extern "C" __attribute__((visibility("default")))

// A memory by its name; how many words (floats for statistics) are returned at `size`.
OPEN void *memory(const char *name, int index, long *size) {
#define NAMED(wanted, array)             \
    if (!strcmp(name, wanted)) {         \
        *size = sizeof(array);           \
        return reinterpret_cast<void *>(&(array)); \
    }
#define BANK_BY_NUMBER(number, depth, block)  \
    if (!strcmp(name, "bank") && index == number) { \
        *size = sizeof(bank_##number);        \
        return bank_##number;                 \
    }
    BTTLAB_BANKS(BANK_BY_NUMBER)
    NAMED("held", held)
    NAMED("sums", sums)
    NAMED("statistic", statistic)
    NAMED("loss_sum", loss_sum)
    NAMED("loss_margin", loss_margin)
    NAMED("argument", argument)
    NAMED("program", program)
    NAMED("instructions", instruction_memory)
    NAMED("function_table", function_table)
    NAMED("shuffle_table", shuffle_table)
    *size = 0;
    return nullptr;
}

// To be called when the instructions have been written.
OPEN void loaded() { invalidate(); }

OPEN int execute(Run *call, const Sample *sample) { return run(*call, *sample); }
