// A memory whose stores become visible `distance` cycles later, as late as a DEPENDENCE pragma lets a pipeline store them.
#pragma once

#include <deque>
#include <vector>

enum Distance { OF_LATENCY, OF_SUM, OF_COLUMNS, OF_QUEUE, OF_COUNTS, DISTANCES };
extern "C" __attribute__((visibility("default"))) int extra_cycles[DISTANCES];  // the test's fault: later still
int extra_cycles[DISTANCES];
static int now = -1;  // the cycle; negative outside of the loop, where stores are visible at once
static std::vector<void (*)(int)> &queues() {
    static std::vector<void (*)(int)> all;
    return all;
}

template <class T, int DISTANCE, int KIND>
struct Late {
    struct Store {
        Late *to;
        T value;
        int due;
    };
    T value;
    static std::deque<Store> &pending() {
        static std::deque<Store> stores;
        return stores;
    }
    static void apply(int until) {
        for (auto &stores = pending(); !stores.empty() && stores.front().due <= until; stores.pop_front()) {
            stores.front().to->value = stores.front().value;
        }
    }
    static inline const bool is_registered = (queues().push_back(apply), true);
    operator const T &() const { return value; }
    Late &operator=(const T &stored) {
        if (now < 0) {
            value = stored;
        } else if (is_registered) {
            pending().push_back({this, stored, now + DISTANCE + extra_cycles[KIND]});
        }
        return *this;
    }
};

static void begin_cycle(int cycle) {
    now = cycle;
    for (auto apply : queues()) apply(now);
}

static void end_run() {
    for (auto apply : queues()) apply(1 << 30);
    now = -1;
}
