// A step of the vector unit: `row_step` on the vectors of the banks, then the sums of rows.
#ifndef BTTLAB_PROCESSOR_VECTOR_UNIT_H
#define BTTLAB_PROCESSOR_VECTOR_UNIT_H

#include "nest.h"
#include "row_step.h"

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

// The largest element of a row up to this vector, and its place in the row; kept for the row's next vector if it is `used`.
ALWAYS_INLINE Largest step_maximum(const Vector &a, int lanes, int vector_0, int row_index, bool first, bool used) {
#pragma HLS INLINE
    const Largest here = largest_lane(a, lanes);
    const float so_far = choose(first, float_of(0xff800000), largest[row_index]);
    const Largest best = larger_of({so_far, choose(first, 0, largest_place[row_index])}, here, vector_0);
    if (used) {
        largest[row_index] = best.value;
        largest_place[row_index] = best.place;
    }
    return best;
}

struct VectorStep {
    bool writes_0, writes_1;
    Vector r0, r1;
};

// Registered when an instruction begins.
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
    const int row = (nest.operand[STATISTIC_ROW].at[0] + nest.accumulator) & (STATISTICS - 1);
    const int row_index = nest.accumulator & (ROW_ACCUMULATORS - 1), vector_0 = index_of(nest, nest.flags >> VECTOR_LEVEL_SHIFT & 3) * LANES;
    const int lanes = choose(nest.count != 0, nest.count - vector_0, LANES);
    const bool of_intent = nest.flags & INTENT;
    const int label = choose(of_intent, intent, labels[(nest.accumulator + 1) & (SEQUENCE - 1)]);
    const RowFactors by = {immediate(0, nest), immediate(1, nest), statistic[0][row], statistic[1][row],
                           statistic[2][row], statistic[3][row]};
    const IntVector &function = functions[nest.operand[STATISTIC_ROW].where & (FUNCTIONS - 1)];
    const RowStep<Vector> of = row_step(operation, by, label - vector_0, a, b, c,
                                        [&](const Vector &x) { return function_of(function, x); });

    // Sums of rows.
    const bool adds = active & (is[SUM] | is[VARIANCE] | is[NORM_SUMS] | is[COLUMNS] | is[EXPONENT] | is[DOT]);
    const Vector before_0 = accumulator[0][row_index], before_1 = accumulator[1][row_index];
    const Vector sum_0 = choose(first, Vector{}, before_0) + first_lanes(of.value_0, lanes);
    const Vector sum_1 = choose(first, Vector{}, before_1) + first_lanes(of.value_1, lanes);
    if (adds) {
        accumulator[0][row_index] = sum_0;
        accumulator[1][row_index] = sum_1;
    }
    const float total_0 = tree_of(sum_0), total_1 = tree_of(sum_1);

    const Largest best = step_maximum(a, lanes, vector_0, row_index, first, active & is[MAXIMUM]);

    const int kept = choose(of_intent, LAST_ROW, nest.accumulator & (SEQUENCE - 1));
    write_statistics(operation, by, last, row, (nest.flags & LOSS) != 0, kept, total_0, total_1, best);

    const bool gives_none = is[VARIANCE] | is[NORM_SUMS] | is[MAXIMUM] | is[DOT];
    const bool writes = (last | (active & !is[COLUMNS])) & !gives_none;
    const bool writes_1 = writes & (is[NORMALIZE] | is[COLUMNS]);
    return {writes, writes_1, first_lanes(choose(is[COLUMNS], sum_0, of.r0), lanes),
            first_lanes(choose(is[COLUMNS], sum_1, of.r1), lanes)};
}

#endif
