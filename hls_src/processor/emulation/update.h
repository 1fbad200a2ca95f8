// The update unit: updates parameters and moments by the optimizer of the call.
#ifndef BTTLAB_PROCESSOR_EMULATION_UPDATE_H
#define BTTLAB_PROCESSOR_EMULATION_UPDATE_H

#include "nest.h"

enum UpdateOperand { PARAMETERS, GRADIENT, MEAN, SQUARE };

static inline Lanes root_of(const Lanes &value) {
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
    const Lanes rate = all(run.rate), step_size = all(run.step), root = all(run.root), keep = all(run.keep);
    const Lanes beta1 = all(run.beta1), beta2 = all(run.beta2), epsilon = all(run.epsilon);
    const Lanes rest1 = all(run.rest1), rest2 = all(run.rest2);
    const bool clear = nest.code->flags & CLEAR;
    Vector *const memory[] = {nest.operand[PARAMETERS].memory, nest.operand[GRADIENT].memory, nest.operand[MEAN].memory,
                            nest.operand[SQUARE].memory};
    Marks marks[3] = {};
    each_step(nest, active_box(nest), [&](const Step &step) {
        const auto vector = [&](int o) { return memory[o] + step.offset[o]; };
        const Lanes g = load(vector(GRADIENT));
        Lanes p = load(vector(PARAMETERS));
        if (OPTIMIZER == SGD) {
            p = p - rate * g;
        } else {
            Lanes m = beta1 * load(vector(MEAN));
            if (OPTIMIZER == MOMENTUM) {
                m = m + g;
                p = p - rate * m;
            } else {
                m = m + rest1 * g;
                const Lanes v = beta2 * load(vector(SQUARE)) + (rest2 * g) * g;
                p = p * keep - (step_size * m) / (root_of(v) * root + epsilon);
                mark_overflow(marks[2], v, SQUARE_LIMIT);
                store(vector(SQUARE), v);
            }
            mark_overflow(marks[1], m, STATE_LIMIT);
            store(vector(MEAN), m);
        }
        mark_overflow(marks[0], p, STATE_LIMIT);
        store(vector(PARAMETERS), p);
        if (clear) store(vector(GRADIENT), all(0.0f));
    });
    for (int i = 0; i < 3; i++) run.state_overflow[i] |= any_mark(marks[i]);
}

static void place_update(Nest &nest, const Sample &sample) {
    const Box box = active_box(nest);
    for (int o = 0; o < OPERANDS; o++) {
        if (o <= SQUARE) {
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
            store(nest.operand[GRADIENT].memory + step.offset[GRADIENT], all(0.0f));
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
