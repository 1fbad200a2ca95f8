// A step of the update unit: one chain of operators for SGD, momentum and AdamW, as torch.optim defines them. If an update has
// several samples, the moments accumulate the contribution of each (docs/processor.md).
#ifndef BTTLAB_PROCESSOR_UPDATE_H
#define BTTLAB_PROCESSOR_UPDATE_H

#include <cmath>

#include "state.h"

enum UpdateOperand { PARAMETER, GRADIENT, FIRST_MOMENT, SECOND_MOMENT };

// Scalars of an update in all lanes, constant during a run.
template <class V>
struct Factors {
    bool adamw, sgd;
    V beta1, rest1, beta2, rest2, epsilon, step, root, keep;  // step: what the velocity is multiplied by
};

template <class V>
ALWAYS_INLINE Factors<V> factors_of(const Run &run) {
    const bool adamw = run.optimizer == ADAMW;
    return {adamw,
            run.optimizer == SGD,
            splat<V>(run.beta1),
            splat<V>(run.rest1),
            splat<V>(run.beta2),
            splat<V>(run.rest2),
            splat<V>(run.epsilon),
            splat<V>(adamw ? run.step : run.rate),
            splat<V>(run.root),
            splat<V>(run.keep)};
}

template <class V>
struct Updated {
    V p, m, v;
};

ALWAYS_INLINE Vector square_root(const Vector &x) {
#pragma HLS INLINE
    Vector root;
Lanes_Unroll:
    UNROLL
    for (int l = 0; l < LANES; l++) root[l] = std::sqrt(x[l]);
    return root;
}

template <class V>
ALWAYS_INLINE Updated<V> update_step(const Factors<V> &by, const V &p, const V &g, const V &m, const V &v) {
#pragma HLS INLINE
    const V decayed = by.beta1 * m, weighted = by.rest1 * g;
    const V first = decayed + choose(by.adamw, weighted, g);
    const V second = by.beta2 * v + (by.rest2 * g) * g;
    const V step = by.step * choose(by.sgd, g, first);
    const V change = choose(by.adamw, step / (square_root(second) * by.root + by.epsilon), step);
    return {choose(by.adamw, p * by.keep, p) - change, first, second};
}

#endif
