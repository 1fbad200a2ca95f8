// The vector unit: loops over rows of steps, compiled once per operation.
#ifndef BTTLAB_PROCESSOR_EMULATION_VECTOR_UNIT_H
#define BTTLAB_PROCESSOR_EMULATION_VECTOR_UNIT_H

#include <utility>

#include "../row_step.h"
#include "order.h"

static Vector accumulator[2][ROW_ACCUMULATORS];
static Largest largest[ROW_ACCUMULATORS];

// What largest_lane of row_step.h gives.
static inline Largest largest_of(const Lanes &vector, int count) {
    const Part zero = {}, least = -__builtin_inff() - zero;
    Lanes value;
    UNROLL
    for (int i = 0; i < PARTS; i++) {
        const IntPart counts = (vector.part[i] > least) & (reinterpret_cast<const IntPart *>(LANE_NUMBERS)[i] < count);
        value.part[i] = (Part)(((IntPart)vector.part[i] & counts) | ((IntPart)least & ~counts));
    }
    const int place = __builtin_ctz(lanes_equal(value, largest_value(value)));
    Vector values;
    store(&values, value);
    return {scalar_of(&values, place), place};
}

// The coefficients of a table entry, contiguous so that one load reads all of them.
static float function_rows[FUNCTION_ENTRIES][4] __attribute__((aligned(16)));

static void take_functions() {
    for (int entry = 0; entry < FUNCTION_ENTRIES; entry++) {
        for (int c = 0; c < 3; c++) function_rows[entry][c] = function_table[c][entry];
    }
}

// Where the arguments of a vector lie in the table of a function.
struct Located {
    Lanes beyond;          // how far each is from the beginning of its part, in parts
    IntPart part[PARTS];   // the number of its part, from that of 0 on
    IntPart place[PARTS];  // the address of its entry, in bytes
};

// NaN is in some part, and beyond its beginning by NaN.
static inline void locate(const Function &g, const Lanes &x, Located &found) {
    UNROLL
    for (int i = 0; i < PARTS; i++) {
        const Part zero = {}, low = g.low - zero, high = g.high - zero;
        const Part above = x.part[i] < low ? low : x.part[i], clamped = above > high ? high : above;
        const Part t = clamped * (g.steps - zero);
        const IntPart is_finite = ((IntPart)t & 0x7fffffff) < 0x7f800000;
        const IntPart whole = __builtin_convertvector((Part)((IntPart)t & is_finite), IntPart);
        const IntPart k = whole + (__builtin_convertvector(whole, Part) > t);  // true is -1
        found.beyond.part[i] = t - __builtin_convertvector(k, Part);
        const IntPart j = g.mode == EXPONENTIAL ? k & ((1 << g.bits) - 1) : k - g.first;
        found.part[i] = k;
        found.place[i] = ((j + g.base) & (FUNCTION_ENTRIES - 1)) * static_cast<int>(sizeof(function_rows[0]));
    }
}
static_assert((FUNCTION_ENTRIES & (FUNCTION_ENTRIES - 1)) == 0, "entries are taken modulo their number");

// F of each lane of a vector. NaN stays NaN.
static inline Lanes function_at(const Function &g, const Located &found) {
    typedef unsigned Place __attribute__((may_alias));
    const Place *place = reinterpret_cast<const Place *>(found.place);
    const auto entry = [&](int l) {
        return reinterpret_cast<const float *>(reinterpret_cast<const char *>(function_rows) + place[l]);
    };
    Lanes row[4], c[4];  // four entries each; coefficients
    UNROLL
    for (int i = 0; i < 4; i++) row[i] = join(entry(i), entry(i + 4), entry(i + 8), entry(i + 12));
    transpose(row, c);
    Lanes v = c[0] + found.beyond * (c[1] + found.beyond * c[2]);
    if (g.mode != EXPONENTIAL) return v;
    UNROLL
    for (int i = 0; i < PARTS; i++) {
        v.part[i] = (Part)((UnsignedPart)v.part[i] + ((UnsignedPart)(found.part[i] >> g.bits) << 23));
    }
    return v;
}

static constexpr bool adds_rows(int operation) {
    return operation == SUM || operation == VARIANCE || operation == NORM_SUMS || operation == COLUMNS ||
           operation == MAXIMUM || operation == EXPONENT || operation == DOT;
}

static constexpr bool writes_vectors(int operation) {
    return !adds_rows(operation) || operation == SUM || operation == EXPONENT;
}

static constexpr bool knows_rows(int operation) {
    return adds_rows(operation) || operation == NORMALIZE || operation == NORM_BACK || operation == SCALE ||
           operation == LOSS_BACK || operation == SOFTMAX_BACK;
}

// Chooses the level that rows run along, so that a row's statistics and sums stay in registers; -1 if each step is a row
// of its own.
static int row_along(const Nest &nest, int operation) {
    const Instruction &code = *nest.code;
    int along = -1;
    const int inner = innermost(active_box(nest));
    if (adds_rows(operation)) {
        // The innermost summed level, so that terms keep their order.
        for (int j = 0; j < LEVELS; j++) along = code.depth_mask >> j & 1 && nest.end[j] > 1 ? j : along;
    } else if (!knows_rows(operation) && nest.operand[A_IN].stride[inner] == 1) {
        along = inner;
    } else {
        for (int j = 0; j < LEVELS; j++) {
            if (knows_rows(operation) && nest.accumulator_weight[j]) continue;
            along = nest.end[j] > 1 && (along < 0 || nest.end[j] > nest.end[along]) ? j : along;
        }
    }
    if (along < 0 || (knows_rows(operation) && nest.accumulator_weight[along])) return -1;
    // Levels inside it become outer loops: each of their steps must be a separate row, and no step may read what another writes.
    if (along == inner) return along;
    int last_accumulator = 0;
    for (int j = 0; j < LEVELS; j++) {
        if (j > along && nest.end[j] > 1 && adds_rows(operation) && !nest.accumulator_weight[j]) return -1;
        last_accumulator += (nest.n[j] - 1) * nest.accumulator_weight[j];
    }
    if (knows_rows(operation) && last_accumulator >= ROW_ACCUMULATORS) return -1;
    const Tiled tiled = {along, -1};
    for (int to = R0_OUT; to <= R1_OUT; to++) {
        if (!code.operand[to].valid) continue;
        const Reach &result = nest.operand[to];
        if (operation != COLUMNS && !is_one_to_one(nest, result, tiled)) return -1;
        for (int o = A_IN; o <= C_IN; o++) {
            const bool is_apart = nest.operand[o].memory != result.memory || are_apart(nest, nest.operand[o], result);
            if (operation == COLUMNS ? !is_apart : !is_not_fed(nest, o, result)) return -1;
        }
    }
    const Reach &r0 = nest.operand[R0_OUT], &r1 = nest.operand[R1_OUT];
    if (code.operand[R1_OUT].valid && r0.memory == r1.memory && overlap(r0, r1)) return -1;
    return along;
}

struct RowPlan {
    int along;         // the level that rows run along; -1: none
    bool is_whole;     // each row contains all terms of its sum
    bool looks_ahead;  // no step reads as `a` what another step writes
};

static RowPlan plan_rows(const Nest &nest) {
    const Instruction &code = *nest.code;
    const int along = row_along(nest, code.operation);
    bool is_whole = true;
    for (int j = 0; j < LEVELS; j++) {
        const bool is_outside = nest.end[j] > 1 && (j != along || is_any_offset(nest, j));
        is_whole &= !(code.depth_mask >> j & 1) || (!is_outside && nest.end[j] == nest.active[j]);
    }
    return {along, is_whole, is_not_fed(nest, A_IN, nest.operand[R0_OUT])};
}

// A row: its index among the statistics and among the terms of the loss, its statistics before the instruction, its sums.
struct Row {
    int number, kept;
    RowFactors by;
    Lanes sum, sum_1;
    Largest best;
};

static constexpr VectorOperationBits bits_of_operation(int operation) {
    VectorOperationBits bits = {};
    bits.is[operation] = true;
    return bits;
}

template <int OPERATION>
static constexpr VectorOperationBits operation_bits = bits_of_operation(OPERATION);

constexpr int AHEAD = 16;  // vectors whose arguments are located before their functions are read

// All rows of an instruction. WHOLE: all lanes of all vectors are valid.
template <int OPERATION, bool WHOLE>
static void vector_rows(const Nest &nest, const RowPlan &plan, const Sample &sample, Run &run) {
    const Instruction &code = *nest.code;
    const float f0 = immediate_value(code.immediate[0], sample), f1 = immediate_value(code.immediate[1], sample);
    const bool check = code.flags & CHECK, is_intent = code.flags & INTENT;
    const bool marks_0 = check && code.operand[R0_OUT].valid, marks_1 = check && code.operand[R1_OUT].valid;
    constexpr const VectorOperationBits &operation = operation_bits<OPERATION>;
    constexpr bool has_second_sum = OPERATION == NORM_SUMS || OPERATION == COLUMNS || OPERATION == EXPONENT;
    const bool has_b = OPERATION != SUM || code.operand[B_IN].valid;  // else it is a copy of a
    constexpr bool has_function = OPERATION == FUNCTION || OPERATION == TIMES_FUNCTION || OPERATION == EXPONENT;
    const int ahead = plan.looks_ahead ? AHEAD : 1;  // a power of two
    Located located[AHEAD];
    const Function &function = program.function[code.operand[STATISTIC_ROW].where % FUNCTIONS];
    const Lanes zero = splat<Lanes>(0.0f);
    const int along = plan.along, vectors_along = along == code.vector_level ? LANES : 0;
    const bool is_whole = plan.is_whole;
    Marks marks = {};
    each_row(nest, active_box(nest), along, [&](const Step &step, int count, const long *strides) {
        const int number = (code.operand[STATISTIC_ROW].base + step.accumulator) % STATISTICS, place = step.accumulator % ROW_ACCUMULATORS;
        const int label = is_intent ? sample.intent : sample.slot[(step.accumulator + 1) % SEQUENCE];
        const auto vector = [&](int o) { return nest.operand[o].memory + step.offset[o]; };
        const Vector *from_a = vector(A_IN), *from_b = vector(B_IN), *from_c = vector(C_IN);
        Vector *to_0 = vector(R0_OUT), *to_1 = vector(R1_OUT);
        const bool first = is_whole || is_first(nest, step);
        Row row = {number, is_intent ? LAST_ROW : step.accumulator % SEQUENCE,
                   {f0, f1, statistic[0][number], statistic[1][number], statistic[2][number], statistic[3][number]},
                   first ? zero : load(&accumulator[0][place]), first ? zero : load(&accumulator[1][place]),
                   first ? Largest{-__builtin_inff(), 0} : largest[place]};
        const int first_vector = step.index[code.vector_level] * LANES;
        Lanes valid = first_lanes(LANES);
        for (int n = 0; n < count; n++, from_a += strides[A_IN], from_b += strides[B_IN], from_c += strides[C_IN]) {
            const int vector_0 = first_vector + n * vectors_along;
            if (OPERATION == MAXIMUM) {
                row.best = larger_of(row.best, largest_of(load(from_a), WHOLE ? LANES : nest.count - vector_0), vector_0);
                continue;
            }
            if (!WHOLE) valid = first_lanes(nest.count - vector_0);
            const auto cut = [&](const Lanes &value) { return WHOLE ? value : value & valid; };
            const Lanes a = load(from_a), b = has_b ? load(from_b) : splat<Lanes>(-0.0f);
            for (int i = n; has_function && (n & (ahead - 1)) == 0 && i < n + ahead && i < count; i++) {
                row_step(operation, row.by, 0, load(from_a + (i - n) * strides[A_IN]), b, b, [&](const Lanes &x) {
                    locate(function, x, located[i - n]);
                    return x;
                });
            }
            const RowStep<Lanes> of = row_step(operation, row.by, label - vector_0, a, b, load(from_c), [&](const Lanes &) {
                return has_function ? function_at(function, located[n & (ahead - 1)]) : zero;
            });
            if (adds_rows(OPERATION)) row.sum = row.sum + cut(of.value_0);
            if (has_second_sum) row.sum_1 = row.sum_1 + cut(of.value_1);
            if (!writes_vectors(OPERATION)) continue;
            const Lanes r0 = cut(of.r0);
            if (marks_0) mark_overflow(marks, r0, STATE_LIMIT);
            store(to_0 + n * strides[R0_OUT], r0);
            if (OPERATION == NORMALIZE) {
                const Lanes r1 = cut(of.r1);
                if (marks_1) mark_overflow(marks, r1, STATE_LIMIT);
                store(to_1 + n * strides[R1_OUT], r1);
            }
        }
        if (!adds_rows(OPERATION)) return;
        if (!is_whole) {
            largest[place] = row.best;
            store(&accumulator[0][place], row.sum);
            store(&accumulator[1][place], row.sum_1);
            if (along >= 0) step.index[along] += count - 1;
            const bool last = is_last(nest, step);
            if (along >= 0) step.index[along] -= count - 1;
            if (!last) return;
        }
        if (OPERATION == COLUMNS) {
            const Lanes sums[] = {row.sum & valid, row.sum_1 & valid};
            if (marks_0) mark_overflow(marks, sums[0], STATE_LIMIT);
            if (marks_1) mark_overflow(marks, sums[1], STATE_LIMIT);
            store(to_0 + (count - 1) * strides[R0_OUT], sums[0]);
            store(to_1 + (count - 1) * strides[R1_OUT], sums[1]);
        }
        write_statistics(operation, row.by, true, row.number, code.flags & LOSS, row.kept, tree_of(row.sum), tree_of(row.sum_1),
                         row.best);
    });
    if (check) run.overflow |= any_mark(marks);
}

// COLUMNS with whole rows, all lanes of which are valid: a vector of sums at a time, since most have few terms.
static void add_columns(const Nest &nest, int along, Run &run) {
    const Instruction &code = *nest.code;
    const bool has[2] = {code.operand[R0_OUT].valid, code.operand[R1_OUT].valid};
    Box box = active_box(nest);
    const int last = box.to[along];
    box.to[along] = 0;
    const auto next = [&](int o) { return static_cast<long>(nest.operand[o].stride[along]); };
    const long next_a = next(A_IN), next_b = next(B_IN);
    Marks marks = {};
    each_row(nest, box, innermost(box), [&](const Step &step, int count, const long *strides) {
        const auto vector = [&](int o) { return nest.operand[o].memory + step.offset[o]; };
        const Vector *from_a = vector(A_IN), *from_b = vector(B_IN);
        Vector *to[2] = {vector(R0_OUT) + last * next(R0_OUT), vector(R1_OUT) + last * next(R1_OUT)};
        const long stride_a = strides[A_IN], stride_b = strides[B_IN], stride[2] = {strides[R0_OUT], strides[R1_OUT]};
        for (int n = 0; n < count; n++) {
            const Lanes zero = splat<Lanes>(0.0f);
            Lanes sum[2] = {zero, zero};
            for (int t = 0; t <= last; t++) {
                const Lanes a = load(from_a + n * stride_a + t * next_a), b = load(from_b + n * stride_b + t * next_b);
                const RowStep<Lanes> of = row_step(operation_bits<COLUMNS>, {}, 0, a, b, b, [&](const Lanes &) { return zero; });
                sum[0] = sum[0] + of.value_0;
                sum[1] = sum[1] + of.value_1;
            }
            UNROLL
            for (int i = 0; i < 2; i++) {
                if (!has[i]) continue;
                mark_overflow(marks, sum[i], STATE_LIMIT);
                store(to[i] + n * stride[i], sum[i]);
            }
        }
    });
    if (code.flags & CHECK) run.overflow |= any_mark(marks);
}

typedef void VectorRows(const Nest &, const RowPlan &, const Sample &, Run &);

template <int... OPERATION>
static VectorRows *rows_of(int operation, bool whole, std::integer_sequence<int, OPERATION...>) {
    static VectorRows *const rows[][2] = {{vector_rows<OPERATION, false>, vector_rows<OPERATION, true>}...};
    return rows[operation][whole];
}

static void place_vector(Nest &nest, const Sample &sample) {
    const Instruction &code = *nest.code;
    const Box box = active_box(nest);
    Box writes = box;
    if (code.operation == COLUMNS) {
        for (int j = 0; j < LEVELS; j++) {
            if (code.depth_mask >> j & 1) writes.from[j] = nest.active[j] - 1;
        }
    }
    place_in_bank(nest, A_IN, &zero_vector, box, sample);
    place_in_bank(nest, B_IN, &zero_vector, box, sample);
    if (!code.operand[B_IN].valid) nest.operand[B_IN] = nest.operand[A_IN];
    place_in_bank(nest, C_IN, &zero_vector, box, sample);
    place_in_bank(nest, R0_OUT, &scratch_vector, writes, sample);
    place_in_bank(nest, R1_OUT, &scratch_vector, writes, sample);
    place_nowhere(nest, STATISTIC_ROW, &scratch_vector);
}

static void run_vector(const Nest &nest, const RowPlan &plan, const Sample &sample, Run &run) {
    if (nest.code->operation > SOFTMAX_BACK) return;
    if (nest.code->operation == COLUMNS && plan.along >= 0 && plan.is_whole && nest.count == 0) {
        return add_columns(nest, plan.along, run);
    }
    typedef std::make_integer_sequence<int, SOFTMAX_BACK + 1> Operations;
    rows_of(nest.code->operation, nest.count == 0, Operations{})(nest, plan, sample, run);
}

#endif
