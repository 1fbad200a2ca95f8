// The parameter update (PU): SGD, SGD with momentum, AdamW, as torch.optim defines them.
#ifndef BTTLAB_UPDATE_H
#define BTTLAB_UPDATE_H

#include "elementwise.h"
#include "memory.h"

enum OptimizerName { SGD, MOMENTUM, ADAMW };

struct Optimizer {
    int name;
    float beta1;  // momentum, or AdamW's first beta
    float beta2;
    float epsilon;
    float weight_decay;  // AdamW: decoupled
    float learning_rate;
};

// Whether every gradient, and its square, is finite: 0 * x is 0 for those alone.
static bool gradients_are_finite() {
    const Meter meter(PU, UPDATE);
    loop(PARAMETER_WORDS, ACCUMULATE, READ + 2 * MUL + START + LANE_TREE);
    Word sum(0.0f);
Finite_Pipeline:
    for (int i = 0; i < PARAMETER_WORDS; i++) {
#pragma HLS PIPELINE
        sum += gradients[i] * gradients[i] * Word(0.0f);
    }
    return is_finite(sum_lanes(sum));
}

// 1 - beta^step_count. In double: in single the difference would lose four digits in the first steps.
static float bias_correction(float beta) {
    spend(31 * POWER);
    double power = 1.0, factor = beta;
Power:
    for (int bits = step_count; bits > 0; bits >>= 1) {
#pragma HLS LOOP_TRIPCOUNT max=31
        if (bits & 1) power *= factor;
        factor *= factor;
    }
    return static_cast<float>(1.0 - power);
}

static float square_root(float x) { return std::sqrt(x); }

static void update(const Optimizer &optimizer) {
    const Word rate(optimizer.learning_rate), beta1(optimizer.beta1), beta2(optimizer.beta2);
    const Word rest1(1.0f - optimizer.beta1), rest2(1.0f - optimizer.beta2);
    const Meter meter(PU, UPDATE);
    step_count++;
    if (optimizer.name == SGD) {
        loop(PARAMETER_WORDS, 1, READ + MUL + ADD + START);
    Sgd_Pipeline:
        for (int i = 0; i < PARAMETER_WORDS; i++) {
#pragma HLS PIPELINE II=1
            parameters[i] -= rate * gradients[i];
        }
    } else if (optimizer.name == MOMENTUM) {
        loop(PARAMETER_WORDS, 1, READ + 2 * (MUL + ADD) + START);
    Momentum_Pipeline:
        for (int i = 0; i < PARAMETER_WORDS; i++) {
#pragma HLS PIPELINE II=1
            const Word velocity = beta1 * first_moment[i] + gradients[i];
            first_moment[i] = velocity;
            parameters[i] -= rate * velocity;
        }
    } else {
        const float correction1 = bias_correction(optimizer.beta1), correction2 = bias_correction(optimizer.beta2);
        const Word step(optimizer.learning_rate / correction1), root_correction(1.0f / std::sqrt(correction2));
        const Word keep(1.0f - optimizer.learning_rate * optimizer.weight_decay), epsilon(optimizer.epsilon);
        spend(2 * DIV + ROOT);
        loop(PARAMETER_WORDS, 1, READ + 4 * MUL + 3 * ADD + ROOT + DIV + START);
    Adamw_Pipeline:
        for (int i = 0; i < PARAMETER_WORDS; i++) {
#pragma HLS PIPELINE II=1
            const Word gradient = gradients[i];
            const Word first = beta1 * first_moment[i] + rest1 * gradient;
            const Word second = beta2 * second_moment[i] + rest2 * gradient * gradient;
            first_moment[i] = first;
            second_moment[i] = second;
            parameters[i] = parameters[i] * keep - step * first / (each_lane<square_root>(second) * root_correction + epsilon);
        }
    }
}

#endif
