// A second host thread for the instructions of engine 1, its drain and the shuffle unit. Each thread executes its
// instructions in program order. Before an instruction it waits for the last instruction of the other thread that accesses
// the same vectors, one of both writing. So memories have the same contents as with one thread.
//
// The first thread runs the kernel. If the second one does not get a processor in time, the first one takes over what is
// left of the run.
#ifndef BTTLAB_PROCESSOR_EMULATION_THREADS_H
#define BTTLAB_PROCESSOR_EMULATION_THREADS_H

#include <sched.h>

#include "instructions.h"

enum Thread { FIRST, SECOND, THREADS };

static inline Thread thread_of(int unit) { return unit == ENGINE_1 || unit == DRAIN_1 || unit == SHUFFLE ? SECOND : FIRST; }

// ---- what an instruction waits for -----------------------------------------------------------------------------------

struct Access {
    const Vector *memory;
    int low, high;  // addresses, both included
    bool writes;
};

struct Accesses {
    int count;
    Access access[OPERANDS];
};

static Accesses accesses_of(int i, const Sample &sample) {
    Accesses accesses = {};
    const Instruction &code = instruction_at(i);
    Nest nest;
    if (!resolve(nest, code, sample)) return accesses;
    place_operands(nest, sample);
    for (int o = 0; o < OPERANDS; o++) {
        const Reach &reach = nest.operand[o];
        if (!code.operand[o].valid || reach.memory == nullptr || reach.memory == &scratch_vector) continue;
        const bool writes = code.unit == UPDATE || o > C_IN + (code.unit != VECTOR);
        const bool is_any = reach.token_offset || !nest.is_inside;  // other samples of this length have other addresses
        accesses.access[accesses.count++] = {reach.memory, is_any ? 0 : reach.low, is_any ? 1 << 30 : reach.high, writes};
    }
    return accesses;
}

static bool conflict(const Accesses &a, const Accesses &b) {
    for (int i = 0; i < a.count; i++) {
        for (int j = 0; j < b.count; j++) {
            const Access &x = a.access[i], &y = b.access[j];
            if (x.memory == y.memory && (x.writes || y.writes) && x.low <= y.high && y.low <= x.high) return true;
        }
    }
    return false;
}

// By the tokens of a sample: the last instruction of the other thread that each instruction waits for.
static short wait_for[SEQUENCE + 1][PROGRAM_DEPTH];
static bool waits_known[SEQUENCE + 1];

static void find_waits(const Sample &sample) {
    static Accesses accesses[PROGRAM_DEPTH];
    const int first = program.section[FORWARD].first;
    const int end = first + program.section[FORWARD].count + program.section[BACKWARD].count;
    int latest[THREADS] = {first - 1, first - 1};
    for (int i = first; i < end; i++) {
        accesses[i] = accesses_of(i, sample);
        const Thread thread = thread_of(decoded[i].unit);
        int j = i - 1;
        while (j > latest[thread] && (thread_of(decoded[j].unit) == thread || !conflict(accesses[i], accesses[j]))) j--;
        if (j > latest[thread]) latest[thread] = j;
        wait_for[sample.tokens][i] = latest[thread];
    }
    waits_known[sample.tokens] = true;
}

static void forget_waits() {
    for (bool &are_known : waits_known) are_known = false;
}

// ---- the two threads -------------------------------------------------------------------------------------------------

#ifndef BTTLAB_SPINS
#define BTTLAB_SPINS 4000  // tens of microseconds; a sanitizer's build waits longer
#endif
constexpr int SPINS = BTTLAB_SPINS;

struct alignas(64) Shared {  // a cache line of its own
    int value;

    int get() const { return __atomic_load_n(&value, __ATOMIC_ACQUIRE); }
    void set(int to) { __atomic_store_n(&value, to, __ATOMIC_RELEASE); }
    int exchange(int to) { return __atomic_exchange_n(&value, to, __ATOMIC_ACQ_REL); }
    bool replace(int from, int to) {
        return __atomic_compare_exchange_n(&value, &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    }
};

static Shared executed[THREADS];  // all instructions of a thread before this one are executed
static Shared is_open, is_serving;
static Shared runs, run_end, run_tokens, second_overflow;
// The number of the run, and the next instruction that the second thread claims in it; TAKEN_OVER: none. A thread that is
// late, in a run that has ended, cannot claim any.
static Shared claimed;
constexpr int TAKEN_OVER = 2 * PROGRAM_DEPTH - 1;
static const Sample *shared_sample;
// Clock ticks by which the first thread's waits exceeded half of the time in the last runs: alone it would have been faster.
// At MOST_LOST, some milliseconds, the second thread leaves: there is no processor for it.
static long long lost, waited;
constexpr long long MOST_LOST = 20000000;

static inline int claim_of(int run, int instruction) {
    return static_cast<int>(static_cast<unsigned>(run) * (TAKEN_OVER + 1) + static_cast<unsigned>(instruction));
}

static bool has_second_thread() { return is_serving.get() && is_open.get(); }

static int next_of_second(int i, int end) {
    while (i < end && thread_of(instruction_at(i).unit) == FIRST) i++;
    return i;
}

// Waits until a thread has executed an instruction; false if it executes none for long.
static bool await(Thread thread, int instruction) {
    int seen = executed[thread].get();
    for (int spins = 0; seen <= instruction; spins++) {
        if (spins >= SPINS) return false;
        _mm_pause();
        const int now = executed[thread].get();
        if (now != seen) spins = 0;
        seen = now;
    }
    return true;
}

// The instructions of the second thread in a run.
static void execute_second(int run_number) {
    const int end = run_end.get(), tokens = run_tokens.get();
    Run run = {};
    for (int i = next_of_second(program.section[FORWARD].first, end), next; i < end; i = next) {
        while (!await(FIRST, wait_for[tokens][i])) {
            if (claimed.get() != claim_of(run_number, i)) return;
            sched_yield();
        }
        next = next_of_second(i + 1, end);
        if (!claimed.replace(claim_of(run_number, i), claim_of(run_number, next))) return;
        execute(i, run, *shared_sample);
        if (run.overflow) second_overflow.set(true);
        executed[SECOND].set(next);
    }
}

// The first thread waits for an instruction of the second one. If that takes too long, it takes over what the second one
// has not claimed. Returns the first instruction that it took over, or `end`.
static int wait_or_take_over(int instruction, int run_number, int end) {
    if (executed[SECOND].get() > instruction) return end;
    const long long begin = __rdtsc();
    int rest = end;
    if (!await(SECOND, instruction)) {
        rest = claimed.exchange(claim_of(run_number, TAKEN_OVER)) & TAKEN_OVER;
        while (!await(SECOND, rest - 1)) sched_yield();
    }
    waited += __rdtsc() - begin;
    return rest;
}

static void execute_range(Thread thread, int first, int end, Run &run, const Sample &sample) {
    for (int i = first; i < end; i++) {
        if (thread_of(decoded[i].unit) == thread) execute(i, run, sample);
    }
}

static void run_on_two_threads(Run &run, const Sample &sample) {
    const int end = run.first + run.count, run_number = runs.get() + 1;
    if (!waits_known[sample.tokens]) find_waits(sample);
    run_end.set(end);
    run_tokens.set(sample.tokens);
    second_overflow.set(false);
    shared_sample = &sample;
    executed[FIRST].set(run.first);
    executed[SECOND].set(next_of_second(run.first, end));
    claimed.set(claim_of(run_number, executed[SECOND].get()));
    runs.set(run_number);
    const long long begin = __rdtsc();
    waited = 0;
    int rest = end;  // from here on, the first thread executes all instructions
    for (int i = run.first; i < end; i++) {
        if (thread_of(decoded[i].unit) == SECOND && i < rest) continue;
        if (rest == end) {
            rest = wait_or_take_over(wait_for[sample.tokens][i], run_number, end);
            execute_range(SECOND, rest, i, run, sample);
        }
        execute(i, run, sample);
        executed[FIRST].set(i + 1);
    }
    if (rest == end) execute_range(SECOND, wait_or_take_over(end - 1, run_number, end), end, run, sample);
    lost += 2 * waited - (static_cast<long long>(__rdtsc()) - begin);
    if (lost < 0) lost = 0;
    if (lost > MOST_LOST) is_open.set(false);
    run.overflow |= second_overflow.get() != 0;
}

// The second thread: takes part in runs until it is closed.
static void serve() {
    int seen = runs.get();
    if (is_serving.exchange(true)) return;  // the second thread of the call before has not left yet: it goes on
    for (int spins = 0; is_open.get(); spins++) {
        const int run_number = runs.get();
        if (run_number != seen) {
            execute_second(run_number);
            seen = run_number;
            spins = 0;
        }
        spins < SPINS ? _mm_pause() : static_cast<void>(sched_yield());
    }
    is_serving.set(false);
}

static void open_second() {
    lost = 0;
    is_open.set(true);
}

// Returns false if there was no processor for the second thread.
static bool close_second() { return is_open.exchange(false); }

#endif
