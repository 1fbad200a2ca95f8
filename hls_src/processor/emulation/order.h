// Dependence tests: whether the steps of a nest may run in another order, with the tiled levels innermost and several of
// their steps at a time.
#ifndef BTTLAB_PROCESSOR_EMULATION_ORDER_H
#define BTTLAB_PROCESSOR_EMULATION_ORDER_H

#include "nest.h"

// The tiled levels; all other levels are outer loops in their order.
struct Tiled {
    int x, y;  // -1: none

    bool has(int j) const { return j == x || j == y; }
};

struct Span {
    long low, high;
};

// The range of what strides that are no multiples of `period` add to an address; with period 0, of all strides.
static inline Span span_of(const Nest &nest, const Reach &reach, int period) {
    Span span = {0, 0};
    for (int j = 0; j < LEVELS; j++) {
        if (period && reach.stride[j] % period == 0) continue;
        const long most = static_cast<long>(nest.end[j] - 1) * reach.stride[j];
        (most < 0 ? span.low : span.high) += most;
    }
    return span;
}

static inline bool overlap(const Reach &a, const Reach &b) { return a.low <= b.high && b.low <= a.high; }

// Whether two operands of one memory never access the same address although their ranges overlap: within each period, a
// stride of one of them, their ranges are disjoint.
static inline bool are_apart(const Nest &nest, const Reach &a, const Reach &b) {
    if (!overlap(a, b)) return true;
    if (a.token_offset || b.token_offset) return false;
    for (int j = 0; j < 2 * LEVELS; j++) {
        const int stride = j < LEVELS ? a.stride[j] : b.stride[j - LEVELS], period = stride < 0 ? -stride : stride;
        if (period < 2 || nest.end[j % LEVELS] == 1) continue;
        const Span in_a = span_of(nest, a, period), in_b = span_of(nest, b, period);
        const long ahead = (b.start + in_b.low) - (a.start + in_a.low);
        const long gap = (ahead % period + period) % period;
        if (gap > in_a.high - in_a.low && gap + in_b.high - in_b.low < period) return true;
    }
    return false;
}

static inline bool same_steps(const Nest &nest, const Reach &a, const Reach &b) {
    bool same = a.memory == b.memory && a.start == b.start && a.token_offset == b.token_offset;
    for (int j = 0; j < LEVELS; j++) same &= nest.end[j] == 1 || a.stride[j] == b.stride[j];
    return same;
}

// Whether no two steps of the tiled levels write the same address: reordering then keeps the order of writes.
static inline bool is_one_to_one(const Nest &nest, const Reach &reach, const Tiled &tiled) {
    int level[LEVELS], levels = 0;
    for (int j = 0; j < LEVELS; j++) {
        if (nest.end[j] == 1) continue;
        if (reach.token_offset && j == nest.code->offset_level) {
            // Token offsets of the sample decide the address: ordered only if this level is outside the tiled ones.
            if (tiled.has(j) || (tiled.x >= 0 && tiled.x < j) || (tiled.y >= 0 && tiled.y < j)) return false;
            continue;
        }
        if (reach.stride[j] == 0) {
            if (tiled.has(j)) return false;
            continue;
        }
        int place = levels++;
        for (; place > 0; place--) {
            if (__builtin_abs(reach.stride[level[place - 1]]) <= __builtin_abs(reach.stride[j])) break;
            level[place] = level[place - 1];
        }
        level[place] = j;
    }
    long inside = 0;
    for (int i = 0; i < levels; i++) {
        const long stride = __builtin_abs(reach.stride[level[i]]);
        if (stride <= inside) return false;
        inside += stride * (nest.end[level[i]] - 1);
    }
    return true;
}

// Whether steps that write `to` and read operand o may be reordered: no step reads what another step writes.
static inline bool is_not_fed(const Nest &nest, int o, const Reach &to) {
    const Reach &from = nest.operand[o];
    return from.memory != to.memory || are_apart(nest, from, to) || same_steps(nest, from, to);
}

#endif
