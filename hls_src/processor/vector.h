// A step of the vector unit: one chain of operators with switches before each, the sums of rows behind it.
//
//   u = left + right             first adder:       a + b, a - m, b - p
//   product = .. * ..            first multiplier:  u u, u i, u f0, u a, a b, a i, b b
//   f = F(a or product)
//   scaled = .. * ..             second multiplier: product b, product c, c q, f b, product f0
//   moved = .. + ..              second adder:      scaled + c, product + c, product - p, product - f0
//   less = .. - ..               third adder:       moved - scaled, moved - label, 1 - product
//   back = less * (i or a)       third multiplier
#ifndef BTTLAB_PROCESSOR_VECTOR_H
#define BTTLAB_PROCESSOR_VECTOR_H

#include <cmath>

#include "nest.h"

enum VectorOperand { A_IN, B_IN, C_IN, R0_OUT, R1_OUT, STATISTIC_ROW };

// Sums of rows on the way: a word a slot. And the largest element of a row so far, with its place.
static Word accumulator[2][ROW_SLOTS];
static float largest[ROW_SLOTS];
static Count largest_place[ROW_SLOTS];

// What the sample and the program bring, set before the loop: labels of the words, constants and scalars for either
// immediate, functions {base, mode, bits, low, high, steps, first}.
static Count labels[SEQUENCE];
static float immediates[2][CONSTANTS + LANES];
static IntWord functions[FUNCTIONS];

ALWAYS_INLINE float immediate(int i, const Nest &nest) {
    const int code = nest.immediate[i];
    return immediates[i][code >> 15 ? CONSTANTS + (code & (LANES - 1)) : code & (CONSTANTS - 1)];
}

// F of a word, each lane with a table of its own. What is not a number stays so.
ALWAYS_INLINE Word function_of(const IntWord &g, const Word &x) {
#pragma HLS INLINE
    const int base = g[0], bits = g[2] & 15, mask = (1 << bits) - 1, first = g[6];
    const bool exponential = g[1] == EXPONENTIAL;
    const float low = float_of(g[3]), high = float_of(g[4]), steps = float_of(g[5]);
    Word y;
Lanes_Unroll:
    UNROLL
    for (int l = 0; l < LANES; l++) {
        const float above = x[l] < low ? low : x[l], clamped = above > high ? high : above;
        const float t = clamped * steps;
        const int whole = is_finite(t) ? static_cast<int>(t) : 0;
        const int k = whole - (static_cast<float>(whole) > t ? 1 : 0);
        const float d = t - static_cast<float>(k);
        const int entry = (base + (exponential ? k & mask : k - first)) & (FUNCTION_ENTRIES - 1);
        const float c0 = lane_table[l][0][entry], c1 = lane_table[l][1][entry], c2 = lane_table[l][2][entry];
        const float v = c0 + d * (c1 + d * c2);
        y[l] = float_of(bits_of(v) + static_cast<int>(exponential ? static_cast<unsigned>(k >> bits) << 23 : 0u));
    }
    return y;
}
static_assert((FUNCTION_ENTRIES & (FUNCTION_ENTRIES - 1)) == 0, "entries are taken modulo their number");

// The first `count` lanes; zeros behind them.
ALWAYS_INLINE Word first_lanes(const Word &word, int count) {
#pragma HLS INLINE
    Word kept;
    UNROLL
    for (int l = 0; l < LANES; l++) kept[l] = l < count ? word[l] : 0.0f;
    return kept;
}

ALWAYS_INLINE Word one_lane(const Word &word, int lane) {
#pragma HLS INLINE
    Word kept;
    UNROLL
    for (int l = 0; l < LANES; l++) kept[l] = l == lane ? word[l] : 0.0f;
    return kept;
}

// Lane l meets lane l + LANES/2, then l + LANES/4, and so on.
ALWAYS_INLINE float tree_of(const Word &word) {
#pragma HLS INLINE
    float sum[LANES];
#pragma HLS ARRAY_PARTITION variable=sum complete
    UNROLL
    for (int l = 0; l < LANES; l++) sum[l] = word[l];
Tree_Unroll:
    UNROLL
    for (int half = LANES / 2; half > 0; half /= 2) {
        UNROLL
        for (int l = 0; l < half; l++) sum[l] = sum[l] + sum[l + half];
    }
    return sum[0];
}

struct Place {
    float value;
    int lane;
};

// The largest of the first `count` lanes, of equals the first; what is not a number is none of them.
ALWAYS_INLINE Place largest_lane(const Word &word, int count) {
#pragma HLS INLINE
    const float least = float_of(0xff800000);
    Place best[LANES];
#pragma HLS ARRAY_PARTITION variable=best complete
    UNROLL
    for (int l = 0; l < LANES; l++) best[l] = {l < count && word[l] > least ? word[l] : least, l};
Tree_Unroll:
    UNROLL
    for (int step = 1; step < LANES; step *= 2) {
        UNROLL
        for (int l = 0; l < LANES; l += 2 * step) {
            const bool other = best[l + step].value > best[l].value;
            best[l] = {other ? best[l + step].value : best[l].value, other ? best[l + step].lane : best[l].lane};
        }
    }
    return best[0];
}

struct VectorStep {
    bool writes_0, writes_1;
    Word r0, r1;
};

ALWAYS_INLINE VectorStep vector_step(const Nest &nest, const Sample &sample, const Word &a, const Word &b_read,
                                     const Word &c) {
#pragma HLS INLINE
    const int op = nest.operation;
    const bool acts = is_live(nest, 0), first = is_first(nest), last = acts && is_last(nest);
    const Word b = choose(nest.operand[B_IN].valid, b_read, choose(op == SUM, splat(-0.0f), a));
    const float f0 = immediate(0, nest), f1 = immediate(1, nest);
    const int row = (nest.operand[STATISTIC_ROW].at[0] + nest.slot) & (STATISTICS - 1);
    const int slot = nest.slot & (ROW_SLOTS - 1), word_0 = index_of(nest, nest.flags >> WORD_LEVEL_SHIFT & 3) * LANES;
    const int lanes = nest.count ? nest.count - word_0 : LANES;
    const bool of_intent = nest.flags & INTENT;
    const int label = of_intent ? sample.intent : labels[(nest.slot + 1) & (SEQUENCE - 1)];
    const float m = statistic[0][row], i = statistic[1][row], p = statistic[2][row], q = statistic[3][row];

    const bool from_b = op == SOFTMAX_BACK, centred = (op == VARIANCE) || (op == NORMALIZE) || (op == EXPONENT) || from_b;
    const Word u = choose(from_b, b, a) + choose(centred, splat(from_b ? -p : -m), b);

    const bool scaled_by_i = (op == NORMALIZE) || (op == SCALE) || (op == LOSS_BACK);
    const Word left = choose(centred, u, choose(op == TANH_BACK, b, a));
    const Word right = choose(scaled_by_i || (op == EXPONENT), splat(scaled_by_i ? i : f0),
                              choose(op == VARIANCE, u, choose(from_b, a, b)));
    const Word product = left * right;

    const Word function = function_of(functions[nest.operand[STATISTIC_ROW].where & (FUNCTIONS - 1)],
                                      choose(op == EXPONENT, product, a));

    const Word factor = choose(op == NORM_SUMS, c, choose((op == NORM_BACK) || from_b, splat(from_b ? f0 : q), b));
    const Word scaled = choose(op == NORM_BACK, c, choose(op == TIMES_FUNCTION, function, product)) * factor;

    const bool to_c = (op == NORMALIZE) || (op == AFFINE);
    const Word moved = choose(op == NORMALIZE, scaled, product) + choose(to_c, c, splat(op == NORM_BACK ? -p : -f0));

    const Word at_label = one_lane(splat(f1), label - word_0);
    const Word less = choose(op == TANH_BACK, splat(1.0f), moved) -
                      choose(op == TANH_BACK, product, choose(op == NORM_BACK, scaled, at_label));
    const Word back = less * choose(op == TANH_BACK, a, splat(i));

    // Sums of rows.
    const bool adds = acts && ((op == SUM) || (op == VARIANCE) || (op == NORM_SUMS) || (op == COLUMNS) || (op == EXPONENT) || (op == DOT));
    const Word value_0 = choose(op == SUM, u, choose(op == EXPONENT, function, product));
    const Word value_1 = choose(op == NORM_SUMS, scaled, choose(op == COLUMNS, a, one_lane(u, label - word_0)));
    const Word before_0 = accumulator[0][slot], before_1 = accumulator[1][slot];
    const Word sum_0 = choose(first, Word{}, before_0) + first_lanes(value_0, lanes);
    const Word sum_1 = choose(first, Word{}, before_1) + first_lanes(value_1, lanes);
    if (adds) {
        accumulator[0][slot] = sum_0;
        accumulator[1][slot] = sum_1;
    }
    const float total_0 = tree_of(sum_0), total_1 = tree_of(sum_1);

    const Place largest_here = largest_lane(a, lanes);
    const float so_far = first ? float_of(0xff800000) : largest[slot];
    const int place_so_far = first ? 0 : largest_place[slot];
    const bool larger = largest_here.value > so_far;
    const float maximum = larger ? largest_here.value : so_far;
    const int place = larger ? word_0 + largest_here.lane : place_so_far;
    if (acts && (op == MAXIMUM)) {
        largest[slot] = maximum;
        largest_place[slot] = place;
    }

    // What a row gives at its last word.
    const float mean_0 = f0 * total_0, mean_1 = f0 * total_1;
    const float quotient = (op == EXPONENT ? f1 : 1.0f) / (op == EXPONENT ? total_0 : std::sqrt(mean_0 + f1));
    if (last && ((op == SUM) || (op == MAXIMUM))) statistic[0][row] = op == SUM ? mean_0 : maximum;
    if (last && ((op == VARIANCE) || (op == EXPONENT))) statistic[1][row] = quotient;
    if (last && ((op == NORM_SUMS) || (op == DOT))) statistic[2][row] = op == DOT ? total_0 : mean_0;
    if (last && (op == NORM_SUMS)) statistic[3][row] = mean_1;
    const int kept = of_intent ? LAST_ROW : nest.slot & (SEQUENCE - 1);
    if (last && (op == EXPONENT) && ((nest.flags & LOSS) != 0)) {
        loss_sum[kept] = total_0;
        loss_margin[kept] = total_1;
    }
    if (last && (op == MAXIMUM)) argument[kept] = place;

    const bool is_u = (op == ADD) || (op == SUM), is_product = (op == NORMALIZE) || (op == SCALE);
    const bool is_function = (op == FUNCTION) || (op == EXPONENT), is_back = (op == NORM_BACK) || (op == TANH_BACK);
    const bool is_scaled = (op == TIMES_FUNCTION) || from_b, gives_none = (op == VARIANCE) || (op == NORM_SUMS) || (op == MAXIMUM) || (op == DOT);
    const Word r0 = choose(op == COPY, a, choose(is_u, u, choose(is_product, product, choose(is_function, function,
                    choose(is_back, back, choose(is_scaled, scaled, choose(op == AFFINE, moved,
                    choose(op == COLUMNS, sum_0, less))))))));
    const bool writes = (op == COLUMNS ? last : acts) && !gives_none;
    return {writes, writes && ((op == NORMALIZE) || (op == COLUMNS)), first_lanes(r0, lanes),
            first_lanes(choose(op == COLUMNS, sum_1, moved), lanes)};
}

#endif
