// A step of the update unit: one chain of operators for SGD, momentum and AdamW, as torch.optim defines them. If an update has
// several samples, the moments accumulate the contribution of each (docs/processor.md).
#ifndef BTTLAB_PROCESSOR_UPDATE_H
#define BTTLAB_PROCESSOR_UPDATE_H

#include <cmath>

#include "nest.h"

enum UpdateOperand { PARAMETER, GRADIENT, FIRST_MOMENT, SECOND_MOMENT };

// Scalars of an update, constant during a run.
struct Factors {
    bool adamw, sgd;
    Vector beta1, rest1, beta2, rest2, epsilon, step, root, keep;  // step: what the velocity is multiplied by
};

ALWAYS_INLINE Factors factors_of(const Run &run) {
    const bool adamw = run.optimizer == ADAMW;
    return {adamw,
            run.optimizer == SGD,
            splat(run.beta1),
            splat(run.rest1),
            splat(run.beta2),
            splat(run.rest2),
            splat(run.epsilon),
            splat(adamw ? run.step : run.rate),
            splat(run.root),
            splat(run.keep)};
}

struct Updated {
    Vector p, m, v;
};

ALWAYS_INLINE Vector square_root(const Vector &x) {
#pragma HLS INLINE
    Vector root;
Lanes_Unroll:
    UNROLL
    for (int l = 0; l < LANES; l++) root[l] = std::sqrt(x[l]);
    return root;
}

ALWAYS_INLINE Updated update_step(const Factors &by, const Vector &p, const Vector &g, const Vector &m, const Vector &v) {
#pragma HLS INLINE
    const Vector decayed = by.beta1 * m, weighted = by.rest1 * g;
    const Vector first = decayed + choose(by.adamw, weighted, g);
    const Vector second = by.beta2 * v + (by.rest2 * g) * g;
    const Vector step = by.step * choose(by.sgd, g, first);
    const Vector change = choose(by.adamw, step / (square_root(second) * by.root + by.epsilon), step);
    return {choose(by.adamw, p * by.keep, p) - change, first, second};
}

#endif
