// The update unit: updates parameters and moments by the optimizer of the call.
#ifndef BTTLAB_PROCESSOR_EMULATION_UPDATE_H
#define BTTLAB_PROCESSOR_EMULATION_UPDATE_H

#include "../update.h"
#include "nest.h"

static inline Lanes square_root(const Lanes &value) {
    Lanes result;
    UNROLL
    for (int i = 0; i < PARTS; i++) {
#if defined(__AVX512F__)
        result.part[i] = _mm512_maskz_sqrt_ps(0xffff, value.part[i]);
#else
        result.part[i] = _mm256_sqrt_ps(value.part[i]);
#endif
    }
    return result;
}

template <int OPTIMIZER>
static void update_steps(const Nest &nest, Run &run) {
    Factors<Lanes> factors = factors_of<Lanes>(run);
    factors.adamw = OPTIMIZER == ADAMW;  // known when this is compiled
    factors.sgd = OPTIMIZER == SGD;
    const bool clear = nest.code->flags & CLEAR;
    Vector *memory[SECOND_MOMENT + 1];
    for (int o = PARAMETER; o <= SECOND_MOMENT; o++) memory[o] = nest.operand[o].memory;
    Marks marks[SECOND_MOMENT + 1] = {};
    each_row(nest, active_box(nest), innermost(active_box(nest)), [&](const Step &step, int count, const long *strides) {
        Vector *at[SECOND_MOMENT + 1];
        long stride[SECOND_MOMENT + 1];  // copies, because the compiler must assume that stores change the original
        UNROLL
        for (int o = PARAMETER; o <= SECOND_MOMENT; o++) at[o] = memory[o] + step.offset[o], stride[o] = strides[o];
        for (int n = 0; n < count; n++) {
            const auto give = [&](int o, const Lanes &value, int limit) {
                mark_overflow(marks[o], value, limit);
                store(at[o], value);
            };
            const Updated<Lanes> updated = update_step(factors, load(at[PARAMETER]), load(at[GRADIENT]),
                                                       load(at[FIRST_MOMENT]), load(at[SECOND_MOMENT]));
            if (OPTIMIZER == ADAMW) give(SECOND_MOMENT, updated.v, SQUARE_LIMIT);
            if (OPTIMIZER != SGD) give(FIRST_MOMENT, updated.m, STATE_LIMIT);
            give(PARAMETER, updated.p, STATE_LIMIT);
            if (clear) store(at[GRADIENT], splat<Lanes>(0.0f));
            UNROLL
            for (int o = PARAMETER; o <= SECOND_MOMENT; o++) at[o] += stride[o];
        }
    });
    run.state_overflow[0] |= any_mark(marks[PARAMETER]);
    run.state_overflow[1] |= any_mark(marks[FIRST_MOMENT]);
    run.state_overflow[2] |= any_mark(marks[SECOND_MOMENT]);
}

static void place_update(Nest &nest, const Sample &sample) {
    const Box box = active_box(nest);
    for (int o = 0; o < OPERANDS; o++) {
        if (o <= SECOND_MOMENT) {
            place_in_bank(nest, o, &scratch_vector, box, sample);
        } else {
            place_nowhere(nest, o, &scratch_vector);
        }
    }
}

static void run_update(const Nest &nest, Run &run) {
    if (run.pending == DISCARD) {
        if (!(nest.code->flags & CLEAR)) return;
        each_step(nest, active_box(nest), [&](const Step &step) {
            store(nest.operand[GRADIENT].memory + step.offset[GRADIENT], splat<Lanes>(0.0f));
        });
    } else if (run.optimizer == SGD) {
        update_steps<SGD>(nest, run);
    } else if (run.optimizer == MOMENTUM) {
        update_steps<MOMENTUM>(nest, run);
    } else {
        update_steps<ADAMW>(nest, run);
    }
}

#endif
