// The shuffle unit and the update unit.
#ifndef BTTLAB_PROCESSOR_EMULATION_SHUFFLE_H
#define BTTLAB_PROCESSOR_EMULATION_SHUFFLE_H

#include "engine_steps.h"

enum ShuffleOperand { ENTRY_IN, SOURCE, ENTRY_OUT, NOTHING_HERE, SHUFFLED_OUT, SHUFFLED_HELD };

static float column[LANES][2 * SHUFFLE_WORDS];
static_assert((SHUFFLE_WORDS & (SHUFFLE_WORDS - 1)) == 0, "places are taken modulo their number");

static inline float *column_half(int c, int block) { return &column[c][block % 2 * SHUFFLE_WORDS]; }

static void run_shuffle(Nest &nest, const Sample &sample, Run &run) {
    const Instruction &code = *nest.code;
    Box reads = live_box(nest), writes;
    reads.to[0] = nest.n[0] - 2;
    for (int j = 0; j < LEVELS; j++) {
        writes.from[j] = 0;
        writes.to[j] = nest.n[j] - 1;
    }
    writes.from[0] = 1;
    if (nest.count < nest.n[3]) writes.to[3] = nest.count - 1;
    place(nest, ENTRY_IN, nullptr, SHUFFLE_ENTRIES, reads, sample);
    place_in_bank(nest, SOURCE, &zero_word, reads, sample);
    place(nest, ENTRY_OUT, nullptr, SHUFFLE_ENTRIES, writes, sample);
    place_nowhere(nest, NOTHING_HERE, &zero_word);
    place_in_bank(nest, SHUFFLED_OUT, &scratch_word, writes, sample);
    place_held(nest, SHUFFLED_HELD, code.operand[SHUFFLED_HELD].where % ENGINES, &scratch_word, writes, sample);
    if (!nest.is_inside) {
        run.beyond = true;
        return;
    }
    Marks marks = {};
    for (int block = 0; block < nest.n[0]; block++) {
        // A block's words go in while those of the block before go out; into the other half, so that either may be first.
        if (block > 0) {
            writes.from[0] = writes.to[0] = block;
            each_step(nest, writes, [&](const Step &step) {
                const IntWord &entry = shuffle_table[step.offset[ENTRY_OUT]];
                Word value = {};
                for (int l = 0; l < LANES; l++) {
                    const int field = field_of(entry, LANES + l), c = field & (LANES - 1);
                    const int place = field_of(entry, LANES + c) >> 4 & (SHUFFLE_WORDS - 1);
                    if (field >> 15) value[l] = column_half(c, block - 1)[place];
                }
                const Lanes result = load(&value);
                mark_beyond(marks, result, STATE_LIMIT);
                store(nest.operand[SHUFFLED_OUT].memory + step.offset[SHUFFLED_OUT], result);
                const int row = code.operand[SHUFFLED_HELD].valid ? row_of(nest, step) : 0;
                store(held_row(nest.operand[SHUFFLED_HELD], row) + step.offset[SHUFFLED_HELD], result);
            });
        }
        if (block + 1 < nest.n[0]) {
            Box in = reads;
            in.from[0] = in.to[0] = block;
            each_step(nest, in, [&](const Step &step) {
                const IntWord &entry = shuffle_table[step.offset[ENTRY_IN]];
                for (int c = 0; c < LANES; c++) {
                    const int field = field_of(entry, c);
                    if (!(field >> 15)) continue;
                    const Word *word = nest.operand[SOURCE].memory + step.offset[SOURCE];
                    column_half(c, block)[field >> 4 & (SHUFFLE_WORDS - 1)] = scalar_of(word, field & (LANES - 1));
                }
            });
        }
    }
    if (code.flags & CHECK) run.beyond |= any_mark(marks);
}

#endif
