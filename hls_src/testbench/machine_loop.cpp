// The kernel with its loop in Verilog: trainer.cpp runs on the host and calls the verilated loop where it would call `run`.
// The loop's memories outlive a run, so each run copies only the words that the host has changed.
#include <algorithm>
#include <cstring>
#include <vector>

#define run run_in_software
#include "../processor/machine.h"
#undef run

#include "Vmachine_loop.h"
#include "machine_loop.h"

static Vmachine_loop *loop() {
    static Vmachine_loop *model = new Vmachine_loop;
    return model;
}

static void clock_loop() {
    loop()->clock = 0;
    loop()->eval();
    loop()->clock = 1;
    loop()->eval();
}

// A memory that the loop only reads: its bit of host_store, the host's words, and the words that the Verilog has.
struct ReadMemory {
    int bit, count;
    size_t bytes;
    const char *words;
    std::vector<char> there;

    template <class Word>
    ReadMemory(int bit, int count, const Word *words)
        : bit(bit), count(count), bytes(sizeof(Word)), words(reinterpret_cast<const char *>(words)), there(count * sizeof(Word)) {}

    const char *word(int i) const { return words + i * bytes; }
    bool has_changed(int i) const { return i < count && std::memcmp(word(i), there.data() + i * bytes, bytes) != 0; }
};
#define READ_MEMORY(bit, variable, count) {bit, count, &variable[0]},

// Memories that get the same word at the same address get it in the same cycle.
static void copy_in_changed_words() {
    static std::vector<ReadMemory> memories = {LOOP_READ(READ_MEMORY)};
    char *store = reinterpret_cast<char *>(&loop()->host_store), *wires = reinterpret_cast<char *>(&loop()->host_word);
    int most = 0;
    for (const ReadMemory &memory : memories) most = std::max(most, memory.count);
    for (int i = 0; i < most; i++) {
        loop()->host_address = i;
        for (ReadMemory &first : memories) {
            if (!first.has_changed(i)) continue;
            std::memset(store, 0, sizeof(loop()->host_store));
            std::memcpy(wires, first.word(i), first.bytes);
            for (ReadMemory &memory : memories) {
                if (!memory.has_changed(i) || memory.bytes != first.bytes || std::memcmp(memory.word(i), wires, first.bytes)) continue;
                store[memory.bit / 8] |= 1 << memory.bit % 8;
                std::memcpy(memory.there.data() + i * memory.bytes, wires, memory.bytes);
            }
            clock_loop();
        }
    }
    std::memset(store, 0, sizeof(loop()->host_store));
}

// Reads every memory that the loop only writes: a word per cycle, which arrives `latency` cycles after its address.
#define COPY_OUT(port, variable, count, latency) \
    if (i >= latency && i - latency < count) std::memcpy(&variable[i - latency], &loop()->port, sizeof(variable[0]));
#define MOST_WORDS(port, variable, count, latency) if (count + latency > most) most = count + latency;
static void copy_out() {
    int most = 0;
    LOOP_WRITTEN(MOST_WORDS)
    for (int i = 0; i < most; i++) {
        LOOP_WRITTEN(COPY_OUT)
        loop()->host_address = i;
        clock_loop();
    }
}

static long long longest = 0;
// Clocks of the loop's longest run since the last call of this function.
extern "C" __attribute__((visibility("default"))) long long trainer_longest_run() {
    const long long was = longest;
    longest = 0;
    return was;
}

#define INPUT(port, argument, offset, bytes) \
    std::memcpy(&loop()->port, reinterpret_cast<const char *>(&argument) + offset, bytes);
#define RESULT(port, argument, offset, bytes) \
    std::memcpy(reinterpret_cast<char *>(&argument) + offset, &loop()->port, bytes);

static int run(Run &section, const Sample &sample) {
    prepare(sample);
    copy_in_changed_words();
    LOOP_INPUTS(INPUT)
    loop()->start = 1;
    clock_loop();
    loop()->start = 0;
    loop()->eval();
    long long clocks = 1;
    for (; loop()->busy; clocks++) clock_loop();
    if (clocks > longest) longest = clocks;
    LOOP_RESULTS(RESULT)
    copy_out();
    return static_cast<int>(loop()->LOOP_RETURNED) + LATENCY;
}

#include "../processor/trainer.cpp"
