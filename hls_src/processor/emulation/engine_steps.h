// Engines and drains step by step, in the order of the nest: for nests that tiles.h does not handle, or whose steps read
// what other steps write.
#ifndef BTTLAB_PROCESSOR_EMULATION_ENGINE_STEPS_H
#define BTTLAB_PROCESSOR_EMULATION_ENGINE_STEPS_H

#include "nest.h"

enum EngineOperand { BUFFER_IN, STREAM, SCALARS_IN, ADDEND, BANK_OUT, BUFFER_OUT };

// Row r of an operand buffer, for an operand whose address was resolved in row 0.
static inline Vector *buffer_row(const Reach &reach, int r) { return reach.memory + r * BUFFER_PITCH; }

static inline int used_rows(const Nest &nest) { return nest.count < ROWS ? nest.count : ROWS; }

static void place_held(Nest &nest, int o, int engine, Vector *missing, const Box &box, const Sample &sample) {
    if (nest.code->operand[o].valid) {
        place(nest, o, operand_buffer[engine][0], OPERAND_BUFFER_DEPTH, box, sample);
    } else {
        place_nowhere(nest, o, missing);
    }
}

// The level that a REDUCE runs along: the one of its depth mask.
static inline int depth_level(const Nest &nest) {
    for (int j = 0; j < LEVELS - 1; j++) {
        if (nest.code->depth_mask >> j & 1) return j;
    }
    return LEVELS - 1;
}

static Box engine_reads(const Nest &nest) {
    Box reads = active_box(nest);
    if (nest.code->operation == REDUCE) {
        const int f = depth_level(nest), fold = nest.n[f] - 1;
        reads.to[f] = nest.end[f] - 1 < fold ? nest.end[f] - 1 : fold - 1;
    }
    return reads;
}

static void place_read(Nest &nest, int o, const Box &reads, const Sample &sample) {
    if (o == BUFFER_IN) return place_held(nest, o, nest.code->unit - ENGINE_0, zero_rows, reads, sample);
    place_in_bank(nest, o, &zero_vector, reads, sample);
}

static void place_engine(Nest &nest, const Sample &sample) {
    const Instruction &code = *nest.code;
    const Box reads = engine_reads(nest);
    Box writes = active_box(nest);
    if (code.operation == REDUCE) {
        const int f = depth_level(nest);
        writes.from[f] = nest.n[f] - 1;  // that step may be inactive
    }
    for (int o = BUFFER_IN; o <= SCALARS_IN; o++) place_read(nest, o, reads, sample);
    place_in_bank(nest, ADDEND, &zero_vector, writes, sample);
    place_in_bank(nest, BANK_OUT, &scratch_vector, writes, sample);
    place_held(nest, BUFFER_OUT, code.operand[BUFFER_OUT].where % ENGINES, &scratch_vector, writes, sample);
}

static inline void write_result(const Nest &nest, const Step &step, const Lanes &value, Marks &marks) {
    mark_overflow(marks, value, STATE_LIMIT);
    store(nest.operand[BANK_OUT].memory + step.offset[BANK_OUT], value);
    const int row = nest.code->operand[BUFFER_OUT].valid ? row_of(nest, step) : 0;
    store(buffer_row(nest.operand[BUFFER_OUT], row) + step.offset[BUFFER_OUT], value);
}

static void expand_steps(const Nest &nest, Marks &marks) {
    const int k = used_rows(nest);
    each_step(nest, active_box(nest), [&](const Step &step) {
        const Vector *scalars = nest.operand[SCALARS_IN].memory + step.offset[SCALARS_IN];
        Lanes sum = load(nest.operand[ADDEND].memory + step.offset[ADDEND]);
        for (int r = 0; r < k; r++) {
            sum = sum + splat<Lanes>(scalar_of(scalars, r)) * load(buffer_row(nest.operand[BUFFER_IN], r) + step.offset[BUFFER_IN]);
        }
        write_result(nest, step, sum, marks);
    });
}

static void accumulate_steps(const Nest &nest) {
    const int k = used_rows(nest);
    Vector(*row)[ACCUMULATORS] = sums[nest.code->unit - ENGINE_0][nest.code->flags & PONG ? 1 : 0];
    each_step(nest, active_box(nest), [&](const Step &step) {
        const bool first = is_first(nest, step);
        const Lanes stream = load(nest.operand[STREAM].memory + step.offset[STREAM]);
        const Vector *scalars = nest.operand[SCALARS_IN].memory + step.offset[SCALARS_IN];
        for (int r = 0; r < ROWS; r++) {
            Vector *sum = &row[r][step.accumulator % ACCUMULATORS];
            store(sum, (first ? splat<Lanes>(0.0f) : load(sum)) + stream * splat<Lanes>(r < k ? scalar_of(scalars, r) : 0.0f));
        }
    });
}

static void reduce_steps(const Nest &nest, Marks &marks) {
    const int k = used_rows(nest), f = depth_level(nest);
    Vector(*row)[ACCUMULATORS] = sums[nest.code->unit - ENGINE_0][nest.code->flags & PONG ? 1 : 0];
    each_step(nest, active_box(nest), [&](const Step &step) {
        const int accumulator = step.accumulator % ACCUMULATORS;
        if (step.index[f] < nest.n[f] - 1) {
            const bool first = is_first(nest, step);
            const Lanes stream = load(nest.operand[STREAM].memory + step.offset[STREAM]);
            for (int r = 0; r < ROWS; r++) {
                const Lanes product = stream * load(buffer_row(nest.operand[BUFFER_IN], r) + step.offset[BUFFER_IN]);
                store(&row[r][accumulator], (first ? splat<Lanes>(0.0f) : load(&row[r][accumulator])) + product);
            }
            return;
        }
        Vector result = {};
        for (int r = 0; r < k; r++) result[r] = tree_of(load(&row[r][accumulator]));
        if (nest.code->operand[ADDEND].valid) {
            const Vector *addend = nest.operand[ADDEND].memory + step.offset[ADDEND];
            for (int r = 0; r < k; r++) result[r] += scalar_of(addend, r);
        }
        if ((nest.code->flags & ONE) && k < ROWS) result[k] = 1.0f;
        write_result(nest, step, load(&result), marks);
    });
}

static void place_drain(Nest &nest, const Sample &sample) {
    const Box box = active_box(nest);
    Vector *pong = sums[nest.code->unit - DRAIN_0][nest.code->flags & PONG ? 1 : 0][0];
    place(nest, BUFFER_IN, pong, ACCUMULATORS, box, sample);
    place_in_bank(nest, BANK_OUT, &scratch_vector, box, sample);
}

// A line of vectors; their strides.
template <bool CHECKS>
static inline void move_line(const Vector *from, long from_stride, Vector *to, long to_stride, int count, Marks &marks) {
    for (int n = 0; n < count; n++, from += from_stride, to += to_stride) {
        const Lanes value = load(from);
        if (CHECKS) mark_overflow(marks, value, STATE_LIMIT);
        store(to, value);
    }
}

static void run_drain(const Nest &nest, Run &run) {
    const Box box = active_box(nest);
    const Reach &from = nest.operand[BUFFER_IN];
    Marks marks = {};
    const int inner = innermost(box), rows = nest.code->row_level == inner;
    const bool check = nest.code->flags & CHECK;
    const auto move = check ? move_line<true> : move_line<false>;
    each_row(nest, box, inner, [&](const Step &step, int count, const long *stride) {
        const Vector *vector = from.memory + step.offset[BUFFER_IN];
        Vector *to = nest.operand[BANK_OUT].memory + step.offset[BANK_OUT];
        const long from_stride = stride[BUFFER_IN] + rows * ACCUMULATORS;
        for (int n = 0, row = row_of(nest, step); n < count; row = 0) {  // after the last row comes the first one
            const int rest = count - n, taken = rows && rest > ROWS - row ? ROWS - row : rest;
            move(vector + row * ACCUMULATORS + n * stride[BUFFER_IN], from_stride, to + n * stride[BANK_OUT], stride[BANK_OUT],
                 taken, marks);
            n += taken;
        }
    });
    if (check) run.overflow |= any_mark(marks);
}

#endif
