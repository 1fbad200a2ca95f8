// Counts the cycles of what is executed, per stage and unit, in the emulation; nothing of it is synthesised. Each loop
// nest says once, where it ends, how often it started an iteration and how deep its pipeline is (timing.h).
#ifndef BTTLAB_CYCLES_H
#define BTTLAB_CYCLES_H

#include "timing.h"

enum Stage { FP, BP, PU, IO, STAGES };

// What the time is spent on: the kinds of linear layer, then everything else.
enum Unit {
    QUERY,
    KEY,
    VALUE,
    OUTPUT,
    FIRST,
    SECOND,
    POOLER,
    EMBEDDING,
    ATTENTION,
    NORM,
    GELU,
    HEAD,
    LOSS,
    UPDATE,
    TRANSFER,
    UNITS
};

constexpr int PROFILE_COUNTERS = 2 * STAGES * UNITS;  // 32 bits each, the lower half first

#if defined(__SYNTHESIS__)

static inline int take_counter(int) { return 0; }
static inline void spend(int) {}
static inline void multiply(int) {}
static inline void loop(int, int, int) {}
struct Meter {
    Meter(int, int) {}
};
#define FORK
#define BESIDE
#define JOIN

#else

static long long cycles[STAGES][UNITS];
static long long *spent_on = &cycles[IO][TRANSFER];

static inline void spend(int count) { *spent_on += count; }

// Words that the engines have multiplied and added, gaps at the end of a row included.
static long long multiplied;
static inline void multiply(int words) { multiplied += words; }

// A pipelined loop (nest, if flattened).
static inline void loop(int trips, int interval, int depth) {
    if (trips > 0) *spent_on += static_cast<long long>(trips) * interval + depth;
}

// Half a counter; it starts anew once its upper half is taken.
static inline int take_counter(int i) {
    if (i >= PROFILE_COUNTERS) return 0;
    long long &counter = cycles[i / 2 / UNITS][i / 2 % UNITS];
    const long long value = counter;
    if (i % 2) counter = 0;
    return static_cast<int>(i % 2 ? value >> 32 : value);
}

// While it lives, what is spent goes to one stage and unit.
class Meter {
    long long *outside;

  public:
    Meter(int stage, int unit) : outside(spent_on) { spent_on = &cycles[stage][unit]; }
    ~Meter() { spent_on = outside; }
};

// Work side by side takes as long as the longest of its branches: FORK; one; BESIDE; another; JOIN. Each stands in a
// region of DATAFLOW, or in consecutive statements without a memory in common, so that the hardware starts them together.
class Branches {
    const long long start;
    long long longest = 0;

  public:
    Branches() : start(*spent_on) {}
    void next() {
        longest = longest > *spent_on - start ? longest : *spent_on - start;
        *spent_on = start;
    }
    void join() {
        next();
        *spent_on += longest;
    }
};
#define FORK Branches branches
#define BESIDE branches.next()
#define JOIN branches.join()

#endif

#endif
