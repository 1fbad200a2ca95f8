// A second host thread. A plan, made once for each length of a sample and once for FLUSH, says which thread executes each
// instruction, and in what order. An instruction waits for those before it in the program that access the same vectors, one
// of both writing. So memories have the same contents as with one thread.
//
// The first thread runs the kernel. If the second one does not get a processor in time, the first one takes over what is
// left of the run. After a call the second one lingers for a while, since a thread that sleeps comes late to the next call.
#ifndef BTTLAB_PROCESSOR_EMULATION_THREADS_H
#define BTTLAB_PROCESSOR_EMULATION_THREADS_H

#include <sched.h>

#include "joined.h"

enum Thread { FIRST, SECOND, THREADS };

// ---- whose cache has what --------------------------------------------------------------------------------------------

constexpr int GRAIN = 8;         // vectors of a block
constexpr int SUMS_LINES = 256;  // lines of a buffer of sums, which is one block

static constexpr int depth_of(int memory) { return memory < BUFFERS ? BANK_DEPTH[memory] : OPERAND_BUFFER_DEPTH; }

// The first block of a memory; of OF_VECTOR_UNIT: the number of all blocks.
static constexpr int first_block(int memory) {
    int first = 0;
    for (int m = 0; m < memory; m++) first += m < SUMS ? depth_of(m) / GRAIN + 1 : 1;
    return first;
}

// Which threads' caches have each block of vectors, as far as plans know: a bit for each thread. A plan begins with what the
// one before left, since parameters and gradients stay from sample to sample.
struct Caches {
    unsigned char holders[first_block(OF_VECTOR_UNIT)];
    int first[OF_VECTOR_UNIT];

    void forget() {
        for (unsigned char &each : holders) each = 0;
        for (int m = 0; m < OF_VECTOR_UNIT; m++) first[m] = first_block(m);
    }

    struct Blocks {
        unsigned char *begin, *end;
        int lines;  // of each
    };

    // The blocks of an access; none if its addresses are not known.
    Blocks blocks_of(const Access &access) {
        const int m = access.memory;
        if (m >= OF_VECTOR_UNIT || (m < SUMS && access.high >= depth_of(m))) return {nullptr, nullptr, 0};
        unsigned char *own = holders + first[m];
        if (m >= SUMS) return {own, own + 1, SUMS_LINES};
        return {own + access.low / GRAIN, own + access.high / GRAIN + 1, m < BUFFERS ? GRAIN : GRAIN * ROWS};
    }

    // Lines that each thread would have to get from the other one's cache, or to take from it before they are written.
    void lines_to_move(const Accesses &accesses, long long (&lines)[THREADS]) {
        lines[FIRST] = lines[SECOND] = 0;
        for (int a = 0; a < accesses.count; a++) {
            const Blocks blocks = blocks_of(accesses.access[a]);
            int moved[THREADS] = {0, 0};
            for (const unsigned char *held = blocks.begin; held < blocks.end; held++) {
                for (int thread = FIRST; thread < THREADS; thread++) {
                    moved[thread] += *held && (accesses.access[a].writes ? *held != 1 << thread : !(*held >> thread & 1));
                }
            }
            for (int thread = FIRST; thread < THREADS; thread++) lines[thread] += moved[thread] * blocks.lines;
        }
    }

    void move(const Accesses &accesses, int thread) {
        for (int a = 0; a < accesses.count; a++) {
            const Blocks blocks = blocks_of(accesses.access[a]);
            for (unsigned char *held = blocks.begin; held < blocks.end; held++) {
                *held = static_cast<unsigned char>((accesses.access[a].writes ? 0 : *held) | 1 << thread);
            }
        }
    }
};
static Caches caches;

// The instructions that each one waits for, without those that another one of them waits for.
struct Before {
    static constexpr int MOST = 32 * PROGRAM_DEPTH, WORDS = PROGRAM_DEPTH / 64;
    int first[PROGRAM_DEPTH + 1], first_after[PROGRAM_DEPTH + 1];  // where the lists of an instruction begin
    short list[MOST], after[MOST];                                 // what it waits for; what waits for it
    unsigned long all[PROGRAM_DEPTH][WORDS];                       // a bit for each that comes before it, by whatever way
    Accesses accesses[PROGRAM_DEPTH];

    bool has(int i, int j) const { return all[i][j / 64] >> j % 64 & 1; }

    // Of the instructions [begin, end) of samples of a length. False if there are too many.
    bool find(int begin, int end, const Sample &sample) {
        int found = 0;
        for (int i = begin; i < end; i++) {
            accesses[i] = joined_accesses_of(i, sample);
            first[i] = found;
            for (unsigned long &word : all[i]) word = 0;
            for (int j = i - 1; j >= begin; j--) {
                if (has(i, j) || !conflict(accesses[i], accesses[j])) continue;
                if (found == MOST) return false;
                list[found++] = static_cast<short>(j);
                for (int w = 0; w < WORDS; w++) all[i][w] |= all[j][w];
                all[i][j / 64] |= 1UL << j % 64;
            }
        }
        first[end] = found;
        reverse(begin, end);
        return true;
    }

  private:
    void reverse(int begin, int end) {
        for (int i = begin; i <= end; i++) first_after[i] = 0;
        for (int k = 0; k < first[end]; k++) first_after[list[k] + 1]++;
        for (int i = begin; i < end; i++) first_after[i + 1] += first_after[i];
        int filled[PROGRAM_DEPTH];
        for (int i = begin; i < end; i++) {
            filled[i] = first_after[i];
            for (int k = first[i]; k < first[i + 1]; k++) after[filled[list[k]]++] = static_cast<short>(i);
        }
    }
};
static_assert(PROGRAM_DEPTH % 64 == 0, "a word has 64 bits");

// ---- the plan --------------------------------------------------------------------------------------------------------

// Clock ticks until the other thread knows that an instruction is executed, and has its results.
constexpr long long NEWS = 1200;
constexpr long long LINE_TICKS = 2;  // to get a line from the other thread's cache
// A thread prefers an instruction whose path to the end is shorter by so many ticks, for each line by which it has to get less
// than the other thread would, and for each tick that it has to wait less.
constexpr long long LINE_WORTH = 40, WAIT_WORTH = 32;
constexpr int MEASURED_RUNS = 3;  // whose least ticks are the cost of an instruction

struct Plan {
    bool is_made;
    int runs;  // that were measured
    unsigned cost[PROGRAM_DEPTH];
    long long ticks_alone[2];  // of a forward pass on one thread; of all instructions
    int count[THREADS];
    short order[THREADS][PROGRAM_DEPTH];    // the instructions of a thread
    short awaited[THREADS][PROGRAM_DEPTH];  // how many of the other thread each one waits for
    short place[PROGRAM_DEPTH];             // of an instruction in its thread's order
    unsigned char thread[PROGRAM_DEPTH];
};
static Plan plans[SEQUENCE + 1];  // by the tokens of a sample
static Plan flush_plan;

static void forget_plans() {
    const auto forget = [](Plan &plan) {
        plan.is_made = false;
        plan.runs = 0;
    };
    for (Plan &plan : plans) forget(plan);
    forget(flush_plan);
    caches.forget();
}

// The instructions of a sample with its backward pass.
static Range of_sample() {
    return {program.section[FORWARD].first, program.section[FORWARD].count + program.section[BACKWARD].count};
}

static bool depends_on_sample(const Instruction &code) {
    bool depends = code.count >> 15 || has_token_offsets(code);
    for (int j = 0; j < LEVELS; j++) depends |= code.bound[j] >> 15 || code.active[j] >> 15;
    return depends;
}

// Without a measurement: an instruction's steps.
static unsigned steps_of(int i, const Sample &sample) {
    Nest nest;
    if (!resolve(nest, instruction_at(i), sample)) return 0;
    return static_cast<unsigned>(nest.n[0] * nest.n[1] * nest.n[2] * nest.n[3]);
}

// An instruction whose waits are planned, and when each thread could begin it.
struct Ready {
    int instruction;
    long long start[THREADS];
};

// List scheduling: the thread that is free first takes, of the instructions whose waits are planned, one with a long path to the
// end behind it that it can begin soon, and for which it has to get fewer lines from the other thread's cache than the other
// one would. If an instruction of FLUSH depends on its sample, the first thread executes them all.
static void make_plan(Plan &plan, const Range &range, const Sample &sample) {
    static Before before;
    static long long path[PROGRAM_DEPTH], end_of[PROGRAM_DEPTH];
    static int left[PROGRAM_DEPTH];
    static Ready ready[PROGRAM_DEPTH];
    const int begin = range.first, end = range.first + range.count;
    bool is_known = before.find(begin, end, sample);
    for (int i = begin; &plan == &flush_plan && i < end; i++) is_known &= !depends_on_sample(instruction_at(i));
    plan.ticks_alone[0] = plan.ticks_alone[1] = 0;
    for (int i = begin; i < end; i++) path[i] = 0, left[i] = before.first[i + 1] - before.first[i];
    for (int i = end - 1; i >= begin; i--) {
        if (plan.runs == 0) plan.cost[i] = steps_of(i, sample);
        path[i] += plan.cost[i];
        plan.ticks_alone[1] += plan.cost[i];
        if (i < program.section[BACKWARD].first) plan.ticks_alone[0] += plan.cost[i];
        for (int k = before.first[i]; is_known && k < before.first[i + 1]; k++) {
            const int j = before.list[k];
            if (path[j] < path[i]) path[j] = path[i];
        }
    }
    plan.count[FIRST] = plan.count[SECOND] = 0;
    const auto append = [&](int i, int thread) {
        plan.thread[i] = static_cast<unsigned char>(thread);
        plan.place[i] = static_cast<short>(plan.count[thread]);
        plan.order[thread][plan.count[thread]++] = static_cast<short>(i);
    };
    if (!is_known) {
        for (int i = begin; i < end; i++) append(i, FIRST);
    }
    long long free[THREADS] = {0, 0}, lines[THREADS];
    int ready_count = 0;
    const auto add_ready = [&](int i) {
        Ready &each = ready[ready_count++];
        each = {i, {0, 0}};
        for (int k = before.first[i]; k < before.first[i + 1]; k++) {
            const int j = before.list[k];
            for (int thread = FIRST; thread < THREADS; thread++) {
                const long long known = end_of[j] + (plan.thread[j] == thread ? 0 : NEWS);
                if (known > each.start[thread]) each.start[thread] = known;
            }
        }
    };
    for (int i = begin; is_known && i < end; i++) {
        if (left[i] == 0) add_ready(i);
    }
    while (is_known && ready_count) {
        const int thread = free[SECOND] < free[FIRST] ? SECOND : FIRST;
        int chosen = 0;
        long long start = 0, most = -(1LL << 62), moving = 0;
        for (int r = 0; r < ready_count; r++) {
            const int i = ready[r].instruction;
            const long long at = ready[r].start[thread] > free[thread] ? ready[r].start[thread] : free[thread];
            caches.lines_to_move(before.accesses[i], lines);
            const long long worth = path[i] - LINE_WORTH * (lines[thread] - lines[1 - thread]) - WAIT_WORTH * (at - free[thread]);
            if (worth > most) chosen = r, start = at, most = worth, moving = LINE_TICKS * lines[thread];
        }
        const int i = ready[chosen].instruction;
        ready[chosen] = ready[--ready_count];
        append(i, thread);
        caches.move(before.accesses[i], thread);
        free[thread] = end_of[i] = start + moving + plan.cost[i];
        for (int k = before.first_after[i]; k < before.first_after[i + 1]; k++) {
            if (--left[before.after[k]] == 0) add_ready(before.after[k]);
        }
    }
    for (int thread = FIRST; is_known && thread < THREADS; thread++) {
        int most = 0;
        for (int p = 0; p < plan.count[thread]; p++) {
            const int i = plan.order[thread][p];
            for (int k = before.first[i]; k < before.first[i + 1]; k++) {
                const int j = before.list[k];
                if (plan.thread[j] != thread && plan.place[j] >= most) most = plan.place[j] + 1;
            }
            plan.awaited[thread][p] = static_cast<short>(most);
        }
    }
    plan.is_made = true;
}

// Executes a run on one thread, and measures its instructions.
static void run_and_measure(Run &run, const Sample &sample, Plan &plan) {
    for (int i = run.first; i < run.first + run.count; i++) {
        const unsigned long long begin = __rdtsc();
        execute(i, run, sample);
        const unsigned ticks = static_cast<unsigned>(__rdtsc() - begin);
        if (plan.runs == 0 || ticks < plan.cost[i]) plan.cost[i] = ticks;
    }
    plan.runs++;
}

// ---- the two threads -------------------------------------------------------------------------------------------------

#ifndef BTTLAB_SPINS
#define BTTLAB_SPINS 4000  // tens of microseconds; a sanitizer's build waits longer
#endif
constexpr int SPINS = BTTLAB_SPINS;

// Between two looks at what another thread writes, `spins` after the first.
static void relax(int spins) { spins < SPINS ? _mm_pause() : static_cast<void>(sched_yield()); }

struct alignas(64) Shared {  // a cache line of its own
    int value;

    int get() const { return __atomic_load_n(&value, __ATOMIC_ACQUIRE); }
    void set(int to) { __atomic_store_n(&value, to, __ATOMIC_RELEASE); }
    int exchange(int to) { return __atomic_exchange_n(&value, to, __ATOMIC_ACQ_REL); }
    bool replace(int from, int to) {
        return __atomic_compare_exchange_n(&value, &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    }
};

static Shared executed[THREADS];  // how many instructions of a thread's order are executed
enum CallState { CLOSED, OPENED, NO_PROCESSOR };
static Shared call_state;  // for the second thread
enum Presence { ABSENT, LINGERS, SERVES };
static Shared presence;  // of the second thread
static Shared is_expected;  // in the first run of a call: the second thread may come while it goes on
static Shared runs_before;  // a call
static Shared runs, run_end, second_overflow;
// The number of the run, and the place of the next instruction that the second thread claims in it; TAKEN_OVER: none. A
// thread that is late, in a run that has ended, cannot claim any.
static Shared claimed;
constexpr int TAKEN_OVER = 2 * PROGRAM_DEPTH - 1;
static const Sample *shared_sample;
static const Plan *shared_plan;
static Run shared_run;  // as it begins
// Clock ticks by which the last runs took longer than the first thread would have taken alone. At MOST_LOST, some
// milliseconds, the second thread leaves: there is no processor for it, or its cache is too far away.
static long long lost;
constexpr long long MOST_LOST = 20000000;

static inline int claim_of(int run, int place) {
    return static_cast<int>(static_cast<unsigned>(run) * (TAKEN_OVER + 1) + static_cast<unsigned>(place));
}

static bool has_second_thread() { return call_state.get() == OPENED && (is_expected.exchange(false) || presence.get() == SERVES); }

// Waits until a thread has executed `count` instructions; false if it executes none for long.
static bool await(Thread thread, int count) {
    int seen = executed[thread].get();
    for (int spins = 0; seen < count; spins++) {
        if (spins >= SPINS) return false;
        _mm_pause();
        const int now = executed[thread].get();
        if (now != seen) spins = 0;
        seen = now;
    }
    return true;
}

enum Overflow { OF_GRADIENT = 1, OF_STATE = 2 };  // bits: OF_STATE << 0, 1, 2 for parameter, first and second moment

// The instructions of the second thread in a run. Those from `end` on are another run's: without a backward pass there are
// such.
static void execute_second(int run_number) {
    const int end = run_end.get();
    const Sample &sample = *shared_sample;
    const Plan &plan = *shared_plan;
    Run run = shared_run;
    if (claimed.get() != claim_of(run_number, 0)) return;
    for (int place = 0; place < plan.count[SECOND]; place++) {
        while (!await(FIRST, plan.awaited[SECOND][place])) {
            if (claimed.get() != claim_of(run_number, place)) return;
            sched_yield();
        }
        if (!claimed.replace(claim_of(run_number, place), claim_of(run_number, place + 1))) return;
        const int i = plan.order[SECOND][place];
        if (i < end) execute(i, run, sample);
        int overflow = run.overflow ? OF_GRADIENT : 0;
        for (int f = 0; f < 3; f++) overflow |= run.state_overflow[f] ? OF_STATE << f : 0;
        if (overflow) second_overflow.set(overflow);
        executed[SECOND].set(place + 1);
    }
}

// The first thread waits for `count` instructions of the second one. If that takes too long, it takes over those that the
// second one has not claimed. Returns the place of the first of these; if there are none, the number of all.
static int wait_or_take_over(int count, int run_number, int all) {
    if (await(SECOND, count)) return all;
    const int rest = claimed.exchange(claim_of(run_number, TAKEN_OVER)) & TAKEN_OVER;
    while (!await(SECOND, rest)) sched_yield();
    return rest;
}

static void run_on_two_threads(Run &run, const Sample &sample, const Plan &plan, bool is_whole) {
    const int end = run.first + run.count, run_number = runs.get() + 1, all = plan.count[SECOND];
    run_end.set(end);
    second_overflow.set(0);
    shared_sample = &sample;
    shared_plan = &plan;
    shared_run = run;
    executed[FIRST].set(0);
    executed[SECOND].set(0);
    claimed.set(claim_of(run_number, 0));
    runs.set(run_number);
    const unsigned long long begin = __rdtsc();
    int rest = all, place = 0;
    for (; rest == all && place < plan.count[FIRST]; place++) {
        rest = wait_or_take_over(plan.awaited[FIRST][place], run_number, all);
        if (rest < all) break;
        const int i = plan.order[FIRST][place];
        if (i < end) execute(i, run, sample);
        executed[FIRST].set(place + 1);
    }
    if (rest == all) rest = wait_or_take_over(all, run_number, all);
    for (int i = run.first; rest < all && i < end; i++) {  // what neither thread has executed, in the program's order
        if (plan.place[i] >= (plan.thread[i] == FIRST ? place : rest)) execute(i, run, sample);
    }
    lost += static_cast<long long>(__rdtsc() - begin) - plan.ticks_alone[is_whole];
    if (lost < 0) lost = 0;
    if (lost > MOST_LOST) call_state.set(NO_PROCESSOR);
    const int overflow = second_overflow.get();
    run.overflow |= (overflow & OF_GRADIENT) != 0;
    for (int f = 0; f < 3; f++) run.state_overflow[f] |= (overflow & OF_STATE << f) != 0;
}

// Executes a run by its plan, on one thread until its instructions are measured. `range`: all instructions of the plan.
static void run_planned(Run &run, const Sample &sample, Plan &plan, const Range &range) {
    const bool is_whole = run.count == range.count;
    if (plan.runs < MEASURED_RUNS && is_whole && run.pending != NOTHING) return run_and_measure(run, sample, plan);
    if (!plan.is_made && plan.runs == MEASURED_RUNS) make_plan(plan, range, sample);
    if (plan.is_made) return run_on_two_threads(run, sample, plan, is_whole);
    for (int i = run.first; i < run.first + run.count; i++) execute(i, run, sample);
}

constexpr unsigned long long LINGERING = 5000000;  // clock ticks, some milliseconds

static void serve_call() {
    int seen = runs_before.get();
    for (int spins = 0; call_state.get() == OPENED; spins++) {
        const int run_number = runs.get();
        if (run_number != seen) {
            execute_second(run_number);
            seen = run_number;
            spins = 0;
        }
        relax(spins);
    }
}

// Waits for the next call; false if there is none for long, or if there was no processor in the last one.
static bool linger() {
    const unsigned long long end = __rdtsc() + (call_state.get() == NO_PROCESSOR ? 0 : LINGERING);
    presence.set(LINGERS);
    for (int spins = 0; presence.get() == LINGERS; spins++) {  // else a call has begun, and may have ended
        if (call_state.get() == OPENED && presence.replace(LINGERS, SERVES)) return true;
        if (__rdtsc() >= end && presence.replace(LINGERS, ABSENT)) return false;
        relax(spins);
    }
    return true;
}

// The second thread: takes part in calls while one soon follows another.
static void serve() {
    if (!presence.replace(ABSENT, SERVES)) return;
    do serve_call();
    while (linger());
}

// Returns whether the second thread is there: it lingers after the call before.
static bool open_second() {
    // It left, and is tried again: for some runs. What is lost counts from call to call, since a call may have few samples.
    if (lost > MOST_LOST) lost = MOST_LOST - MOST_LOST / 4;
    runs_before.set(runs.get());
    is_expected.set(true);
    call_state.set(OPENED);
    return presence.replace(LINGERS, SERVES) || presence.get() != ABSENT;
}

// Waits until the second thread has left the call. Returns false if there was no processor for it.
static bool close_second() {
    const bool had_processor = call_state.replace(OPENED, CLOSED);
    for (int spins = 0; presence.get() == SERVES; spins++) relax(spins);
    call_state.set(CLOSED);
    return had_processor;
}

// In a forked process, which has no second thread.
static void forget_second() {
    call_state.set(CLOSED);
    presence.set(ABSENT);
}

#endif
