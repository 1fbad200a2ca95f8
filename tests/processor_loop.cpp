// The kernel of the training processor with its memories open to a test (processor_loop.py).
#include <cstring>

#define BTTLAB_EVERY_BANK  // operands of these tests lie anywhere

#include "processor/trainer.cpp"

#define OPEN extern "C" __attribute__((visibility("default")))

#define NAMED(wanted, array)                       \
    if (!strcmp(name, wanted)) {                   \
        *bytes = sizeof(array);                    \
        return reinterpret_cast<void *>(&(array)); \
    }
#define BANK_BY_NUMBER(number, depth, block)        \
    if (!strcmp(name, "bank") && index == number) { \
        *bytes = sizeof(bank_##number);             \
        return bank_##number;                       \
    }

// A memory by its name.
OPEN void *memory(const char *name, int index, long *bytes) {
    BTTLAB_BANKS(BANK_BY_NUMBER)
    NAMED("operand_buffer", operand_buffer)
    NAMED("sums", sums)
    NAMED("statistic", statistic)
    NAMED("loss_sum", loss_sum)
    NAMED("loss_margin", loss_margin)
    NAMED("argument", argument)
    *bytes = 0;
    return nullptr;
}

OPEN int execute(Run *section, const Sample *sample) { return run(*section, *sample); }
