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

// The coefficients of an entry side by side: one load brings all.
static float function_rows[FUNCTION_ENTRIES][4] __attribute__((aligned(16)));

static void take_functions() {
    for (int entry = 0; entry < FUNCTION_ENTRIES; entry++) {
        for (int c = 0; c < 3; c++) function_rows[entry][c] = function_table[c][entry];
    }
}

struct Coefficients {
    Lanes c[3];
};

// The coefficients of LANES entries: rows to columns, eight lanes at a time.
static inline Coefficients coefficients_of(const int *entry) {
    __m256 c[3][LANES / 8];
    UNROLL
    for (int half = 0; half < LANES / 8; half++) {
        __m256 row[4];
        UNROLL
        for (int i = 0; i < 4; i++) {
            const __m128 low = _mm_load_ps(function_rows[entry[8 * half + i]]);
            const __m128 high = _mm_load_ps(function_rows[entry[8 * half + i + 4]]);
            row[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(low), high, 1);
        }
        const __m256 front = _mm256_unpacklo_ps(row[0], row[1]), back = _mm256_unpacklo_ps(row[2], row[3]);
        const __m256 third = _mm256_unpackhi_ps(row[0], row[1]), fourth = _mm256_unpackhi_ps(row[2], row[3]);
        c[0][half] = _mm256_shuffle_ps(front, back, 0x44);
        c[1][half] = _mm256_shuffle_ps(front, back, 0xee);
        c[2][half] = _mm256_shuffle_ps(third, fourth, 0x44);
    }
    return {{join(c[0][0], c[0][1]), join(c[1][0], c[1][1]), join(c[2][0], c[2][1])}};
}

// F of the lanes of a word. What is not a number stays so.
static inline Lanes function_of(const Function &g, const Lanes &x) {
    Lanes d;
    IntPart k[PARTS];
    int entry[LANES] __attribute__((aligned(REGISTER_BYTES)));
    UNROLL
    for (int i = 0; i < PARTS; i++) {
        const Part zero = {}, low = g.low - zero, high = g.high - zero;
        const Part above = x.part[i] < low ? low : x.part[i], clamped = above > high ? high : above;
        const Part t = clamped * (g.steps - zero);
        const IntPart is_finite = ((IntPart)t & 0x7fffffff) < 0x7f800000;
        const IntPart whole = __builtin_convertvector((Part)((IntPart)t & is_finite), IntPart);
        k[i] = whole + (__builtin_convertvector(whole, Part) > t);  // true is -1
        d.part[i] = t - __builtin_convertvector(k[i], Part);
        const IntPart j = g.mode == EXPONENTIAL ? k[i] & ((1 << g.bits) - 1) : k[i] - g.first;
        reinterpret_cast<IntPart *>(entry)[i] = (j + g.base) & (FUNCTION_ENTRIES - 1);
    }
    const Coefficients of = coefficients_of(entry);
    Lanes v = of.c[0] + d * (of.c[1] + d * of.c[2]);
    if (g.mode != EXPONENTIAL) return v;
    UNROLL
    for (int i = 0; i < PARTS; i++) v.part[i] = (Part)((IntPart)v.part[i] + ((k[i] >> g.bits) << 23));
    return v;
}
static_assert((FUNCTION_ENTRIES & (FUNCTION_ENTRIES - 1)) == 0, "entries are taken modulo their number");

// The first of the largest lanes among the first `count`; -1 if none is larger than minus infinity.
static inline int largest_lane(const Lanes &word, int count) {
    const Lanes valid = first_lanes(count), least = all(-__builtin_inff());
    Lanes value;
    UNROLL
    for (int i = 0; i < PARTS; i++) {
        value.part[i] = ((IntPart)valid.part[i] != 0) & (word.part[i] > least.part[i]) ? word.part[i] : least.part[i];
    }
    float lane[LANES], most = -__builtin_inff();
    __builtin_memcpy(lane, &value, sizeof(lane));
    int place = -1;
    for (int l = 0; l < LANES; l++) {
        place = lane[l] > most ? l : place;
        most = lane[l] > most ? lane[l] : most;
    }
    return place;
}

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
            const int lane = largest_lane(a, nest.count ? nest.count - word0 : LANES);
            if (lane >= 0) {
                const float value = scalar_of(nest.operand[A_IN].memory + step.offset[A_IN], lane);
                if (value > best.value) best = {value, word0 + lane};
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
