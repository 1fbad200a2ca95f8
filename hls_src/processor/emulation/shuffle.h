// The shuffle unit. What its columns do to a block is one map from elements in to elements out; it is made once for
// each instruction and size of block, and kept.
#ifndef BTTLAB_PROCESSOR_EMULATION_SHUFFLE_H
#define BTTLAB_PROCESSOR_EMULATION_SHUFFLE_H

#include "engine_steps.h"
#include "order.h"

enum ShuffleOperand { ENTRY_IN, SOURCE, ENTRY_OUT, NOTHING_HERE, SHUFFLED_OUT, SHUFFLED_HELD };

// Words that a block may read. Two blocks are on the way; a word of zeros stands behind each.
constexpr int MOST_READS = 1024;
static Word block_words[2][MOST_READS + 1];

// Of each element out, in the order of the steps: its place among the elements in; ZERO_PLACE for a lane without one.
typedef unsigned short Place;
constexpr int ZERO_PLACE = MOST_READS * LANES;
static_assert(ZERO_PLACE + LANES <= 1 << 16, "places are numbers of 16 bits");
constexpr int MAP_WORDS = 1 << 16;
static Place map_memory[MAP_WORDS][LANES];
static int map_words;  // in use

struct ShuffleMap {
    const Instruction *code;
    int n[LEVELS], live[LEVELS], count;  // those of level 0 are not looked at
    const Place (*place)[LANES];
    int run;  // elements that stay side by side: 16, 4 or 1
};
constexpr int MAPS = 1024;
static ShuffleMap maps[MAPS];

static void forget_maps() {
    map_words = 0;
    for (int i = 0; i < MAPS; i++) maps[i].code = nullptr;
}

static ShuffleMap *kept_map(const Nest &nest) {
    unsigned long number = nest.code - decoded;
    for (int j = 1; j < LEVELS; j++) number = number * 31 + nest.n[j] * 3 + nest.live[j];
    return &maps[(number * 31 + nest.count) % MAPS];
}

static bool is_of(const ShuffleMap &map, const Nest &nest) {
    bool same = map.code == nest.code && map.count == nest.count;
    for (int j = 1; j < LEVELS; j++) same &= map.n[j] == nest.n[j] && map.live[j] == nest.live[j];
    return same;
}

// The longest run of elements that every word out takes as they stand, each run from its own multiple.
static int longest_run(const Place (*place)[LANES], int words) {
    for (int run = LANES; run > 1; run /= 4) {
        bool stays = true;
        for (int w = 0; stays && w < words; w++) {
            for (int l = 0; l < LANES; l++) {
                const bool zero = place[w][l - l % run] == ZERO_PLACE;
                stays &= place[w][l] == (zero ? ZERO_PLACE : place[w][l - l % run] + l % run);
            }
        }
        if (stays) return run;
    }
    return 1;
}

// The map of a block whose steps read and write as these boxes say. Places that no word of the block went to are zeros.
static void make_map(ShuffleMap &map, const Nest &nest, const Box &reads, const Box &writes) {
    static Place in_column[LANES][SHUFFLE_WORDS];
    for (int c = 0; c < LANES; c++) {
        for (int p = 0; p < SHUFFLE_WORDS; p++) in_column[c][p] = ZERO_PLACE;
    }
    int word = 0;
    each_step(nest, reads, [&](const Step &step) {
        const IntWord &entry = shuffle_table[step.offset[ENTRY_IN]];
        for (int c = 0; c < LANES; c++) {
            const int field = field_of(entry, c), place = field >> 4 & (SHUFFLE_WORDS - 1);
            if (field >> 15) in_column[c][place] = word * LANES + (field & (LANES - 1));
        }
        word++;
    });
    int steps = 1;
    for (int j = 1; j < LEVELS; j++) steps *= writes.to[j] + 1;
    if (map_words + steps > MAP_WORDS) forget_maps();
    Place(*place)[LANES] = map_memory + map_words;
    int made = 0;
    each_step(nest, writes, [&](const Step &step) {
        const IntWord &entry = shuffle_table[step.offset[ENTRY_OUT]];
        for (int l = 0; l < LANES; l++) {
            const int field = field_of(entry, LANES + l), c = field & (LANES - 1);
            const int from = in_column[c][field_of(entry, LANES + c) >> 4 & (SHUFFLE_WORDS - 1)];
            place[made][l] = field >> 15 ? from : ZERO_PLACE;
        }
        made++;
    });
    map_words += steps;
    map.code = nest.code;
    map.count = nest.count;
    for (int j = 1; j < LEVELS; j++) {
        map.n[j] = nest.n[j];
        map.live[j] = nest.live[j];
    }
    map.place = place;
    map.run = longest_run(place, made);
}
static_assert((SHUFFLE_WORDS & (SHUFFLE_WORDS - 1)) == 0, "places are taken modulo their number");

// A word out of the elements of a block.
template <int RUN>
static inline void gather(Word *to, const Word *block, const Place *place) {
    const float *from = reinterpret_cast<const float *>(block);
    float *out = reinterpret_cast<float *>(to);
    UNROLL
    for (int l = 0; l < LANES && RUN > 1; l += 4) _mm_store_ps(out + l, _mm_loadu_ps(from + place[l]));
    UNROLL
    for (int l = 0; l < LANES && RUN == 1; l += 4) {
        __m128 four = _mm_load_ss(from + place[l]);
        four = _mm_insert_ps(four, _mm_load_ss(from + place[l + 1]), 0x10);
        four = _mm_insert_ps(four, _mm_load_ss(from + place[l + 2]), 0x20);
        _mm_store_ps(out + l, _mm_insert_ps(four, _mm_load_ss(from + place[l + 3]), 0x30));
    }
}

template <>
inline void gather<LANES>(Word *to, const Word *block, const Place *place) {
    store(to, load(block + *place / LANES));
}

// Words out: of the block before the steps' own one.
template <int RUN>
static void give_words(const Nest &nest, const Box &writes, const Place (*place)[LANES], Marks &marks) {
    Word *const bank = nest.operand[SHUFFLED_OUT].memory, *const held = nest.operand[SHUFFLED_HELD].memory;
    const int row_level = nest.code->row_level, row_base = nest.code->row_base;
    const bool to_bank = nest.code->operand[SHUFFLED_OUT].valid, to_held = nest.code->operand[SHUFFLED_HELD].valid;
    const bool check = nest.code->flags & CHECK;
    const Word *block = block_words[(writes.from[0] + 1) % 2];
    each_step(nest, writes, [&](const Step &step) {
        if (to_bank) gather<RUN>(bank + step.offset[SHUFFLED_OUT], block, *place);
        if (to_held) {
            const int row = (row_base + step.index[row_level]) & (ROWS - 1);
            gather<RUN>(held + row * HELD_PITCH + step.offset[SHUFFLED_HELD], block, *place);
        }
        if (check) {
            Word word;
            gather<RUN>(&word, block, *place);
            mark_beyond(marks, load(&word), STATE_LIMIT);
        }
        place++;
    });
}

// Words in, from the one that has so many before it in its block.
static int take_words(const Nest &nest, const Box &reads, int before) {
    Word *to = block_words[reads.from[0] % 2] + before;
    const Word *source = nest.operand[SOURCE].memory;
    each_step(nest, reads, [&](const Step &step) { store(to++, load(source + step.offset[SOURCE])); });
    return to - block_words[reads.from[0] % 2];
}

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
    long words_in = 1;
    for (int j = 1; j < LEVELS; j++) words_in *= nest.end[j];
    if (!nest.is_inside || words_in > MOST_READS) {
        run.beyond = true;
        return;
    }
    const bool same_entries = stays_along(nest, ENTRY_IN, 0) && stays_along(nest, ENTRY_OUT, 0);
    ShuffleMap *map = kept_map(nest);
    Marks marks = {};
    // A block's words go in while those of the block before go out: step by step if they may meet in a bank.
    const Reach &from = nest.operand[SOURCE], &to = nest.operand[SHUFFLED_OUT];
    const bool meet = from.memory == to.memory && overlap(from, to);
    for (int block = 0; block < nest.n[0]; block++) {
        Box in = reads, out = writes;
        in.from[0] = in.to[0] = block - 1;
        out.from[0] = out.to[0] = block;
        const bool takes = block + 1 < nest.n[0], gives = block > 0;
        if (gives && (!same_entries || !is_of(*map, nest))) make_map(*map, nest, in, out);
        const auto give = map->run == 16 ? give_words<16> : map->run == 4 ? give_words<4> : give_words<1>;
        in.from[0] = in.to[0] = block;
        if (!meet) {
            if (takes) take_words(nest, in, 0);
            if (gives) give(nest, out, map->place, marks);
            continue;
        }
        int taken = 0, given = 0;
        Box steps = live_box(nest);
        for (int j = 1; j < LEVELS; j++) steps.to[j] = nest.n[j] - 1;
        steps.from[0] = steps.to[0] = block;
        each_step(nest, steps, [&](const Step &step) {
            Box here;
            bool is_in = takes, is_out = gives && step.index[3] <= out.to[3];
            for (int j = 0; j < LEVELS; j++) {
                here.from[j] = here.to[j] = step.index[j];
                is_in &= j == 0 || step.index[j] <= in.to[j];
            }
            if (is_in) taken = take_words(nest, here, taken);
            if (is_out) give(nest, here, map->place + given++, marks);
        });
    }
    if (!same_entries) map->code = nullptr;
    if (code.flags & CHECK) run.beyond |= any_mark(marks);
}

#endif
