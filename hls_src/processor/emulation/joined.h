// Drains that are executed with the ACCUMULATE whose sums they move: the sums are in registers when it ends.
//
// A drain is joined if no instruction between the two accesses what it writes, so that memories have the same contents. If
// nothing else reads the sums before they are overwritten, they are not stored.
#ifndef BTTLAB_PROCESSOR_EMULATION_JOINED_H
#define BTTLAB_PROCESSOR_EMULATION_JOINED_H

#include "accesses.h"

constexpr int MOST_JOINING = 1 << 14;  // instructions of all lengths
static Joined joined_memory[MOST_JOINING];
static int joining_count;

static void forget_joined() { joining_count = 0; }

// Accesses in the order in which instructions are executed: those of a joined drain are its ACCUMULATE's.
static Accesses joined_accesses_of(int i, const Sample &sample) {
    if (first_resolved[sample.tokens] < 0) return accesses_of(i, sample);
    const Resolved &resolved = resolved_at(i, sample);
    if (resolved.is_joined) return {};
    Accesses accesses = accesses_of(i, sample);
    for (int d = 0; resolved.joined && d < resolved.joined->count; d++) {
        const Accesses of_drain = accesses_of(resolved.joined->drain[d], sample);
        for (int a = 0; a < of_drain.count; a++) {
            const Access &access = of_drain.access[a];
            if (access.writes) accesses.add(access.memory, true, access.low, access.high);
        }
    }
    return accesses;
}

// The number of sums in a row of an ACCUMULATE that is executed in tiles with every sample; 0 if it is no such instruction.
static int sums_of_row(const Resolved &resolved) {
    const Nest &nest = resolved.nest;
    const Instruction &code = *nest.code;
    const bool is_accumulate = code.unit <= ENGINE_1 && code.operation == ACCUMULATE;
    if (!is_accumulate || !resolved.is_known || resolved.engine.how != EnginePlan::IN_TILES) return 0;
    int sums = 1;
    for (int j = code.accumulator_level >= LEVELS ? 0 : code.accumulator_level + 1; j < LEVELS; j++) {
        if (nest.end[j] < nest.n[j]) return 0;  // some sums are not added up
        sums *= nest.n[j];
    }
    return sums;
}

// Adds a drain to what is executed with an ACCUMULATE, if it moves whole rows to places that follow one another.
static bool join(const Nest &drain, int rows_in_use, int sums_in_row, Joined &joined) {
    const Instruction &code = *drain.code;
    const Reach &from = drain.operand[BUFFER_IN], &to = drain.operand[BANK_OUT];
    int rows = 1, along_rows = -1, sums_moved = 1, along_sums = -1;
    for (int j = 0; j < LEVELS; j++) {
        if (drain.end[j] == 0) return false;
        if (drain.end[j] == 1) continue;
        if (code.row_level == j && along_rows < 0 && from.stride[j] == 0) {
            rows = drain.end[j], along_rows = j;
        } else if (code.row_level != j && along_sums < 0 && from.stride[j] == 1 && to.stride[j] == 1) {
            sums_moved = drain.end[j], along_sums = j;
        } else {
            return false;
        }
    }
    const bool moves_a_row = from.start == 0 && sums_moved == sums_in_row && !from.token_offset && !to.token_offset;
    if (!moves_a_row || code.row_base < 0 || code.row_base + rows > rows_in_use) return false;
    for (int r = 0; r < rows; r++) {
        if (joined.row[code.row_base + r]) return false;
    }
    for (int r = 0; r < rows; r++) {
        joined.row[code.row_base + r] = to.memory + to.start + r * (along_rows < 0 ? 0 : to.stride[along_rows]);
        if (code.flags & CHECK) joined.checked |= static_cast<unsigned short>(1 << (code.row_base + r));
    }
    return true;
}

// Whether an instruction may read an ACCUMULATE's sums after its joined drains, in its section or after that.
static bool keeps_sums(int adder, int end, const Sample &sample) {
    const Instruction &code = instruction_at(adder);
    const int count = sums_of_row(resolved_at(adder, sample));
    for (int i = adder + 1; i < end; i++) {
        const Instruction &later = instruction_at(i);
        const Resolved &resolved = resolved_at(i, sample);
        const bool drains = later.unit == code.unit + ENGINES, adds = later.unit == code.unit && changes_sums(later);
        if (!(drains || adds) || ((later.flags ^ code.flags) & PONG) || !resolved.has_steps) continue;
        if (drains && !resolved.is_joined) return true;
        if (adds && sums_of_row(resolved) >= count) return false;  // it writes all rows
    }
    return true;
}

// Joins drains of a section for samples of a length. Must be called before instructions of these run.
static void join_drains(const Range &section, const Sample &sample) {
    static Accesses accesses[PROGRAM_DEPTH];
    int adders[ENGINES][2] = {{-1, -1}, {-1, -1}};  // the last instruction that changed sums
    const int end = section.first + section.count;
    for (int i = section.first; i < end; i++) {
        const Instruction &code = instruction_at(i);
        Resolved &resolved = resolved_at(i, sample);
        resolve_all(resolved, code, sample);
        accesses[i] = accesses_of(i, sample);
        const bool is_pong = code.flags & PONG;
        if (changes_sums(code)) adders[code.unit - ENGINE_0][is_pong] = i;
        if ((code.unit != DRAIN_0 && code.unit != DRAIN_1) || !resolved.has_steps || !resolved.nest.is_inside) continue;
        const int adder = adders[code.unit - DRAIN_0][is_pong];
        if (adder < 0 || !code.operand[BANK_OUT].valid) continue;
        Resolved &adding = resolved_at(adder, sample);
        const int sums_in_row = adding.has_steps ? sums_of_row(adding) : 0;
        if (sums_in_row == 0 || (!adding.joined && joining_count == MOST_JOINING)) continue;
        bool may_join = true;
        for (int a = 0; a < accesses[i].count; a++) {
            const Accesses written = {1, {accesses[i].access[a]}};
            for (int k = adder; k < i && written.access[0].writes; k++) may_join &= !conflict(written, accesses[k]);
        }
        Joined joined = {};
        if (adding.joined) joined = *adding.joined;
        if (!may_join || joined.count == MOST_JOINED) continue;
        if (!join(resolved.nest, used_rows(adding.nest), sums_in_row, joined)) continue;
        joined.drain[joined.count++] = static_cast<short>(i);
        if (!adding.joined) adding.joined = &joined_memory[joining_count++];
        *adding.joined = joined;
        resolved.is_joined = true;
    }
    for (int i = section.first; i < end; i++) {
        Joined *joined = resolved_at(i, sample).joined;
        if (joined) joined->keeps_sums = keeps_sums(i, end, sample);
    }
}

#endif
