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

// What keeps parameters and moments finite (docs/accelerator.md has the argument): a sample is not trained on if a gradient,
// parameter or first moment has a magnitude of STATE_LIMIT or more, a second moment one of SQUARE_LIMIT, the learning rate
// is RATE_LIMIT or more, or a factor of AdamW FACTOR_LIMIT.
constexpr int STATE_LIMIT = 0x5f000000;                 // the bits of 2^63
constexpr int SQUARE_LIMIT = 0x7f000000;                // of 2^127
constexpr float RATE_LIMIT = 1073741824.0f;             // 2^30
constexpr float FACTOR_LIMIT = 1152921504606846976.0f;  // 2^60

// Whether a magnitude in a memory is that of a limit or more; infinities and NaN are. Two words a cycle, from both ports.
static bool is_beyond(const Word *memory, int words, int limit) {
    const int half = parts(words, 2);
    loop(half, 1, READ + 4 * COMPARE + START);
    int found[LANES] = {};
Beyond_Pipeline:
    for (int i = 0; i < half; i++) {
#pragma HLS PIPELINE II=1
        const Word &one = memory[i], &other = memory[smaller(i + half, words - 1)];
    Lanes_Unroll:
        for (int l = 0; l < LANES; l++) {
#pragma HLS UNROLL
            found[l] |= (bits_of(one[l]) & 0x7fffffff) >= limit;
            found[l] |= (bits_of(other[l]) & 0x7fffffff) >= limit;
        }
    }
    bool any = false;
Lanes:
    for (int l = 0; l < LANES; l++) {
#pragma HLS UNROLL
        any = any || found[l];
    }
    return any;
}

// All memories of parameters or gradients, side by side.
static bool is_beyond(const Tensors &tensors) {
    FORK;
    const bool out_cores = is_beyond(tensors.out_cores, OUT_CORES_WORDS, STATE_LIMIT);
    BESIDE;
    const bool in_cores = is_beyond(tensors.in_cores, IN_CORES_WORDS, STATE_LIMIT);
    BESIDE;
    const bool word_1 = is_beyond(tensors.word_1, WORD_1_WORDS, STATE_LIMIT);
    BESIDE;
    const bool word_2 = is_beyond(tensors.word_2, WORD_2_WORDS, STATE_LIMIT);
    BESIDE;
    const bool word_3 = is_beyond(tensors.word_3, WORD_3_WORDS, STATE_LIMIT);
    BESIDE;
    const bool rest = is_beyond(tensors.rest, REST_WORDS, STATE_LIMIT);
    JOIN;
    return out_cores || in_cores || word_1 || word_2 || word_3 || rest;
}

static bool is_beyond(const Moments &moments, int limit) {
    FORK;
    const bool cores = is_beyond(moments.cores, sizeof(moments.cores) / sizeof(Word), limit);
    BESIDE;
    const bool rest = is_beyond(moments.rest, sizeof(moments.rest) / sizeof(Word), limit);
    JOIN;
    return cores || rest;
}

// What is beyond its limit: a gradient; a parameter or a moment. Moments that the optimizer does not keep are not looked at.
struct Beyond {
    bool gradient, state;
};

static Beyond find_beyond(const Optimizer &optimizer) {
    const Meter meter(PU, UPDATE);
    FORK;
    const bool gradient = is_beyond(gradients);
    BESIDE;
    const bool parameter = is_beyond(parameters);
    BESIDE;
    const bool first = optimizer.name != SGD && is_beyond(first_moment, STATE_LIMIT);
    BESIDE;
    const bool second = optimizer.name == ADAMW && is_beyond(second_moment, SQUARE_LIMIT);
    JOIN;
    return {gradient, parameter || first || second};
}

// 1 - beta^step. In double: in single the difference would lose four digits in the first steps.
static float bias_correction(float beta, int step) {
    spend(31 * POWER);
    double power = 1.0, factor = beta;
Power:
    for (int bits = step; bits > 0; bits >>= 1) {
#pragma HLS LOOP_TRIPCOUNT max=31
        if (bits & 1) power *= factor;
        factor *= factor;
    }
    return static_cast<float>(1.0 - power);
}

static float square_root(float x) { return std::sqrt(x); }

// What AdamW needs once a step.
struct Corrections {
    float step, root, keep;
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
        const Word step(corrections.step), root(corrections.root), keep(corrections.keep);
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

// Parameters and gradients of one name with their moments.
#define UPDATE_MEMORY(name, moment) \
    update_words(parameters.name, gradients.name, first_moment.moment, second_moment.moment, \
                 sizeof(parameters.name) / sizeof(Word), optimizer, corrections)

// Two units, with about as many words each.
static void update_cores(const Optimizer &optimizer, const Corrections &corrections) {
    UPDATE_MEMORY(out_cores, cores + Moments::OUT_CORES);
    UPDATE_MEMORY(in_cores, cores + Moments::IN_CORES);
    UPDATE_MEMORY(word_2, cores + Moments::WORD_2);
}

static void update_rest(const Optimizer &optimizer, const Corrections &corrections) {
    UPDATE_MEMORY(word_1, rest + Moments::WORD_1);
    UPDATE_MEMORY(word_3, rest + Moments::WORD_3);
    UPDATE_MEMORY(rest, rest + Moments::REST);
}

// Whether an update rule is one of torch.optim's, with constants that it allows.
static bool is_known(const Optimizer &optimizer) {
    return optimizer.name >= SGD && optimizer.name <= ADAMW && optimizer.beta1 >= 0.0f && optimizer.beta1 < 1.0f &&
           optimizer.beta2 >= 0.0f && optimizer.beta2 < 1.0f && optimizer.epsilon >= 0.0f &&
           optimizer.weight_decay >= 0.0f;
}

// Returns whether it was done; it is not where a number might come out that is not finite.
static bool update(const Optimizer &optimizer) {
    const Meter meter(PU, UPDATE);
    const int step = step_count < 0x7fffffff ? step_count + 1 : step_count;
    if (!(optimizer.learning_rate < RATE_LIMIT)) return false;
    Corrections corrections = {0.0f, 0.0f, 0.0f};
    if (optimizer.name == ADAMW) {
        spend(2 * DIV + ROOT);
        corrections.step = optimizer.learning_rate / bias_correction(optimizer.beta1, step);
        corrections.root = 1.0f / std::sqrt(bias_correction(optimizer.beta2, step));
        corrections.keep = 1.0f - optimizer.learning_rate * optimizer.weight_decay;
        if (!(corrections.step < FACTOR_LIMIT * optimizer.epsilon && corrections.keep > -FACTOR_LIMIT)) return false;
    }
    step_count = step;
    FORK;
    update_cores(optimizer, corrections);
    BESIDE;
    update_rest(optimizer, corrections);
    JOIN;
    return true;
}

#endif
