// The ports that read and write banks, and the banks that each reaches: BTTLAB_READERS and BTTLAB_WRITERS of config.h as numbers.
#ifndef BTTLAB_PROCESSOR_REACH_H
#define BTTLAB_PROCESSOR_REACH_H

#include "isa.h"
#include "config.h"

// A bit for each bank of a list.
constexpr int banks_of() { return 0; }
template <typename... Others>
constexpr int banks_of(int bank, Others... others) {
    return 1 << bank | banks_of(others...);
}

struct UnitPort {
    int unit, operand, banks;
};
#define NAME_OF_PORT(name, ...) name,
#define DESCRIBED_PORT(name, unit, operand, ...) {unit, operand, banks_of(__VA_ARGS__)},
#define REACH_OF_PORT(name, unit, operand, ...) , banks_of(__VA_ARGS__)
enum Reader { BTTLAB_READERS(NAME_OF_PORT) READERS };
enum Writer { BTTLAB_WRITERS(NAME_OF_PORT) WRITERS };
constexpr UnitPort UNIT_PORTS[] = {BTTLAB_READERS(DESCRIBED_PORT) BTTLAB_WRITERS(DESCRIBED_PORT)};

// The banks that a port reaches, a bit each. Tests of single units let every port reach all of them.
#if defined(BTTLAB_EVERY_BANK)
constexpr int read_by(int) { return (1 << BANKS) - 1; }
constexpr int written_by(int) { return (1 << BANKS) - 1; }
#else
constexpr int read_by(int reader) { return UNIT_PORTS[reader].banks; }
constexpr int written_by(int writer) { return UNIT_PORTS[READERS + writer].banks; }
#endif
static_assert(BANKS < 31, "a mask of banks is an integer");

#endif
