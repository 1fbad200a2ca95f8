// The machine: one loop, in which every unit does one step of its instruction per cycle. Documented in docs/processor.md.
#ifndef BTTLAB_PROCESSOR_MACHINE_H
#define BTTLAB_PROCESSOR_MACHINE_H

#include "dispatch.h"
#include "memories.h"
#include "step.h"

// Copies the sample and the program's tables into the loop's small memories: one store per memory and cycle.
static void prepare(const Sample &sample) {
#pragma HLS INLINE
Prepare:
    for (int i = 0; i < OFFSET_TABLES * SEQUENCE; i++) {
#pragma HLS PIPELINE II=1
        const Address offset = sample.token_offset[i / SEQUENCE][i % SEQUENCE];
    Units_Unroll:
        UNROLL
        for (int u = 0; u < UNITS; u++) {
            UNROLL
            for (int o = 0; o < OPERANDS; o++) token_offsets[u][o][i] = offset;
        }
        if (i < SEQUENCE) labels[i] = sample.slot[i];
        if (i < REGISTERS) {
            const Register &rule = program.registers[i];
            const int value = (sample.tokens + rule.offset) >> rule.shift;
            const int clipped = value < rule.low ? rule.low : value > rule.high ? rule.high : value;
            UNROLL
            for (int c = 0; c < CODES; c++) registers[c][i] = clipped;
        }
        if (i < CONSTANTS) immediates[0][i] = immediates[1][i] = program.constant[i];
        // Scalars follow the constants in memory, and are copied after them.
        const int s = i - CONSTANTS;
        if (s >= 0 && s < SCALARS) immediates[0][i] = immediates[1][i] = sample.scalar[s];
        if (i < FUNCTIONS) {
            const Function &g = program.function[i];
            IntVector vector = {};
            vector[0] = g.base, vector[1] = g.mode, vector[2] = g.bits;
            vector[3] = bits_of(g.low), vector[4] = bits_of(g.high), vector[5] = bits_of(g.steps);
            vector[6] = g.first;
            functions[i] = vector;
        }
    }
}
static_assert(OFFSET_TABLES * SEQUENCE >= CONSTANTS + SCALARS && OFFSET_TABLES * SEQUENCE >= REGISTERS, "one loop for all");

// Runs instructions [run.first, run.first + run.count) to completion; returns the number of cycles.
static int run(Run &section, const Sample &sample) {
    const RunSettings settings = {factors_of<Vector>(section), section.pending != NOTHING, section.pending == APPLY,
                                  section.optimizer != SGD, section.optimizer == ADAMW, sample.intent};
    BIND_MEMORIES
    Nest nest[UNITS] = {};
    EngineOperationBits engine_operation[ENGINES] = {};
    VectorOperationBits vector_operation = {};
    IssueState issue[UNITS] = {};
    Dispatcher dispatcher = {};
    dispatcher.next = section.first;
    dispatcher.end = section.first + section.count;
    bool finished = false, done = false, stuck = false;
    OverflowFlags overflow = flags_of(section);
    int cycles = 0, oldest = 0, quiet = 0;
    prepare(sample);
#pragma HLS ARRAY_PARTITION variable=nest dim=0 complete
#pragma HLS ARRAY_PARTITION variable=issue dim=0 complete
#pragma HLS ARRAY_PARTITION variable=engine_operation dim=0 complete
Cycles:
    for (; !finished; cycles++) {
#pragma HLS PIPELINE II=1
// Results are read LATENCY cycles or more after the step that computes them.
BTTLAB_BANKS(BANK_DISTANCE)
#pragma HLS DEPENDENCE variable=operand_buffer type=inter direction=RAW distance=LATENCY dependent=true
#pragma HLS DEPENDENCE variable=statistic type=inter direction=RAW distance=LATENCY dependent=true
// Two additions to the same sum are SUM_DISTANCE cycles or more apart.
#pragma HLS DEPENDENCE variable=sums type=inter direction=RAW distance=SUM_DISTANCE dependent=true
#pragma HLS DEPENDENCE variable=accumulator type=inter direction=RAW distance=SUM_DISTANCE dependent=true
#pragma HLS DEPENDENCE variable=largest type=inter direction=RAW distance=SUM_DISTANCE dependent=true
#pragma HLS DEPENDENCE variable=largest_place type=inter direction=RAW distance=SUM_DISTANCE dependent=true
// Columns have no such pragma: what went in may come out in the next cycle, so a load is scheduled no earlier than the store.
// A unit looks for what was sent in the cycle before the last; counts of the oldest cycle are replaced after they were read.
#pragma HLS DEPENDENCE variable=queue type=inter direction=RAW distance=QUEUE_DISTANCE dependent=true
#pragma HLS DEPENDENCE variable=ended_before type=inter direction=RAW distance=COUNTED_CYCLES dependent=true
#pragma HLS DEPENDENCE variable=begun_before type=inter direction=RAW distance=COUNTED_CYCLES dependent=true
        step_units(overflow, nest, engine_operation, vector_operation, settings);

        bool is_done = dispatcher.next == dispatcher.end, is_quiet = true;
        UNROLL
        for (int u = 0; u < UNITS; u++) {
            is_done &= issue[u].ended == issue[u].sent;
            is_quiet &= !nest[u].busy;
        }

        Outgoing outgoing;
        dispatch(outgoing, dispatcher, issue);

        is_quiet &= !outgoing.valid;
        const bool is_stuck = quiet == STUCK_CYCLES;
        quiet = is_quiet ? quiet + 1 : 0;
        finished = done;  // a cycle later: whether there is a next one is known when it begins
        done = is_done | is_stuck;
        stuck |= is_stuck & !is_done;

        bool ends[UNITS];
        UNROLL
        for (int u = 0; u < UNITS; u++) ends[u] = nest[u].busy & is_end(nest[u]);
        Counts counts;
        count_instructions(counts, issue, ends, oldest, cycles >= COUNTED_CYCLES);
        oldest = oldest == COUNTED_CYCLES - 1 ? 0 : oldest + 1;

        UNROLL
        for (int u = 0; u < UNITS; u++) {
            const Instruction next = issue[u].fetched[FETCH - 2];
            const bool begins = (!nest[u].busy | ends[u]) & issue[u].ready[FETCH - 2] & issue[u].may_begin;
            if (begins) {
                begin(nest[u], next, (u == UPDATE) & !settings.pending);
                if (u < ENGINES) decode(engine_operation[u % ENGINES], next);
                if (u == VECTOR) decode(vector_operation, next);
            } else {
                nest[u].busy &= !ends[u];
                advance(nest[u]);
            }
            fetch(issue[u], u, outgoing, counts, begins);
        }
    }
    set_flags(section, overflow);
    section.stuck = stuck;
    return cycles + LATENCY;
}

#endif
