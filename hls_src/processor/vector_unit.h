// A step of the vector unit: one chain of operators with a multiplexer before each, then the sums of rows.
//
//   u = left + right             first adder:       a + b, a - m, b - p
//   product = .. * ..            first multiplier:  u u, u i, u f0, u a, a b, a i, b b
//   f = F(a or product)
//   scaled = .. * ..             second multiplier: product b, product c, c q, f b, product f0
//   moved = .. + ..              second adder:      scaled + c, product + c, product - p, product - f0
//   less = .. - ..               third adder:       moved - scaled, moved - label, 1 - product
//   back = less * (i or a)       third multiplier
#ifndef BTTLAB_PROCESSOR_VECTOR_UNIT_H
#define BTTLAB_PROCESSOR_VECTOR_UNIT_H

#include <cmath>

#include "nest.h"

enum VectorOperand { A_IN, B_IN, C_IN, R0_OUT, R1_OUT, STATISTIC_ROW };

// Partial sums of rows: a vector for each accumulator index. And the largest element of a row so far, with its place.
static Vector accumulator[2][ROW_ACCUMULATORS];
static float largest[ROW_ACCUMULATORS];
static Count largest_place[ROW_ACCUMULATORS];

// Inputs from the sample and the program, set before the loop: labels of the words, constants and scalars for either
// immediate, functions {base, mode, bits, low, high, steps, first}.
static Count labels[SEQUENCE];
static float immediates[2][CONSTANTS + LANES];
static IntVector functions[FUNCTIONS];

ALWAYS_INLINE float immediate(int i, const Nest &nest) {
    const int code = nest.immediate[i];
    return immediates[i][code >> 15 ? CONSTANTS + (code & (LANES - 1)) : code & (CONSTANTS - 1)];
}

// F of a vector, each lane with its own copy of the table. NaN stays NaN.
ALWAYS_INLINE Vector function_of(const IntVector &g, const Vector &x) {
#pragma HLS INLINE
    const int base = g[0], bits = g[2] & 15, mask = (1 << bits) - 1, first = g[6];
    const bool exponential = g[1] == EXPONENTIAL;
    const float low = float_of(g[3]), high = float_of(g[4]), steps = float_of(g[5]);
    Vector y;
Lanes_Unroll:
    UNROLL
    for (int l = 0; l < LANES; l++) {
        const float above = choose(x[l] < low, low, x[l]), clamped = choose(above > high, high, above);
        const float t = clamped * steps;
        const float whole = std::floor(t), d = t - whole;
        const int k = static_cast<int>(choose(is_finite(whole), whole, 0.0f));
        const int entry = (base + choose(exponential, k & mask, k - first)) & (FUNCTION_ENTRIES - 1);
        const float c0 = lane_table[l][0][entry], c1 = lane_table[l][1][entry], c2 = lane_table[l][2][entry];
        const float v = c0 + d * (c1 + d * c2);
        // Unsigned: an invalid table entry wraps around.
        const unsigned exponent = static_cast<unsigned>(choose(exponential, k >> bits, 0)) << 23;
        y[l] = float_of(static_cast<int>(static_cast<unsigned>(bits_of(v)) + exponent));
    }
    return y;
}
static_assert((FUNCTION_ENTRIES & (FUNCTION_ENTRIES - 1)) == 0, "entries are taken modulo their number");

// The first `count` lanes; zeros behind them.
ALWAYS_INLINE Vector first_lanes(const Vector &vector, int count) {
#pragma HLS INLINE
    Vector kept;
    UNROLL
    for (int l = 0; l < LANES; l++) kept[l] = choose(l < count, vector[l], 0.0f);
    return kept;
}

ALWAYS_INLINE Vector one_lane(const Vector &vector, int lane) {
#pragma HLS INLINE
    Vector kept;
    UNROLL
    for (int l = 0; l < LANES; l++) kept[l] = choose(l == lane, vector[l], 0.0f);
    return kept;
}

// Combines lane l with lane l + LANES/2, then l + LANES/4, and so on.
ALWAYS_INLINE float tree_of(const Vector &vector) {
#pragma HLS INLINE
    float sum[LANES];
#pragma HLS ARRAY_PARTITION variable=sum complete
    UNROLL
    for (int l = 0; l < LANES; l++) sum[l] = vector[l];
Tree_Unroll:
    UNROLL
    for (int level = 1; level <= TREE_LEVELS; level++) {
        UNROLL
        for (int l = 0; l < LANES / 2; l++) {
            if (l < LANES >> level) sum[l] = sum[l] + sum[l + (LANES >> level)];
        }
    }
    return sum[0];
}

struct Place {
    float value;
    int lane;
};

// The largest of the first `count` lanes, the first one if several are equal; NaN is ignored.
ALWAYS_INLINE Place largest_lane(const Vector &vector, int count) {
#pragma HLS INLINE
    const float least = float_of(0xff800000);
    Place best[LANES];
#pragma HLS ARRAY_PARTITION variable=best complete
    UNROLL
    for (int l = 0; l < LANES; l++) best[l] = {choose((l < count) & (vector[l] > least), vector[l], least), l};
Tree_Unroll:
    UNROLL
    for (int level = 0; level < TREE_LEVELS; level++) {
        UNROLL
        for (int l = 0; l < LANES; l++) {
            if (l % (2 << level) == 0) {
                const Place one = best[l], other = best[l + (1 << level)];
                const bool larger = other.value > one.value;
                best[l] = {choose(larger, other.value, one.value), choose(larger, other.lane, one.lane)};
            }
        }
    }
    return best[0];
}

// The largest element of a row up to this vector, and its place in the row; kept for the row's next vector if it is `used`.
ALWAYS_INLINE Place step_maximum(const Vector &a, int lanes, int vector_0, int row_index, bool first, bool used) {
#pragma HLS INLINE
    const Place here = largest_lane(a, lanes);
    const float so_far = choose(first, float_of(0xff800000), largest[row_index]);
    const int place_so_far = choose(first, 0, largest_place[row_index]);
    const bool larger = here.value > so_far;
    const Place best = {choose(larger, here.value, so_far), choose(larger, vector_0 + here.lane, place_so_far)};
    if (used) {
        largest[row_index] = best.value;
        largest_place[row_index] = best.lane;
    }
    return best;
}

struct VectorStep {
    bool writes_0, writes_1;
    Vector r0, r1;
};

// One bit per operation, registered when an instruction begins: the switches are derived from them.
struct VectorOperationBits {
    bool is[SOFTMAX_BACK + 1];
};

ALWAYS_INLINE void decode(VectorOperationBits &operation, const Instruction &instruction) {
    UNROLL
    for (int i = 0; i <= SOFTMAX_BACK; i++) operation.is[i] = (field(instruction, FIELD_OPERATION) >> 4 & 255) == i;
}

ALWAYS_INLINE VectorStep vector_step(const Nest &nest, const VectorOperationBits &operation, int intent, const Vector &a,
                                     const Vector &b_read, const Vector &c) {
#pragma HLS INLINE
    const auto &is = operation.is;
    const bool active = is_active(nest, 0), first = is_first(nest), last = active & is_last(nest);
    const Vector b = choose(nest.operand[B_IN].valid, b_read, choose(is[SUM], splat(-0.0f), a));
    const float f0 = immediate(0, nest), f1 = immediate(1, nest);
    const int row = (nest.operand[STATISTIC_ROW].at[0] + nest.accumulator) & (STATISTICS - 1);
    const int row_index = nest.accumulator & (ROW_ACCUMULATORS - 1), vector_0 = index_of(nest, nest.flags >> VECTOR_LEVEL_SHIFT & 3) * LANES;
    const int lanes = choose(nest.count != 0, nest.count - vector_0, LANES);
    const bool of_intent = nest.flags & INTENT;
    const int label = choose(of_intent, intent, labels[(nest.accumulator + 1) & (SEQUENCE - 1)]);
    const float m = statistic[0][row], i = statistic[1][row], p = statistic[2][row], q = statistic[3][row];

    const bool from_b = is[SOFTMAX_BACK], centred = is[VARIANCE] | is[NORMALIZE] | is[EXPONENT] | from_b;
    const Vector u = choose(from_b, b, a) + choose(centred, splat(-choose(from_b, p, m)), b);

    const bool scaled_by_i = is[NORMALIZE] | is[SCALE] | is[LOSS_BACK];
    const Vector left = choose(centred, u, choose(is[TANH_BACK], b, a));
    const Vector right = choose(scaled_by_i | is[EXPONENT], splat(choose(scaled_by_i, i, f0)),
                              choose(is[VARIANCE], u, choose(from_b, a, b)));
    const Vector product = left * right;

    const Vector function = function_of(functions[nest.operand[STATISTIC_ROW].where & (FUNCTIONS - 1)],
                                      choose(is[EXPONENT], product, a));

    const Vector factor = choose(is[NORM_SUMS], c, choose(is[NORM_BACK] | from_b, splat(choose(from_b, f0, q)), b));
    const Vector scaled = choose(is[NORM_BACK], c, choose(is[TIMES_FUNCTION], function, product)) * factor;

    const bool to_c = is[NORMALIZE] | is[AFFINE];
    const Vector moved = choose(is[NORMALIZE], scaled, product) + choose(to_c, c, splat(-choose(is[NORM_BACK], p, f0)));

    const Vector at_label = one_lane(splat(f1), label - vector_0);
    const Vector less = choose(is[TANH_BACK], splat(1.0f), moved) -
                      choose(is[TANH_BACK], product, choose(is[NORM_BACK], scaled, at_label));
    const Vector back = less * choose(is[TANH_BACK], a, splat(i));

    // Sums of rows.
    const bool adds = active & (is[SUM] | is[VARIANCE] | is[NORM_SUMS] | is[COLUMNS] | is[EXPONENT] | is[DOT]);
    const Vector value_0 = choose(is[SUM], u, choose(is[EXPONENT], function, product));
    const Vector value_1 = choose(is[NORM_SUMS], scaled, choose(is[COLUMNS], a, one_lane(u, label - vector_0)));
    const Vector before_0 = accumulator[0][row_index], before_1 = accumulator[1][row_index];
    const Vector sum_0 = choose(first, Vector{}, before_0) + first_lanes(value_0, lanes);
    const Vector sum_1 = choose(first, Vector{}, before_1) + first_lanes(value_1, lanes);
    if (adds) {
        accumulator[0][row_index] = sum_0;
        accumulator[1][row_index] = sum_1;
    }
    const float total_0 = tree_of(sum_0), total_1 = tree_of(sum_1);

    const Place best = step_maximum(a, lanes, vector_0, row_index, first, active & is[MAXIMUM]);

    // The results of a row, at its last vector.
    const float mean_0 = f0 * total_0, mean_1 = f0 * total_1;
    const float quotient = choose(is[EXPONENT], f1, 1.0f) / choose(is[EXPONENT], total_0, std::sqrt(mean_0 + f1));
    if (last & (is[SUM] | is[MAXIMUM])) statistic[0][row] = choose(is[SUM], mean_0, best.value);
    if (last & (is[VARIANCE] | is[EXPONENT])) statistic[1][row] = quotient;
    if (last & (is[NORM_SUMS] | is[DOT])) statistic[2][row] = choose(is[DOT], total_0, mean_0);
    if (last & is[NORM_SUMS]) statistic[3][row] = mean_1;
    const int kept = choose(of_intent, LAST_ROW, nest.accumulator & (SEQUENCE - 1));
    if (last & is[EXPONENT] & ((nest.flags & LOSS) != 0)) {
        loss_sum[kept] = total_0;
        loss_margin[kept] = total_1;
    }
    if (last & is[MAXIMUM]) argument[kept] = best.lane;

    const bool is_u = is[ADD] | is[SUM], is_product = is[NORMALIZE] | is[SCALE];
    const bool is_function = is[FUNCTION] | is[EXPONENT], is_back = is[NORM_BACK] | is[TANH_BACK];
    const bool is_scaled = is[TIMES_FUNCTION] | from_b;
    const bool gives_none = is[VARIANCE] | is[NORM_SUMS] | is[MAXIMUM] | is[DOT];
    const Vector r0 = choose(is[COPY], a, choose(is_u, u, choose(is_product, product, choose(is_function, function,
                    choose(is_back, back, choose(is_scaled, scaled, choose(is[AFFINE], moved,
                    choose(is[COLUMNS], sum_0, less))))))));
    const bool writes = (last | (active & !is[COLUMNS])) & !gives_none;
    const bool writes_1 = writes & (is[NORMALIZE] | is[COLUMNS]);
    return {writes, writes_1, first_lanes(r0, lanes),
            first_lanes(choose(is[COLUMNS], sum_1, moved), lanes)};
}

#endif
