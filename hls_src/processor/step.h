// A cycle of all units: loads, the step of each unit, overflow checks, stores.
#ifndef BTTLAB_PROCESSOR_STEP_H
#define BTTLAB_PROCESSOR_STEP_H

#include "engine.h"
#include "ports.h"
#include "shuffle.h"
#include "update.h"
#include "vector_unit.h"

// The parts of the update and the sample that a run needs.
struct RunSettings {
    Factors<Vector> factors;
    bool pending, applying, has_m, has_v;
    int intent;
};

// Sticky flags: a gradient, p, m, v exceeded its limit.
struct OverflowFlags {
    bool gradient, p, m, v;
};

ALWAYS_INLINE OverflowFlags flags_of(const Run &run) {
    return {run.overflow, run.state_overflow[0], run.state_overflow[1], run.state_overflow[2]};
}

ALWAYS_INLINE void set_flags(Run &run, const OverflowFlags &flags) {
    run.overflow = flags.gradient;
    run.state_overflow[0] = flags.p;
    run.state_overflow[1] = flags.m;
    run.state_overflow[2] = flags.v;
}

// The units whose step is active in this cycle; takes, gives: of the shuffle unit.
struct ActiveSteps {
    bool engine[ENGINES], drain[ENGINES], vector, update, takes, gives;
};

struct Results {
    EngineStep engine_0, engine_1;
    VectorStep row;
    Vector shuffled;
    Updated<Vector> updated;
};

ALWAYS_INLINE void cross_slr(Request &request) {
#pragma HLS INLINE
    const int crossed = cross_slr(request.valid << 21 | request.bank << 16 | request.address);
    request.valid = crossed >> 21 & 1;
    request.bank = crossed >> 16 & 31;
    request.address = crossed & 0xffff;
}

ALWAYS_INLINE void cross_slr(Results &results) {
#pragma HLS INLINE
    results.engine_0.result = cross_slr(results.engine_0.result);
    results.engine_0.moved = cross_slr(results.engine_0.moved);
    results.engine_1.result = cross_slr(results.engine_1.result);
    results.engine_1.moved = cross_slr(results.engine_1.moved);
    results.row.r0 = cross_slr(results.row.r0);
    results.row.r1 = cross_slr(results.row.r1);
    results.shuffled = cross_slr(results.shuffled);
    results.updated.p = cross_slr(results.updated.p);
    results.updated.m = cross_slr(results.updated.m);
    results.updated.v = cross_slr(results.updated.v);
}

ALWAYS_INLINE void find_active(ActiveSteps &active, const Nest *nest) {
#pragma HLS INLINE
    UNROLL
    for (int e = 0; e < ENGINES; e++) {
        active.engine[e] = is_active(nest[ENGINE_0 + e], 0);
        active.drain[e] = is_active(nest[DRAIN_0 + e], 0);
    }
    active.vector = is_active(nest[VECTOR], 0);
    active.update = is_active(nest[UPDATE], 0);
    active.takes = takes_vector(nest[SHUFFLE]);
    active.gives = gives_vector(nest[SHUFFLE]);
}

// Loads: sends addresses to the ports of the banks, which are in both SLRs, and returns the vectors.
ALWAYS_INLINE void load_operands(Request *requests, Vector *read, bool &outside, const Nest *nest,
                                 const ActiveSteps &active) {
#pragma HLS INLINE
    UNROLL
    for (int e = 0; e < ENGINES; e++) {
        UNROLL
        for (int o = 0; o < 3; o++) {
            request(requests[STREAM_0 + 3 * e + o], e, STREAM_IN + o, nest[e], active.engine[e]);
        }
    }
    UNROLL
    for (int o = 0; o < 3; o++) request(requests[VECTOR_A + o], VECTOR, A_IN + o, nest[VECTOR], active.vector);
    request(requests[SHUFFLE_SOURCE], SHUFFLE, SOURCE_IN, nest[SHUFFLE], active.takes);
    UNROLL
    for (int o = 0; o < 4; o++) request(requests[UPDATE_P + o], UPDATE, PARAMETER + o, nest[UPDATE], active.update);
    UNROLL
    for (int r = 0; r < READERS; r++) cross_slr(requests[r]);
    Vector loaded[BANKS];
    BTTLAB_BANKS(LOAD_BANK)
    UNROLL
    for (int r = 0; r < READERS; r++) read[r] = cross_slr(loaded_vector(r, requests[r], loaded));
}

ALWAYS_INLINE void check_overflow(OverflowFlags &overflow, const Nest *nest, const ActiveSteps &active,
                                  const Results &results, const RunSettings &settings) {
#pragma HLS INLINE
    const EngineStep &engine_0 = results.engine_0, &engine_1 = results.engine_1;
    const VectorStep &row = results.row;
    const Nest &vector = nest[VECTOR];
    const bool applies = active.update & settings.applying;
    bool any = false;
    any |= ((nest[ENGINE_0].flags & CHECK) != 0) & engine_0.writes & overflows(engine_0.result, STATE_LIMIT);
    any |= ((nest[ENGINE_1].flags & CHECK) != 0) & engine_1.writes & overflows(engine_1.result, STATE_LIMIT);
    any |= ((nest[DRAIN_0].flags & CHECK) != 0) & active.drain[0] & overflows(engine_0.moved, STATE_LIMIT);
    any |= ((nest[DRAIN_1].flags & CHECK) != 0) & active.drain[1] & overflows(engine_1.moved, STATE_LIMIT);
    any |= ((vector.flags & CHECK) != 0) & row.writes_0 & vector.operand[R0_OUT].valid & overflows(row.r0, STATE_LIMIT);
    any |= ((vector.flags & CHECK) != 0) & row.writes_1 & vector.operand[R1_OUT].valid & overflows(row.r1, STATE_LIMIT);
    any |= ((nest[SHUFFLE].flags & CHECK) != 0) & active.gives & overflows(results.shuffled, STATE_LIMIT);
    overflow.gradient |= any;
    overflow.p |= applies & overflows(results.updated.p, STATE_LIMIT);
    overflow.m |= applies & settings.has_m & overflows(results.updated.m, STATE_LIMIT);
    overflow.v |= applies & settings.has_v & overflows(results.updated.v, SQUARE_LIMIT);
}

ALWAYS_INLINE void store_results(const Request *requests, bool &outside, const Nest *nest, const ActiveSteps &active,
                                 const Results &results, const RunSettings &settings) {
#pragma HLS INLINE
    const bool applies = active.update & settings.applying;
    Request to[WRITERS];
    request(to[ENGINE_OUT_0], ENGINE_0, BANK_OUT, nest[ENGINE_0], results.engine_0.writes);
    request(to[ENGINE_OUT_1], ENGINE_1, BANK_OUT, nest[ENGINE_1], results.engine_1.writes);
    request(to[MOVED_0], DRAIN_0, BANK_OUT, nest[DRAIN_0], active.drain[0]);
    request(to[MOVED_1], DRAIN_1, BANK_OUT, nest[DRAIN_1], active.drain[1]);
    request(to[VECTOR_R0], VECTOR, R0_OUT, nest[VECTOR], results.row.writes_0);
    request(to[VECTOR_R1], VECTOR, R1_OUT, nest[VECTOR], results.row.writes_1);
    request(to[SHUFFLED], SHUFFLE, SHUFFLED_BANK, nest[SHUFFLE], active.gives);
    to[UPDATED_P] = requests[UPDATE_P];
    to[UPDATED_P].valid &= applies;
    to[CLEARED_G] = requests[UPDATE_G];
    to[CLEARED_G].valid &= (nest[UPDATE].flags & CLEAR) != 0;
    to[UPDATED_M] = requests[UPDATE_M];
    to[UPDATED_M].valid &= applies & settings.has_m;
    to[UPDATED_V] = requests[UPDATE_V];
    to[UPDATED_V].valid &= applies & settings.has_v;
    const Vector vectors[WRITERS] = {results.engine_0.result, results.engine_1.result, results.engine_0.moved,
                                     results.engine_1.moved,  results.row.r0,          results.row.r1,
                                     results.shuffled,        results.updated.p,       Vector{},
                                     results.updated.m,       results.updated.v};
    BTTLAB_BANKS(STORE_BANK)
}

// Stores to rows of the operand buffers.
ALWAYS_INLINE void store_operand_buffers(const Nest *nest, const ActiveSteps &active, const Results &results) {
#pragma HLS INLINE
    Request to_buffer[3];
    request(to_buffer[0], ENGINE_0, BUFFER_OUT, nest[ENGINE_0], results.engine_0.writes);
    request(to_buffer[1], ENGINE_1, BUFFER_OUT, nest[ENGINE_1], results.engine_1.writes);
    request(to_buffer[2], SHUFFLE, SHUFFLED_BUFFER, nest[SHUFFLE], active.gives);
    const int to_row[3] = {row_of(nest[ENGINE_0]), row_of(nest[ENGINE_1]), row_of(nest[SHUFFLE])};
    UNROLL
    for (int e = 0; e < ENGINES; e++) {
        bool hit[3];
        UNROLL
        for (int w = 0; w < 3; w++) hit[w] = to_buffer[w].valid & ((to_buffer[w].bank & 1) == e);
        const Vector vector =
            choose(hit[0], results.engine_0.result, choose(hit[1], results.engine_1.result, results.shuffled));
        const Address address =
            choose(hit[0], to_buffer[0].address, choose(hit[1], to_buffer[1].address, to_buffer[2].address));
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            bool enable = false;
            UNROLL
            for (int w = 0; w < 3; w++) enable |= hit[w] & (to_row[w] == r);
            if (enable) operand_buffer[e][r][address & (OPERAND_BUFFER_DEPTH - 1)] = vector;
        }
    }
}

// One cycle of all units.
ALWAYS_INLINE void step_units(OverflowFlags &overflow, const Nest *nest, const EngineOperationBits *engine_operation,
                              const VectorOperationBits &vector_operation, const RunSettings &settings) {
#pragma HLS INLINE
    ActiveSteps active;
    find_active(active, nest);
    Request requests[READERS];
    Vector read[READERS];
    bool outside = false;
    load_operands(requests, read, outside, nest, active);
    Results results = {
        engine_step(0, nest[ENGINE_0], engine_operation[0], nest[DRAIN_0], read[STREAM_0], read[SCALARS_0], read[ADDEND_0]),
        engine_step(1, nest[ENGINE_1], engine_operation[1], nest[DRAIN_1], read[STREAM_1], read[SCALARS_1], read[ADDEND_1]),
        vector_step(nest[VECTOR], vector_operation, settings.intent, read[VECTOR_A], read[VECTOR_B], read[VECTOR_C]),
        shuffle_step(nest[SHUFFLE], read[SHUFFLE_SOURCE]),
        update_step(settings.factors, read[UPDATE_P], read[UPDATE_G], read[UPDATE_M], read[UPDATE_V])};
    cross_slr(results);
    check_overflow(overflow, nest, active, results, settings);
    store_results(requests, outside, nest, active, results, settings);
    overflow.gradient |= outside;
    store_operand_buffers(nest, active, results);
}

#endif
