// The parameter update (PU): SGD, SGD with momentum, AdamW, as torch.optim defines them.
#ifndef BTTLAB_UPDATE_H
#define BTTLAB_UPDATE_H

#include <cmath>

#include "functions.h"
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

// Whether every gradient, and its square, is finite: |x| < 2^64.
static bool are_finite(const Word *gradient, int words) {
    loop(words, 1, READ + 4 * COMPARE + START);
    int worst[LANES] = {};
Finite_Pipeline:
    for (int i = 0; i < words; i++) {
#pragma HLS PIPELINE II=1
    Lanes_Unroll:
        for (int l = 0; l < LANES; l++) {
#pragma HLS UNROLL
            const int magnitude = bits_of(gradient[i][l]) & 0x7fffffff;
            worst[l] = magnitude > worst[l] ? magnitude : worst[l];
        }
    }
    bool finite = true;
Lanes:
    for (int l = 0; l < LANES; l++) {
#pragma HLS UNROLL
        finite = finite && worst[l] < 0x5f800000;  // the bits of 2^64
    }
    return finite;
}

// All memories side by side.
static bool gradients_are_finite() {
    const Meter meter(PU, UPDATE);
    FORK;
    const bool out_cores = are_finite(gradients.out_cores, LINEARS * OutHalf::WORDS);
    BESIDE;
    const bool in_cores = are_finite(gradients.in_cores, LINEARS * InHalf::WORDS);
    BESIDE;
    const bool word_1 = are_finite(gradients.word_1, ROW_MODE_1 * SLICE_1_WORDS);
    BESIDE;
    const bool word_2 = are_finite(gradients.word_2, ROW_MODE_2 * SLICE_2_WORDS);
    BESIDE;
    const bool word_3 = are_finite(gradients.word_3, ROW_MODE_3 * SLICE_3_WORDS);
    BESIDE;
    const bool heads = are_finite(gradients.heads, HEADS_WORDS);
    BESIDE;
    const bool rest = are_finite(gradients.rest, REST_WORDS);
    JOIN;
    return out_cores && in_cores && word_1 && word_2 && word_3 && heads && rest;
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

// What AdamW needs once a step.
struct Corrections {
    float step, root;
};

// One memory: p, gradient g, first moment m, second moment v.
static void update_words(Word *p, const Word *g, Word *m, Word *v, int words, const Optimizer &optimizer,
                         const Corrections &corrections) {
    const Word rate(optimizer.learning_rate), beta1(optimizer.beta1), beta2(optimizer.beta2);
    if (optimizer.name != ADAMW) {
        const bool keeps_velocity = optimizer.name == MOMENTUM;
        loop(words, 1, READ + 2 * (MUL + ADD) + WRITE + START);
    Sgd_Pipeline:  // one loop for both, that they share its operators
        for (int i = 0; i < words; i++) {
#pragma HLS PIPELINE II=1
            Word velocity = g[i];
            if (keeps_velocity) {
                velocity = beta1 * m[i] + velocity;
                m[i] = velocity;
            }
            p[i] -= rate * velocity;
        }
    } else {
        const Word rest1(1.0f - optimizer.beta1), rest2(1.0f - optimizer.beta2), epsilon(optimizer.epsilon);
        const Word keep(1.0f - optimizer.learning_rate * optimizer.weight_decay);
        const Word step(corrections.step), root(corrections.root);
        loop(words, LANES / UPDATE_LANES, READ + 4 * MUL + 3 * ADD + ROOT + DIV + WRITE + START);
    Adamw_Pipeline:
        for (int i = 0; i < words; i++) {
#pragma HLS PIPELINE II=LANES/UPDATE_LANES
            const Word gradient = g[i];
            const Word first = beta1 * m[i] + rest1 * gradient;
            const Word second = beta2 * v[i] + rest2 * gradient * gradient;
            m[i] = first;
            v[i] = second;
            p[i] = p[i] * keep - step * first / (each_lane<square_root>(second) * root + epsilon);
        }
    }
}

// The memories of one name, in a unit of the update.
#define UPDATE_MEMORY(name) \
    update_words(parameters.name, gradients.name, first_moment.name, second_moment.name, \
                 sizeof(parameters.name) / sizeof(Word), optimizer, corrections)

// Two units, with about as many words each.
static void update_cores(const Optimizer &optimizer, const Corrections &corrections) {
    UPDATE_MEMORY(out_cores);
    UPDATE_MEMORY(in_cores);
    UPDATE_MEMORY(word_2);
}

static void update_rest(const Optimizer &optimizer, const Corrections &corrections) {
    UPDATE_MEMORY(word_1);
    UPDATE_MEMORY(word_3);
    UPDATE_MEMORY(heads);
    UPDATE_MEMORY(rest);
}

static void update(const Optimizer &optimizer) {
    const Meter meter(PU, UPDATE);
    step_count++;
    Corrections corrections = {0.0f, 0.0f};
    if (optimizer.name == ADAMW) {
        spend(2 * DIV + ROOT);
        corrections.step = optimizer.learning_rate / bias_correction(optimizer.beta1);
        corrections.root = 1.0f / std::sqrt(bias_correction(optimizer.beta2));
    }
    FORK;
    update_cores(optimizer, corrections);
    BESIDE;
    update_rest(optimizer, corrections);
    JOIN;
}

#endif
