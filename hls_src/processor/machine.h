// The machine: one loop, in which every unit does a step of its instruction each cycle. docs/processor.md is the page.
#ifndef BTTLAB_PROCESSOR_MACHINE_H
#define BTTLAB_PROCESSOR_MACHINE_H

#include "dispatch.h"
#include "engine.h"
#include "ports.h"
#include "shuffle.h"
#include "update.h"
#include "vector.h"

// All that the sample and the program bring into the loop's small memories: side by side, a store a memory and cycle.
static void prepare(const Sample &sample) {
#pragma HLS INLINE
Prepare:
    for (int i = 0; i < SLICE_TABLES * SEQUENCE; i++) {
#pragma HLS PIPELINE II=1
        const Address slice = sample.slice[i / SEQUENCE][i % SEQUENCE];
    Units_Unroll:
        UNROLL
        for (int u = 0; u < UNITS; u++) {
            UNROLL
            for (int o = 0; o < OPERANDS; o++) slices[u][o][i] = slice;
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
        // Scalars stand behind the constants, and come when those are there.
        const int s = i - CONSTANTS;
        if (s >= 0 && s < SCALARS) immediates[0][i] = immediates[1][i] = sample.scalar[s];
        if (i < FUNCTIONS) {
            const Function &g = program.function[i];
            IntWord word = {};
            word[0] = g.base, word[1] = g.mode, word[2] = g.bits;
            word[3] = bits_of(g.low), word[4] = bits_of(g.high), word[5] = bits_of(g.steps);
            word[6] = g.first;
            functions[i] = word;
        }
    }
}
static_assert(SLICE_TABLES * SEQUENCE >= CONSTANTS + SCALARS && SLICE_TABLES * SEQUENCE >= REGISTERS, "one loop for all");

// Runs instructions [run.first, run.first + run.count) to the end; returns the cycles that it took.
static int run(Run &section, const Sample &sample) {
    const Factors factors = factors_of(section);
    const bool pending = section.pending != NOTHING, applying = section.pending == APPLY;
    const bool has_m = section.optimizer != SGD, has_v = section.optimizer == ADAMW;
    const int intent = sample.intent;
// Memories: block RAM and UltraRAM for banks, held operands and tables, LUT RAM for what is small; each row, lane, unit and
// copy is a memory of its own.
    BTTLAB_BANKS(BIND_BANK)
#pragma HLS ARRAY_PARTITION variable=held dim=1 complete
#pragma HLS ARRAY_PARTITION variable=held dim=2 complete
#pragma HLS BIND_STORAGE variable=held type=ram_s2p impl=bram
#pragma HLS ARRAY_PARTITION variable=sums dim=1 complete
#pragma HLS ARRAY_PARTITION variable=sums dim=2 complete
#pragma HLS ARRAY_PARTITION variable=sums dim=3 complete
#pragma HLS BIND_STORAGE variable=sums type=ram_s2p impl=lutram
#pragma HLS ARRAY_PARTITION variable=statistic dim=1 complete
#pragma HLS BIND_STORAGE variable=statistic type=ram_s2p impl=bram
#pragma HLS ARRAY_PARTITION variable=accumulator dim=1 complete
#pragma HLS BIND_STORAGE variable=accumulator type=ram_s2p impl=lutram
#pragma HLS BIND_STORAGE variable=largest type=ram_s2p impl=lutram
#pragma HLS BIND_STORAGE variable=largest_place type=ram_s2p impl=lutram
#pragma HLS ARRAY_PARTITION variable=lane_table dim=1 complete
#pragma HLS ARRAY_PARTITION variable=lane_table dim=2 complete
#pragma HLS BIND_STORAGE variable=lane_table type=ram_s2p impl=bram
#pragma HLS ARRAY_PARTITION variable=shuffle_fields dim=1 complete
#pragma HLS BIND_STORAGE variable=shuffle_fields type=ram_s2p impl=bram
#pragma HLS ARRAY_PARTITION variable=columns dim=1 complete
#pragma HLS BIND_STORAGE variable=columns type=ram_s2p impl=lutram
#pragma HLS ARRAY_PARTITION variable=instruction_memory dim=1 complete
// In the circle from an instruction to the next: FETCH cycles for all of it.
#pragma HLS BIND_STORAGE variable=instruction_memory type=ram_s2p impl=bram latency=1
#pragma HLS ARRAY_PARTITION variable=queue dim=1 complete
#pragma HLS ARRAY_PARTITION variable=queue dim=2 complete
#pragma HLS BIND_STORAGE variable=queue type=ram_s2p impl=lutram
#pragma HLS ARRAY_PARTITION variable=ended_before dim=1 complete
#pragma HLS BIND_STORAGE variable=ended_before type=ram_s2p impl=lutram
#pragma HLS ARRAY_PARTITION variable=begun_before dim=1 complete
#pragma HLS BIND_STORAGE variable=begun_before type=ram_s2p impl=lutram
#pragma HLS ARRAY_PARTITION variable=registers dim=1 complete
#pragma HLS BIND_STORAGE variable=registers type=ram_s2p impl=lutram
#pragma HLS ARRAY_PARTITION variable=slices dim=1 complete
#pragma HLS ARRAY_PARTITION variable=slices dim=2 complete
#pragma HLS BIND_STORAGE variable=slices type=ram_s2p impl=lutram
#pragma HLS ARRAY_PARTITION variable=immediates dim=1 complete
#pragma HLS BIND_STORAGE variable=immediates type=ram_s2p impl=lutram
#pragma HLS BIND_STORAGE variable=functions type=ram_s2p impl=lutram
#pragma HLS BIND_STORAGE variable=labels type=ram_s2p impl=lutram
    Nest nest[UNITS] = {};
    EngineOperationBits engine_operation[ENGINES] = {};
    VectorOperationBits vector_operation = {};
    Supply supply[UNITS] = {};
    Dispatcher dispatcher = {};
    dispatcher.next = section.first;
    dispatcher.end = section.first + section.count;
    bool finished = false, done = false, stuck = false, beyond = section.beyond;
    bool p_beyond = section.state_beyond[0], m_beyond = section.state_beyond[1], v_beyond = section.state_beyond[2];
    int cycles = 0, place_before = 0, quiet = 0;
    prepare(sample);
#pragma HLS ARRAY_PARTITION variable=nest dim=0 complete
#pragma HLS ARRAY_PARTITION variable=supply dim=0 complete
#pragma HLS ARRAY_PARTITION variable=engine_operation dim=0 complete
Cycles:
    for (; !finished; cycles++) {
#pragma HLS PIPELINE II=1
// Results are read LATENCY cycles after the step that gives them, if not later.
BTTLAB_BANKS(BANK_DISTANCE)
#pragma HLS DEPENDENCE variable=held type=inter direction=RAW distance=LATENCY dependent=true
#pragma HLS DEPENDENCE variable=statistic type=inter direction=RAW distance=LATENCY dependent=true
// A sum is added to again SUM_DISTANCE cycles later, if not later.
#pragma HLS DEPENDENCE variable=sums type=inter direction=RAW distance=SUM_DISTANCE dependent=true
#pragma HLS DEPENDENCE variable=accumulator type=inter direction=RAW distance=SUM_DISTANCE dependent=true
#pragma HLS DEPENDENCE variable=largest type=inter direction=RAW distance=SUM_DISTANCE dependent=true
#pragma HLS DEPENDENCE variable=largest_place type=inter direction=RAW distance=SUM_DISTANCE dependent=true
// A half of the columns is read when its block is over, and SHUFFLE_GAP idle steps have passed.
#pragma HLS DEPENDENCE variable=columns type=inter direction=RAW distance=SHUFFLE_GAP dependent=true
// A unit looks for what was sent in the cycle before the last; counts of the oldest cycle are replaced after they were read.
#pragma HLS DEPENDENCE variable=queue type=inter direction=RAW distance=2 dependent=true
#pragma HLS DEPENDENCE variable=ended_before type=inter direction=RAW distance=DRAIN_CYCLES dependent=true
#pragma HLS DEPENDENCE variable=begun_before type=inter direction=RAW distance=DRAIN_CYCLES dependent=true
        // Loads: addresses to the ports of the banks, words back.
        const bool engine_acts[ENGINES] = {is_live(nest[ENGINE_0], 0), is_live(nest[ENGINE_1], 0)};
        const bool vector_acts = is_live(nest[VECTOR], 0), update_acts = is_live(nest[UPDATE], 0);
        const bool takes = takes_word(nest[SHUFFLE]), gives = gives_word(nest[SHUFFLE]);
        Request requests[READERS];
        UNROLL
        for (int e = 0; e < ENGINES; e++) {
            UNROLL
            for (int o = 0; o < 3; o++) {
                request(requests[STREAM_0 + 3 * e + o], e, STREAM_IN + o, nest[e], engine_acts[e]);
            }
        }
        UNROLL
        for (int o = 0; o < 3; o++) request(requests[VECTOR_A + o], VECTOR, A_IN + o, nest[VECTOR], vector_acts);
        request(requests[SHUFFLE_SOURCE], SHUFFLE, SOURCE_IN, nest[SHUFFLE], takes);
        UNROLL
        for (int o = 0; o < 4; o++) request(requests[UPDATE_P + o], UPDATE, PARAMETER + o, nest[UPDATE], update_acts);
        Word loaded[BANKS], read[READERS];
        bool outside = false;
        BTTLAB_BANKS(LOAD_BANK)
        UNROLL
        for (int r = 0; r < READERS; r++) read[r] = loaded_word(r, requests[r], loaded);

        // Steps.
        const EngineStep engine_0 = engine_step(0, nest[ENGINE_0], engine_operation[0], nest[DRAIN_0],
                                                read[STREAM_0], read[SCALARS_0], read[ADDEND_0]);
        const EngineStep engine_1 = engine_step(1, nest[ENGINE_1], engine_operation[1], nest[DRAIN_1],
                                                read[STREAM_1], read[SCALARS_1], read[ADDEND_1]);
        const VectorStep vector = vector_step(nest[VECTOR], vector_operation, intent, read[VECTOR_A],
                                              read[VECTOR_B], read[VECTOR_C]);
        const Word shuffled = shuffle_step(nest[SHUFFLE], read[SHUFFLE_SOURCE]);
        const Updated updated = update_step(factors, read[UPDATE_P], read[UPDATE_G], read[UPDATE_M], read[UPDATE_V]);
        const bool drain_acts[ENGINES] = {is_live(nest[DRAIN_0], 0), is_live(nest[DRAIN_1], 0)};

        // Checks.
        beyond |= ((nest[ENGINE_0].flags & CHECK) != 0) & engine_0.writes & is_beyond(engine_0.result, STATE_LIMIT);
        beyond |= ((nest[ENGINE_1].flags & CHECK) != 0) & engine_1.writes & is_beyond(engine_1.result, STATE_LIMIT);
        beyond |= ((nest[DRAIN_0].flags & CHECK) != 0) & drain_acts[0] & is_beyond(engine_0.moved, STATE_LIMIT);
        beyond |= ((nest[DRAIN_1].flags & CHECK) != 0) & drain_acts[1] & is_beyond(engine_1.moved, STATE_LIMIT);
        beyond |= ((nest[VECTOR].flags & CHECK) != 0) & vector.writes_0 & nest[VECTOR].operand[R0_OUT].valid &
                  is_beyond(vector.r0, STATE_LIMIT);
        beyond |= ((nest[VECTOR].flags & CHECK) != 0) & vector.writes_1 & nest[VECTOR].operand[R1_OUT].valid &
                  is_beyond(vector.r1, STATE_LIMIT);
        beyond |= ((nest[SHUFFLE].flags & CHECK) != 0) & gives & is_beyond(shuffled, STATE_LIMIT);
        const bool applies = update_acts & applying;
        p_beyond |= applies & is_beyond(updated.p, STATE_LIMIT);
        m_beyond |= applies & has_m & is_beyond(updated.m, STATE_LIMIT);
        v_beyond |= applies & has_v & is_beyond(updated.v, SQUARE_LIMIT);

        // Stores.
        Request to[WRITERS];
        request(to[ENGINE_OUT_0], ENGINE_0, BANK_OUT, nest[ENGINE_0], engine_0.writes);
        request(to[ENGINE_OUT_1], ENGINE_1, BANK_OUT, nest[ENGINE_1], engine_1.writes);
        request(to[MOVED_0], DRAIN_0, BANK_OUT, nest[DRAIN_0], drain_acts[0]);
        request(to[MOVED_1], DRAIN_1, BANK_OUT, nest[DRAIN_1], drain_acts[1]);
        request(to[VECTOR_R0], VECTOR, R0_OUT, nest[VECTOR], vector.writes_0);
        request(to[VECTOR_R1], VECTOR, R1_OUT, nest[VECTOR], vector.writes_1);
        request(to[SHUFFLED], SHUFFLE, SHUFFLED_BANK, nest[SHUFFLE], gives);
        to[UPDATED_P] = requests[UPDATE_P];
        to[UPDATED_P].valid &= applies;
        to[CLEARED_G] = requests[UPDATE_G];
        to[CLEARED_G].valid &= (nest[UPDATE].flags & CLEAR) != 0;
        to[UPDATED_M] = requests[UPDATE_M];
        to[UPDATED_M].valid &= applies & has_m;
        to[UPDATED_V] = requests[UPDATE_V];
        to[UPDATED_V].valid &= applies & has_v;
        const Word words[WRITERS] = {engine_0.result, engine_1.result, engine_0.moved, engine_1.moved, vector.r0, vector.r1,
                                     shuffled,        updated.p,       Word{},         updated.m,      updated.v};
        BTTLAB_BANKS(STORE_BANK)

        beyond |= outside;

        // Stores of held rows.
        Request to_held[3];
        request(to_held[0], ENGINE_0, HELD_OUT, nest[ENGINE_0], engine_0.writes);
        request(to_held[1], ENGINE_1, HELD_OUT, nest[ENGINE_1], engine_1.writes);
        request(to_held[2], SHUFFLE, SHUFFLED_HELD, nest[SHUFFLE], gives);
        const int to_row[3] = {row_of(nest[ENGINE_0]), row_of(nest[ENGINE_1]), row_of(nest[SHUFFLE])};
        UNROLL
        for (int e = 0; e < ENGINES; e++) {
            bool hit[3];
            UNROLL
            for (int w = 0; w < 3; w++) hit[w] = to_held[w].valid & ((to_held[w].bank & 1) == e);
            const Word word = choose(hit[0], engine_0.result, choose(hit[1], engine_1.result, shuffled));
            const Address address =
                choose(hit[0], to_held[0].address, choose(hit[1], to_held[1].address, to_held[2].address));
            UNROLL
            for (int r = 0; r < ROWS; r++) {
                bool enable = false;
                UNROLL
                for (int w = 0; w < 3; w++) enable |= hit[w] & (to_row[w] == r);
                if (enable) held[e][r][address & (HELD_DEPTH - 1)] = word;
            }
        }

        // Counts of instructions that ended and begun, until the beginning of this cycle and until DRAIN_CYCLES before.
        Count ended[UNITS], drained[UNITS], chained[UNITS];
        bool is_done = dispatcher.next == dispatcher.end;
        UNROLL
        for (int u = 0; u < UNITS; u++) {
            ended[u] = supply[u].ended;
            const Count before = ended_before[u][place_before];
            drained[u] = cycles < DRAIN_CYCLES ? 0 : before;
            ended_before[u][place_before] = ended[u];
            const Count begun = begun_before[u][place_before];
            chained[u] = cycles < DRAIN_CYCLES ? 0 : begun;
            begun_before[u][place_before] = supply[u].begun;
            is_done &= supply[u].ended == supply[u].sent;
        }
        place_before = place_before == DRAIN_CYCLES - 1 ? 0 : place_before + 1;

        // The dispatcher.
        const Instruction outgoing = dispatcher.fetched[FETCH - 2];
        const int to_unit = field(outgoing, FIELD_OPERATION) & 15;
        bool is_full = false;
        UNROLL
        for (int u = 0; u < UNITS; u++) {
            is_full |= (to_unit == u) & (static_cast<Count>(supply[u].sent - supply[u].taken) == QUEUE);
        }
        const bool sends = dispatcher.ready[FETCH - 2] & !is_full;
        const bool has_next = dispatcher.next != dispatcher.end;
        UNROLL
        for (int i = FETCH - 2; i > 1; i--) dispatcher.fetched[i] = dispatcher.fetched[i - 1];
        dispatcher.fetched[1] = settled(dispatcher.fetched[0]);
        dispatcher.fetched[0] = {instruction_memory[0][dispatcher.next & (PROGRAM_DEPTH - 1)],
                                 instruction_memory[1][dispatcher.next & (PROGRAM_DEPTH - 1)]};
        UNROLL
        for (int i = FETCH - 2; i > 0; i--) dispatcher.ready[i] = dispatcher.ready[i - 1] & !sends;
        dispatcher.ready[0] = has_next & !sends;
        dispatcher.next += sends;

        bool is_quiet = !sends;
        UNROLL
        for (int u = 0; u < UNITS; u++) is_quiet &= !nest[u].busy;
        const bool is_stuck = quiet == STUCK_CYCLES;
        quiet = is_quiet ? quiet + 1 : 0;
        finished = done;  // a cycle later: whether there is a next one is known when it begins
        done = is_done | is_stuck;
        stuck |= is_stuck & !is_done;

        // The units: the next step, or the next instruction.
        UNROLL
        for (int u = 0; u < UNITS; u++) {
            Supply &unit = supply[u];
            const bool ends = nest[u].busy & is_end(nest[u]);
            const bool may = may_begin(unit.fetched[FETCH - 2], ended, drained, chained);
            const bool begins = (!nest[u].busy | ends) & unit.ready[FETCH - 2] & may;
            if (begins) {
                begin(nest[u], unit.fetched[FETCH - 2], (u == UPDATE) & !pending);
                if (u < ENGINES) decode(engine_operation[u % ENGINES], unit.fetched[FETCH - 2]);
                if (u == VECTOR) decode(vector_operation, unit.fetched[FETCH - 2]);
            } else {
                nest[u].busy &= !ends;
                advance(nest[u]);
            }
            const Instruction head = {queue[u][0][unit.taken & (QUEUE - 1)], queue[u][1][unit.taken & (QUEUE - 1)]};
            const bool waits = unit.seen != unit.taken;
            UNROLL
            for (int i = FETCH - 2; i > 0; i--) {
                unit.fetched[i] = unit.fetched[i - 1];
                unit.ready[i] = unit.ready[i - 1] & !begins;
            }
            unit.fetched[0] = head;
            unit.ready[0] = waits & !begins;
            const bool receives = sends & (to_unit == u);
            if (receives) {
                queue[u][0][unit.sent & (QUEUE - 1)] = outgoing.low;
                queue[u][1][unit.sent & (QUEUE - 1)] = outgoing.high;
            }
            unit.seen = unit.sent;
            unit.sent += receives;
            unit.begun = unit.taken;
            unit.taken += begins;
            unit.ended += ends;
        }
    }
    section.beyond = beyond;
    section.state_beyond[0] = p_beyond;
    section.state_beyond[1] = m_beyond;
    section.state_beyond[2] = v_beyond;
    section.stuck = stuck;
    return cycles + LATENCY;
}

#endif
