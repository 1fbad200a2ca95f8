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

// Whether a magnitude in a memory is that of a limit or more; infinities and NaN are.
static bool is_beyond(const Word *memory, int words, int limit) {
    loop(words, 1, READ + 4 * COMPARE + START);
    int found[LANES] = {};
Beyond_Pipeline:
    for (int i = 0; i < words; i++) {
#pragma HLS PIPELINE II=1
    Lanes_Unroll:
        for (int l = 0; l < LANES; l++) {
#pragma HLS UNROLL
            found[l] |= (bits_of(memory[i][l]) & 0x7fffffff) >= limit;
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

// What is beyond its limit: a gradient; a parameter or a moment.
struct Beyond {
    bool gradient, state;
};

// The memories of one name, side by side; moments that the optimizer does not keep are not looked at.
static Beyond find_beyond(const Word *p, const Word *g, const Word *m, const Word *v, int words,
                          const Optimizer &optimizer) {
    FORK;
    const bool gradient = is_beyond(g, words, STATE_LIMIT);
    BESIDE;
    const bool parameter = is_beyond(p, words, STATE_LIMIT);
    BESIDE;
    const bool first = optimizer.name != SGD && is_beyond(m, words, STATE_LIMIT);
    BESIDE;
    const bool second = optimizer.name == ADAMW && is_beyond(v, words, SQUARE_LIMIT);
    JOIN;
    return {gradient, parameter || first || second};
}

#define BEYOND_MEMORY(name)                                                                                 \
    const Beyond name = find_beyond(parameters.name, gradients.name, first_moment.name, second_moment.name, \
                                    sizeof(parameters.name) / sizeof(Word), optimizer)

// All memories side by side.
static Beyond find_beyond(const Optimizer &optimizer) {
    const Meter meter(PU, UPDATE);
    FORK;
    BEYOND_MEMORY(out_cores);
    BESIDE;
    BEYOND_MEMORY(in_cores);
    BESIDE;
    BEYOND_MEMORY(word_1);
    BESIDE;
    BEYOND_MEMORY(word_2);
    BESIDE;
    BEYOND_MEMORY(word_3);
    BESIDE;
    BEYOND_MEMORY(heads);
    BESIDE;
    BEYOND_MEMORY(rest);
    JOIN;
    Beyond any;
    any.gradient = out_cores.gradient || in_cores.gradient || word_1.gradient || word_2.gradient || word_3.gradient ||
                   heads.gradient || rest.gradient;
    any.state = out_cores.state || in_cores.state || word_1.state || word_2.state || word_3.state || heads.state ||
                rest.state;
    return any;
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
