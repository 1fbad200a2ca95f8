// The vector unit: one function a step, compiled for each operation.
#ifndef BTTLAB_PROCESSOR_EMULATION_VECTOR_H
#define BTTLAB_PROCESSOR_EMULATION_VECTOR_H

#include "nest.h"

enum VectorOperand { A_IN, B_IN, C_IN, RESULT_0, RESULT_1, STATISTIC_ROW };

static Word accumulator[2][ROW_SLOTS];
static struct {
    float value;
    int place;
} largest[ROW_SLOTS];

static inline float floor_of(float x) { return __builtin_floorf(x); }

// F of the lanes of a word.
static inline Lanes function_of(const Function &g, const Lanes &x) {
    float in[LANES] __attribute__((aligned(64))), out[LANES] __attribute__((aligned(64)));
    __builtin_memcpy(in, &x, sizeof(in));
    for (int l = 0; l < LANES; l++) {
        const float above = in[l] > g.low ? in[l] : g.low;
        const float y = above < g.high ? above : g.high;
        const float t = y * g.steps, floor = floor_of(t), d = t - floor;
        const int k = static_cast<int>(floor);
        const int j = g.base + (g.mode == EXPONENTIAL ? k & ((1 << g.bits) - 1) : k - g.first);
        const int entry = j & (FUNCTION_ENTRIES - 1);
        const float v = function_table[0][entry] + d * (function_table[1][entry] + d * function_table[2][entry]);
        out[l] = g.mode == EXPONENTIAL ? float_of(bits_of(v) + static_cast<int>(static_cast<unsigned>(k >> g.bits) << 23)) : v;
    }
    Lanes result;
    __builtin_memcpy(&result, out, sizeof(out));
    return result;
}
static_assert((FUNCTION_ENTRIES & (FUNCTION_ENTRIES - 1)) == 0, "entries are taken modulo their number");

// Adds a word to the slot's sum of a row; true at the last word: then `total` is the tree of it.
static inline Lanes add_to_row(int which, const Nest &nest, const Step &step, const Lanes &value) {
    Word *sum = &accumulator[which][step.slot % ROW_SLOTS];
    const Lanes total = (is_first(nest, step) ? all(0.0f) : load(sum)) + value;
    store(sum, total);
    return total;
}

template <int OPERATION>
static void vector_steps(const Nest &nest, const Sample &sample, Run &run) {
    const Instruction &code = *nest.code;
    const bool missing_b = !code.operand[B_IN].valid;
    const float f0 = nest.f0, f1 = nest.f1;
    const Function &function = program.function[code.operand[STATISTIC_ROW].where % FUNCTIONS];
    const Lanes zero = all(0.0f);
    Marks marks = {};
    each_step(nest, live_box(nest), [&](const Step &step) {
        const int row = (code.operand[STATISTIC_ROW].base + step.slot) % STATISTICS;
        const int kept = code.flags & INTENT ? LAST_ROW : step.slot % SEQUENCE;
        float &m = statistic[0][row], &i = statistic[1][row], &p = statistic[2][row], &q = statistic[3][row];
        const int word0 = step.index[code.word_level] * LANES;
        const Lanes valid = first_lanes(nest.count ? nest.count - word0 : LANES);
        const int label = code.flags & INTENT ? sample.intent : sample.slot[(step.slot + 1) % SEQUENCE];
        const Lanes is_label = one_lane(label - word0);
        const Lanes a = load(nest.operand[A_IN].memory + step.offset[A_IN]);
        const Lanes b = load(nest.operand[B_IN].memory + step.offset[B_IN]);
        const Lanes c = load(nest.operand[C_IN].memory + step.offset[C_IN]);
        Lanes r0 = zero, r1 = zero;
        bool writes = true;
        if (OPERATION == COPY) r0 = a;
        if (OPERATION == ADD) r0 = a + b;
        if (OPERATION == SUM) {
            r0 = (missing_b ? a : a + b) & valid;
            const Lanes sum = add_to_row(0, nest, step, r0);
            if (is_last(nest, step)) m = f0 * tree(sum);
        }
        if (OPERATION == VARIANCE) {
            const Lanes u = (a - all(m)) & valid;
            const Lanes sum = add_to_row(0, nest, step, u * u);
            if (is_last(nest, step)) i = 1.0f / __builtin_sqrtf(f0 * tree(sum) + f1);
            writes = false;
        }
        if (OPERATION == NORMALIZE) {
            r0 = (a - all(m)) * all(i);
            r1 = r0 * b + c;
        }
        if (OPERATION == AFFINE) r0 = a * b + c;
        if (OPERATION == NORM_SUMS) {
            const Lanes d = (a * b) & valid;
            const Lanes sum = add_to_row(0, nest, step, d), product = add_to_row(1, nest, step, (d * c) & valid);
            if (is_last(nest, step)) {
                p = f0 * tree(sum);
                q = f0 * tree(product);
            }
            writes = false;
        }
        if (OPERATION == NORM_BACK) r0 = ((a * b - all(p)) - c * all(q)) * all(i);
        if (OPERATION == COLUMNS) {
            r0 = add_to_row(0, nest, step, (a * b) & valid);
            r1 = add_to_row(1, nest, step, a & valid);
            writes = is_last(nest, step);
        }
        if (OPERATION == FUNCTION) r0 = function_of(function, a);
        if (OPERATION == TIMES_FUNCTION) r0 = function_of(function, a) * b;
        if (OPERATION == TANH_BACK) r0 = a * (all(1.0f) - b * b);
        if (OPERATION == MAXIMUM) {
            auto &best = largest[step.slot % ROW_SLOTS];
            if (is_first(nest, step)) best = {-__builtin_inff(), 0};
            const int lanes = nest.count && nest.count - word0 < LANES ? nest.count - word0 : LANES;
            const Word *word = nest.operand[A_IN].memory + step.offset[A_IN];
            for (int l = 0; l < lanes; l++) {
                const float value = scalar_of(word, l);
                if (value > best.value) best = {value, word0 + l};
            }
            if (is_last(nest, step)) {
                m = best.value;
                argument[kept] = best.place;
            }
            writes = false;
        }
        if (OPERATION == EXPONENT) {
            const Lanes u = a - all(m);
            r0 = function_of(function, u * all(f0)) & valid;
            const Lanes sum = add_to_row(0, nest, step, r0);
            const Lanes margin = code.flags & LOSS ? add_to_row(1, nest, step, u & is_label & valid) : zero;
            if (is_last(nest, step)) {
                const float total = tree(sum);
                i = f1 / total;
                if (code.flags & LOSS) {
                    loss_sum[kept] = total;
                    loss_margin[kept] = tree(margin);
                }
            }
        }
        if (OPERATION == SCALE) r0 = a * all(i);
        if (OPERATION == LOSS_BACK) r0 = (a * all(i) - all(f0)) - (all(f1) & is_label);
        if (OPERATION == DOT) {
            const Lanes sum = add_to_row(0, nest, step, (a * b) & valid);
            if (is_last(nest, step)) p = tree(sum);
            writes = false;
        }
        if (OPERATION == SOFTMAX_BACK) r0 = ((b - all(p)) * a) * all(f0);
        if (!writes) return;
        r0 = r0 & valid;
        r1 = r1 & valid;
        mark_beyond(marks, r0, STATE_LIMIT);
        mark_beyond(marks, r1, STATE_LIMIT);
        store(nest.operand[RESULT_0].memory + step.offset[RESULT_0], r0);
        if (OPERATION == NORMALIZE || OPERATION == COLUMNS) {
            store(nest.operand[RESULT_1].memory + step.offset[RESULT_1], r1);
        }
    });
    if (code.flags & CHECK) run.beyond |= any_mark(marks);
}

static void run_vector(Nest &nest, const Sample &sample, Run &run) {
    typedef void Steps(const Nest &, const Sample &, Run &);
    static Steps *const steps[] = {
        vector_steps<COPY>,        vector_steps<ADD>,       vector_steps<SUM>,       vector_steps<VARIANCE>,
        vector_steps<NORMALIZE>,   vector_steps<AFFINE>,    vector_steps<NORM_SUMS>, vector_steps<NORM_BACK>,
        vector_steps<COLUMNS>,     vector_steps<FUNCTION>,  vector_steps<TIMES_FUNCTION>, vector_steps<TANH_BACK>,
        vector_steps<MAXIMUM>,     vector_steps<EXPONENT>,  vector_steps<SCALE>,     vector_steps<LOSS_BACK>,
        vector_steps<DOT>,         vector_steps<SOFTMAX_BACK>};
    const Instruction &code = *nest.code;
    if (code.operation > SOFTMAX_BACK) return;
    const Box box = live_box(nest);
    Box writes = box;
    if (code.operation == COLUMNS) {
        for (int j = 0; j < LEVELS; j++) {
            if (code.depth_mask >> j & 1) writes.from[j] = nest.live[j] - 1;
        }
    }
    place_in_bank(nest, A_IN, &zero_word, box, sample);
    place_in_bank(nest, B_IN, &zero_word, box, sample);
    if (!code.operand[B_IN].valid) nest.operand[B_IN] = nest.operand[A_IN];
    place_in_bank(nest, C_IN, &zero_word, box, sample);
    place_in_bank(nest, RESULT_0, &scratch_word, writes, sample);
    place_in_bank(nest, RESULT_1, &scratch_word, writes, sample);
    place_nowhere(nest, STATISTIC_ROW, &scratch_word);
    if (!nest.is_inside) {
        run.beyond = true;
        return;
    }
    steps[code.operation](nest, sample, run);
}

#endif
