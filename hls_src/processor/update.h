// A step of the update unit: one chain of operators for SGD, momentum and AdamW, as torch.optim defines them.
#ifndef BTTLAB_PROCESSOR_UPDATE_H
#define BTTLAB_PROCESSOR_UPDATE_H

#include <cmath>

#include "nest.h"

enum UpdateOperand { PARAMETER, GRADIENT, FIRST_MOMENT, SECOND_MOMENT };

struct Updated {
    Word p, m, v;
};

// sqrt(x) * root + epsilon below it.
ALWAYS_INLINE Word square_root(const Word &x) {
#pragma HLS INLINE
    Word root;
Lanes_Unroll:
    UNROLL
    for (int l = 0; l < LANES; l++) root[l] = std::sqrt(x[l]);
    return root;
}

ALWAYS_INLINE Updated update_step(const Run &run, const Word &p, const Word &g, const Word &m, const Word &v) {
#pragma HLS INLINE
    const bool adamw = run.optimizer == ADAMW;
    const Word decayed = splat(run.beta1) * m, weighted = splat(1.0f - run.beta1) * g;
    const Word first = decayed + choose(adamw, weighted, g);
    const Word second = splat(run.beta2) * v + (splat(1.0f - run.beta2) * g) * g;
    const Word step = splat(choose(adamw, run.step, run.rate)) * choose(run.optimizer == SGD, g, first);
    const Word change = choose(adamw, step / (square_root(second) * splat(run.root) + splat(run.epsilon)), step);
    return {choose(adamw, p * splat(run.keep), p) - change, first, second};
}

#endif
