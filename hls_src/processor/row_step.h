// What a step of the vector unit computes: one chain of operators with a multiplexer before each, and the statistics of rows.
// V is a vector of the machine, or of the functional model, for which the operation is known when it is compiled.
//
//   u = left + right             first adder:       a + b, a - m, b - p
//   product = .. * ..            first multiplier:  u u, u i, u f0, u a, a b, a i, b b
//   f = F(a or product)
//   scaled = .. * ..             second multiplier: product b, product c, c q, f b, product f0
//   moved = .. + ..              second adder:      scaled + c, product + c, product - p, product - f0
//   less = .. - ..               third adder:       moved - scaled, moved - label, 1 - product
//   back = less * (i or a)       third multiplier
#ifndef BTTLAB_PROCESSOR_ROW_STEP_H
#define BTTLAB_PROCESSOR_ROW_STEP_H

#include <cmath>

#include "state.h"

enum VectorOperand { A_IN, B_IN, C_IN, R0_OUT, R1_OUT, STATISTIC_ROW };

// One bit per operation: the switches are derived from them.
struct VectorOperationBits {
    bool is[SOFTMAX_BACK + 1];
};

// Immediates of the instruction, and statistics of the row.
struct RowFactors {
    float f0, f1, m, i, p, q;
};

// Terms of a row's two sums, and results; those of COLUMNS are its sums.
template <class V>
struct RowStep {
    V value_0, value_1, r0, r1;
};

// `label`: lane of the label, which may be outside of this vector.
template <class V, class F>
ALWAYS_INLINE RowStep<V> row_step(const VectorOperationBits &operation, const RowFactors &by, int label, const V &a,
                                  const V &b, const V &c, F function_of) {
#pragma HLS INLINE
    const auto &is = operation.is;
    const bool from_b = is[SOFTMAX_BACK], centred = is[VARIANCE] | is[NORMALIZE] | is[EXPONENT] | from_b;
    const V u = choose(from_b, b, a) + choose(centred, splat<V>(-choose(from_b, by.p, by.m)), b);

    const bool scaled_by_i = is[NORMALIZE] | is[SCALE] | is[LOSS_BACK];
    const V left = choose(centred, u, choose(is[TANH_BACK], b, a));
    const V right = choose(scaled_by_i | is[EXPONENT], splat<V>(choose(scaled_by_i, by.i, by.f0)),
                           choose(is[VARIANCE], u, choose(from_b, a, b)));
    const V product = left * right;

    const V function = function_of(choose(is[EXPONENT], product, a));

    const V factor = choose(is[NORM_SUMS], c, choose(is[NORM_BACK] | from_b, splat<V>(choose(from_b, by.f0, by.q)), b));
    const V scaled = choose(is[NORM_BACK], c, choose(is[TIMES_FUNCTION], function, product)) * factor;

    const bool to_c = is[NORMALIZE] | is[AFFINE];
    const V moved = choose(is[NORMALIZE], scaled, product) + choose(to_c, c, splat<V>(-choose(is[NORM_BACK], by.p, by.f0)));

    const V at_label = one_lane(splat<V>(by.f1), label);
    const V less = choose(is[TANH_BACK], splat<V>(1.0f), moved) -
                   choose(is[TANH_BACK], product, choose(is[NORM_BACK], scaled, at_label));
    const V back = less * choose(is[TANH_BACK], a, splat<V>(by.i));

    const bool is_u = is[ADD] | is[SUM], is_product = is[NORMALIZE] | is[SCALE];
    const bool is_function = is[FUNCTION] | is[EXPONENT], is_back = is[NORM_BACK] | is[TANH_BACK];
    const bool is_scaled = is[TIMES_FUNCTION] | from_b;
    return {choose(is[SUM], u, choose(is[EXPONENT], function, product)),
            choose(is[NORM_SUMS], scaled, choose(is[COLUMNS], a, one_lane(u, label))),
            choose(is[COPY], a, choose(is_u, u, choose(is_product, product, choose(is_function, function,
                   choose(is_back, back, choose(is_scaled, scaled, choose(is[AFFINE], moved, less))))))),
            moved};
}

// The largest element of a row, and its place in the row or in a vector.
struct Largest {
    float value;
    int place;
};

// The largest of the first `count` lanes, the first one if several are equal; NaN is ignored.
ALWAYS_INLINE Largest largest_lane(const Vector &vector, int count) {
#pragma HLS INLINE
    const float least = float_of(0xff800000);
    Largest best[LANES];
#pragma HLS ARRAY_PARTITION variable=best complete
    UNROLL
    for (int l = 0; l < LANES; l++) best[l] = {choose((l < count) & (vector[l] > least), vector[l], least), l};
Tree_Unroll:
    UNROLL
    for (int level = 0; level < TREE_LEVELS; level++) {
        UNROLL
        for (int l = 0; l < LANES; l++) {
            if (l % (2 << level) == 0) {
                const Largest left = best[l], right = best[l + (1 << level)];
                const bool larger = right.value > left.value;
                best[l] = {choose(larger, right.value, left.value), choose(larger, right.place, left.place)};
            }
        }
    }
    return best[0];
}

// The larger of a row's elements so far and those of a vector, whose first lane has the place `vector_0` in the row.
ALWAYS_INLINE Largest larger_of(const Largest &so_far, const Largest &here, int vector_0) {
#pragma HLS INLINE
    const bool larger = here.value > so_far.value;
    return {choose(larger, here.value, so_far.value), choose(larger, vector_0 + here.place, so_far.place)};
}

// Statistics of row `row`, and the terms of the loss `kept`, from the row's sums after its `last` vector.
ALWAYS_INLINE void write_statistics(const VectorOperationBits &operation, const RowFactors &by, bool last, int row,
                                    bool of_loss, int kept, float total_0, float total_1, const Largest &best) {
#pragma HLS INLINE
    const auto &is = operation.is;
    const float mean_0 = by.f0 * total_0, mean_1 = by.f0 * total_1;
    const float quotient = choose(is[EXPONENT], by.f1, 1.0f) / choose(is[EXPONENT], total_0, std::sqrt(mean_0 + by.f1));
    if (last & (is[SUM] | is[MAXIMUM])) statistic[0][row] = choose(is[SUM], mean_0, best.value);
    if (last & (is[VARIANCE] | is[EXPONENT])) statistic[1][row] = quotient;
    if (last & (is[NORM_SUMS] | is[DOT])) statistic[2][row] = choose(is[DOT], total_0, mean_0);
    if (last & is[NORM_SUMS]) statistic[3][row] = mean_1;
    if (last & is[EXPONENT] & of_loss) {
        loss_sum[kept] = total_0;
        loss_margin[kept] = total_1;
    }
    if (last & is[MAXIMUM]) argument[kept] = best.place;
}

#endif
