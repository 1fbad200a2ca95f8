// The shuffle unit. The permutation of a block is a map from elements in to elements out; it is built once for all
// instructions with the same table entries and block size, and cached.
#ifndef BTTLAB_PROCESSOR_EMULATION_SHUFFLE_H
#define BTTLAB_PROCESSOR_EMULATION_SHUFFLE_H

#include "engine_steps.h"
#include "exchange.h"
#include "order.h"

enum ShuffleOperand { ENTRY_IN, SOURCE, ENTRY_OUT, NOTHING_HERE, SHUFFLED_OUT, SHUFFLED_BUFFER };

static Vector block_vectors[2][MOST_READS];  // two blocks are in flight

constexpr int MAP_VECTORS = 1 << 16;
static Place map_memory[MAP_VECTORS][LANES];
static int map_vectors;  // in use

// Vectors out that are a transpose of four consecutive elements from several places. With a period they are four, `vector`,
// vector + period, vector + 2 period, vector + 3 period, and lane l of the i-th of them is element from[l] + i. With period 0
// they are two, next to each other, of eight lanes each for i = 0, 1 and i = 2, 3. A lane that is not in `lanes` is zero.
struct Transpose {
    int vector, period, lanes;
    Place from[LANES];
};
static Transpose transpose_memory[MAP_VECTORS / 2];

// A vector that no transpose has. Each of its quarters is four consecutive elements, or zero, if `has_runs`. With `is_pair`,
// all of its elements come from two vectors in, one of an even and one of an odd number.
struct Single {
    int vector;
    bool has_runs, is_pair;
    short even, odd;
};
static Single single_memory[MAP_VECTORS];
static Exchange exchange_memory[MAP_VECTORS];

// Vectors out, one after the other, that are vectors in, one after the other, or zero.
struct Move {
    int to, from, count;  // from: -1 for zero
};
static Move move_memory[MAP_VECTORS];
static Vector permuted[MAP_VECTORS];

struct ShuffleMap {
    bool is_made;
    int key[4 * LEVELS];  // the cache key, apart from the tables
    const Place (*place)[LANES];
    // The map is its moves, or its exchanges, or its transposes and singles.
    const Move *moves;
    const Exchange *exchanges;
    const Transpose *transposes;
    const Single *singles;
    int move_count, exchange_count, transpose_count, single_count;
    Permutes permutes;
};
constexpr int MAPS = 256, MAPS_LOOKED_AT = 8;
static ShuffleMap maps[MAPS];
static int in_order[MAP_VECTORS];  // 0, 1, 2, ...

static void forget_maps() {
    map_vectors = 0;
    for (int i = 0; i < MAPS; i++) maps[i].is_made = false;
    for (int w = 0; w < MAP_VECTORS; w++) in_order[w] = w;
}

// The cache entry of an instruction's map, which may still have to be built.
static ShuffleMap *kept_map(const Nest &nest) {
    const Reach &in = nest.operand[ENTRY_IN], &out = nest.operand[ENTRY_OUT];
    int key[4 * LEVELS] = {in.start, out.start, nest.count};
    for (int j = 1; j < LEVELS; j++) {
        const int parts[4] = {nest.n[j], nest.active[j], in.stride[j], out.stride[j]};
        for (int i = 0; i < 4; i++) key[4 * j + i] = parts[i];
    }
    const unsigned number = 5u * in.start + out.start + 3u * nest.count + 7u * nest.n[3] + nest.active[3];
    // Evicts another map only if all entries that may hold this one are in use, so that alternating maps are not rebuilt.
    ShuffleMap *map = nullptr;
    for (int i = 0; i < MAPS_LOOKED_AT; i++) {
        map = &maps[(number + i) % MAPS];
        if (!map->is_made || !__builtin_memcmp(map->key, key, sizeof(key))) break;
    }
    if (__builtin_memcmp(map->key, key, sizeof(key))) map->is_made = false;
    __builtin_memcpy(map->key, key, sizeof(key));
    return map;
}

// Finds the moves of the `vectors` out that a map has. None, unless every vector out is a vector in, or zero.
static void find_moves(ShuffleMap &map, int vectors) {
    Move *moves = move_memory + (map.place - map_memory);
    map.moves = moves, map.move_count = 0;
    int count = 0;
    for (int w = 0; w < vectors; w++) {
        const Place first = map.place[w][0];
        bool is_whole = first % LANES == 0;
        for (int l = 1; l < LANES; l++) is_whole &= map.place[w][l] == (first == ZERO_PLACE ? first : first + l);
        if (!is_whole) return;
        const int from = first == ZERO_PLACE ? -1 : first / LANES;
        Move &last = moves[count > 0 ? count - 1 : 0];
        const bool goes_on = count > 0 && from == (last.from < 0 ? -1 : last.from + last.count);
        if (goes_on) last.count++;
        if (!goes_on) moves[count++] = {w, from, 1};
    }
    map.move_count = count;
}

// Whether places are those of the elements that lie so far behind others; zeros where those are.
static bool are_behind(const Place *place, const Place *other, int distance, int lanes) {
    bool are = true;
    for (int l = 0; l < lanes; l++) are &= place[l] == (other[l] == ZERO_PLACE ? ZERO_PLACE : other[l] + distance);
    return are;
}

static bool has_runs(const Place *place) {
    bool has = true;
    for (int l = 0; l < LANES; l++) has &= are_behind(&place[l], &place[l / 4 * 4], l % 4, 1);
    return has;
}

static Single single_of(int vector, const Place *place) {
    Single single = {vector, has_runs(place), true, -1, -1};
    for (int l = 0; l < LANES; l++) {
        if (place[l] == ZERO_PLACE) continue;
        const short in = static_cast<short>(place[l] / LANES);
        short &own = in % 2 ? single.odd : single.even;
        single.is_pair &= own < 0 || own == in;
        own = in;
    }
    if (single.even < 0) single.even = 0;
    if (single.odd < 0) single.odd = single.even;
    return single;
}

// Finds the transposes of the `vectors` out that a map has: all that one can have.
static void find_transposes(ShuffleMap &map, int vectors) {
    static bool is_taken[MAP_VECTORS];
    const int first = static_cast<int>(map.place - map_memory);
    Transpose *transposes = transpose_memory + first / 2;
    Single *singles = single_memory + first;
    map.transposes = transposes, map.singles = singles;
    map.transpose_count = map.single_count = 0;
    for (int w = 0; w < vectors; w++) is_taken[w] = false;
    for (int w = 0; w < vectors; w++) {
        if (is_taken[w]) continue;
        const Place *from = map.place[w];
        const auto continues = [&](int other, int i) {
            return other < vectors && !is_taken[other] && are_behind(map.place[other], from, i, LANES);
        };
        int period = 1;
        while (w + 3 * period < vectors && !continues(w + period, 1)) period++;
        const bool are_four = continues(w + period, 1) && continues(w + 2 * period, 2) && continues(w + 3 * period, 3);
        const bool are_two = w + 1 < vectors && !is_taken[w + 1] && are_behind(from + LANES / 2, from, 1, LANES / 2) &&
                             are_behind(map.place[w + 1], from, 2, LANES);
        if (has_runs(from) || !(are_four || are_two)) {
            singles[map.single_count++] = single_of(w, from);
            continue;
        }
        Transpose &found = transposes[map.transpose_count++];
        found.vector = w, found.period = are_four ? period : 0, found.lanes = 0;
        for (int l = 0; l < LANES; l++) {
            const bool is_zero = from[l] == ZERO_PLACE;
            found.from[l] = is_zero ? 0 : from[l];
            found.lanes |= is_zero ? 0 : 1 << l;
        }
        for (int i = 0; i < (are_four ? 4 : 2); i++) is_taken[w + i * (are_four ? period : 1)] = true;
    }
}

// Builds the map of a block whose steps read and write in these boxes. Elements that no vector of the block wrote are zero.
static void make_map(ShuffleMap &map, const Nest &nest, const Box &reads, const Box &writes) {
    static Place in_column[LANES][SHUFFLE_VECTORS];
    for (int c = 0; c < LANES; c++) {
        for (int p = 0; p < SHUFFLE_VECTORS; p++) in_column[c][p] = ZERO_PLACE;
    }
    int vector = 0;
    each_step(nest, reads, [&](const Step &step) {
        const IntVector &entry = shuffle_table[step.offset[ENTRY_IN]];
        for (int c = 0; c < LANES; c++) {
            const int field = field_of(entry, c), place = field >> 4 & (SHUFFLE_VECTORS - 1);
            if (field >> 15) in_column[c][place] = vector * LANES + (field & (LANES - 1));
        }
        vector++;
    });
    int steps = 1;
    for (int j = 1; j < LEVELS; j++) steps *= writes.to[j] + 1;
    const int kept = steps + steps % 2;  // a transpose is of two vectors or more
    if (map_vectors + kept > MAP_VECTORS) forget_maps();
    Place(*place)[LANES] = map_memory + map_vectors;
    int made = 0;
    each_step(nest, writes, [&](const Step &step) {
        const IntVector &entry = shuffle_table[step.offset[ENTRY_OUT]];
        for (int l = 0; l < LANES; l++) {
            const int field = field_of(entry, LANES + l), c = field & (LANES - 1);
            const int from = in_column[c][field_of(entry, LANES + c) >> 4 & (SHUFFLE_VECTORS - 1)];
            place[made][l] = field >> 15 ? from : ZERO_PLACE;
        }
        made++;
    });
    map_vectors += kept;
    map.is_made = true;
    map.place = place;
    find_moves(map, made);
    map.exchanges = exchange_memory + (place - map_memory), map.exchange_count = 0;
    if (HAS_PERMUTES && !map.move_count) {
        map.exchange_count = find_exchanges(place, made, exchange_memory + (place - map_memory), map.permutes);
    }
    if (!map.move_count && !map.exchange_count) find_transposes(map, made);
}
static_assert((SHUFFLE_VECTORS & (SHUFFLE_VECTORS - 1)) == 0, "places are taken modulo their number");

// Where the vectors out of a block go: vector w to to[at[w]].
struct Destination {
    Vector *to;
    const int *at;

    void give(int w, const Lanes &value) const { store(to + at[w], value); }
};

static inline void give_transpose(const Transpose &t, const float *elements, const Destination &to) {
    const Lanes lanes = some_lanes(t.lanes);
    const auto at = [&](int l) { return elements + t.from[l]; };
    if (t.period == 0) {
        __m256 row[4], column[4];
        UNROLL
        for (int i = 0; i < 4; i++) row[i] = join(at(i), at(i + 4));
        transpose(row, column);
        to.give(t.vector, join(column[0], column[1]) & lanes);
        to.give(t.vector + 1, join(column[2], column[3]) & lanes);
        return;
    }
    Lanes row[4], column[4];
    UNROLL
    for (int i = 0; i < 4; i++) row[i] = join(at(i), at(i + 4), at(i + 8), at(i + 12));
    transpose(row, column);
    UNROLL
    for (int i = 0; i < 4; i++) to.give(t.vector + i * t.period, column[i] & lanes);
}

// Where a block's vectors in are, and where its vectors out go.
struct Block {
    const Vector *from;
    Destination to;
};

// Gathers the vectors out from the elements of a block.
static void permute_block(const ShuffleMap &map, const Block &block) {
    const Destination &to = block.to;
    static const float zeros[4] = {};
    const float *elements = reinterpret_cast<const float *>(block.from);
    for (int t = 0; t < map.transpose_count; t++) give_transpose(map.transposes[t], elements, to);
    for (const Single *s = map.singles; s < map.singles + map.single_count; s++) {
        const Place *place = map.place[s->vector];
        const auto at = [&](int l) { return place[l] == ZERO_PLACE ? zeros : elements + place[l]; };
#if defined(__AVX512F__)
        if (s->is_pair) {
            const __m512i lanes = _mm512_maskz_cvtepu16_epi32(0xffff, *reinterpret_cast<const __m256i_u *>(place));
            const int is_some = _mm512_cmpneq_epi32_mask(lanes, _mm512_set1_epi32(ZERO_PLACE));
            to.give(s->vector, permute(load(block.from + s->even), load(block.from + s->odd), lanes, is_some));
            continue;
        }
#endif
        if (s->has_runs) {
            to.give(s->vector, join(at(0), at(4), at(8), at(12)));
            continue;
        }
        Vector vector = {};
        for (int l = 0; l < LANES; l++) vector[l] = *at(l);
        to.give(s->vector, load(&vector));
    }
}

#if defined(__AVX512F__)
// WHOLE: all exchanges are of eight vectors in and eight out.
template <bool WHOLE, typename BlockAt>
static void exchange_blocks(const ShuffleMap &map, int blocks, BlockAt block_at) {
    const Lanes lanes = some_lanes(map.permutes.lanes);
    __m512i lane[STAGES][2];
    UNROLL
    for (int i = 0; i < 2 * STAGES; i++) lane[i / 2][i % 2] = _mm512_load_si512(map.permutes.lane[i / 2][i % 2]);
    for (int b = 0; b < blocks; b++) {
        const Block block = block_at(b);
        for (const Exchange *e = map.exchanges; e < map.exchanges + map.exchange_count; e++) {
            Lanes vectors[EXCHANGED];
            UNROLL
            for (int i = 0; i < EXCHANGED; i++) vectors[i] = load(WHOLE || i < e->ins ? block.from + e->in[i] : &zero_vector);
            exchange(vectors, [&](int s, int half, const Lanes &a, const Lanes &b) { return permute(a, b, lane[s][half]); });
            UNROLL
            for (int i = 0; i < EXCHANGED; i++) {
                if (WHOLE || i < e->outs) block.to.give(e->out[i], vectors[i] & lanes);
            }
        }
    }
}
#endif

static void move_block(const ShuffleMap &map, const Block &block) {
    for (const Move *move = map.moves; move < map.moves + map.move_count; move++) {
        const Vector *from = move->from < 0 ? &zero_vector : block.from + move->from;
        const int stride = move->from >= 0;
        for (int n = 0; n < move->count; n++, from += stride) block.to.give(move->to + n, load(from));
    }
}

// Gives the vectors out of blocks that share a map.
template <typename BlockAt>
static void give_blocks(const ShuffleMap &map, int blocks, BlockAt block_at) {
#if defined(__AVX512F__)
    if (map.exchange_count && map.permutes.are_whole) return exchange_blocks<true>(map, blocks, block_at);
    if (map.exchange_count) return exchange_blocks<false>(map, blocks, block_at);
#endif
    for (int b = 0; b < blocks; b++) map.move_count ? move_block(map, block_at(b)) : permute_block(map, block_at(b));
}

// Whether the steps of a block access contiguous vectors, in order.
static bool lies_together(const Nest &nest, int o, const Box &box) {
    int vectors = 1;
    for (int j = LEVELS - 1; j > 0; j--) {
        if (box.to[j] > 0 && nest.operand[o].stride[j] != vectors) return false;
        vectors *= box.to[j] + 1;
    }
    return !nest.operand[o].token_offset;
}

// The lists of places of blocks' vectors out: few differ.
constexpr int MOST_LISTS = 256, MOST_PLACES = 1 << 15;
static struct {
    int first, count;
} place_list[MOST_LISTS];
static int place_memory[MOST_PLACES], lists_in_use, places_in_use;

static void forget_places() { lists_in_use = places_in_use = 0; }

// A list with these places; null if there is no room for it.
static const int *kept_places(const int *places, int count) {
    for (int i = 0; i < lists_in_use; i++) {
        const int *kept = place_memory + place_list[i].first;
        if (place_list[i].count == count && !__builtin_memcmp(kept, places, sizeof(int) * count)) return kept;
    }
    if (lists_in_use == MOST_LISTS || places_in_use + count > MOST_PLACES) return nullptr;
    int *kept = place_memory + places_in_use;
    __builtin_memcpy(kept, places, sizeof(int) * count);
    place_list[lists_in_use++] = {places_in_use, count};
    places_in_use += count;
    return kept;
}

// The places of a block's vectors out in operand o, from that of the first one on; in `places` unless they follow one another.
static const int *places_of(const Nest &nest, int o, const Box &writes, int *places) {
    const bool has_rows = o == SHUFFLED_BUFFER && nest.code->row_level;
    if (!nest.code->operand[o].valid || (!has_rows && lies_together(nest, o, writes))) return in_order;
    int w = 0;
    long first = 0;
    each_step(nest, writes, [&](const Step &step) {
        if (w == 0) first = step.offset[o];
        places[w++] = static_cast<int>(step.offset[o] - first + (has_rows ? 1L * row_of(nest, step) * BUFFER_PITCH : 0));
    });
    return places;
}

// Whether the places of a block's vectors out in operand o are known to differ.
static bool are_distinct(const Nest &nest, int o, const Box &writes) {
    const bool has_rows = o == SHUFFLED_BUFFER && nest.code->row_level;
    long inside = 0;
    for (int j = LEVELS - 1; j > 0; j--) {
        if (writes.to[j] == 0) continue;
        if (has_offset(nest, o, j)) return false;
        if (has_rows && nest.code->row_level == j) {
            if (writes.to[j] >= ROWS) return false;
            continue;
        }
        const long stride = __builtin_abs(nest.operand[o].stride[j]);
        if (stride <= inside) return false;
        inside += stride * writes.to[j];
    }
    return true;
}

// The address of a block's first step.
static inline Vector *start_of(const Nest &nest, int o, int block) {
    const Reach &reach = nest.operand[o];
    const int token = nest.code->offset_level == 0 ? block : 0;
    return reach.memory + reach.start + 1L * block * reach.stride[0] + (reach.token_offset ? reach.token_offset[token] : 0);
}

static inline Vector *buffer_start(const Nest &nest, int block) {
    const int row = nest.code->row_level ? 0 : nest.code->row_base + block;
    return start_of(nest, SHUFFLED_BUFFER, block) + (row & (ROWS - 1)) * BUFFER_PITCH;
}

// The bank and the operand buffer that vectors out go to.
struct Destinations {
    Destination to[2];
    int count;

    void give(int w, const Lanes &value) const {
        for (int i = 0; i < count; i++) to[i].give(w, value);
    }
};

// Reads the vectors in.
static Vector *take_vectors(const Nest &nest, const Box &reads, Vector *to) {
    each_row(nest, reads, innermost(reads), [&](const Step &step, int count, const long *stride) {
        const Vector *source = nest.operand[SOURCE].memory + step.offset[SOURCE];
        for (int n = 0; n < count; n++) store(to++, load(source + n * stride[SOURCE]));
    });
    return to;
}

// The steps of a block.
static Box at_block(const Box &box, int block) {
    Box steps = box;
    steps.from[0] = steps.to[0] = block;
    return steps;
}

static Box shuffle_reads(const Nest &nest) {
    Box reads = active_box(nest);
    reads.to[0] = nest.n[0] - 2;
    return reads;
}

static Box shuffle_writes(const Nest &nest) {
    Box writes;
    for (int j = 0; j < LEVELS; j++) {
        writes.from[j] = 0;
        writes.to[j] = nest.n[j] - 1;
    }
    writes.from[0] = 1;
    if (nest.count < nest.n[3]) writes.to[3] = nest.count - 1;
    return writes;
}

static void place_shuffle(Nest &nest, const Sample &sample) {
    const Instruction &code = *nest.code;
    const Box reads = shuffle_reads(nest), writes = shuffle_writes(nest);
    place(nest, ENTRY_IN, nullptr, SHUFFLE_ENTRIES, reads, sample);
    place_in_bank(nest, SOURCE, &zero_vector, reads, sample);
    place(nest, ENTRY_OUT, nullptr, SHUFFLE_ENTRIES, writes, sample);
    place_nowhere(nest, NOTHING_HERE, &zero_vector);
    place_in_bank(nest, SHUFFLED_OUT, &scratch_vector, writes, sample);
    place_held(nest, SHUFFLED_BUFFER, code.operand[SHUFFLED_BUFFER].where % ENGINES, &scratch_vector, writes, sample);
}

// Step by step, reads the vectors of a block, and writes the permuted ones of the block before.
static void swap_block(const Nest &nest, int block, const Box &in, const Box &out, Vector *taken, const Destinations &to) {
    int given = 0;
    Box steps = active_box(nest);
    for (int j = 1; j < LEVELS; j++) steps.to[j] = nest.n[j] - 1;
    steps.from[0] = steps.to[0] = block;
    each_step(nest, steps, [&](const Step &step) {
        Box here;
        bool is_in = block + 1 < nest.n[0], is_out = block > 0 && step.index[3] <= out.to[3];
        for (int j = 0; j < LEVELS; j++) {
            here.from[j] = here.to[j] = step.index[j];
            is_in &= j == 0 || step.index[j] <= in.to[j];
        }
        if (is_in) taken = take_vectors(nest, here, taken);
        if (!is_out) return;
        to.give(given, load(permuted + given));
        given++;
    });
}

// What is the same for all samples for which a nest holds.
struct ShufflePlan {
    bool is_too_large;  // a block has too many vectors
    bool same_entries;  // all blocks have the same map
    bool meet;          // in and out may access the same address
    bool stays;         // blocks are read in place, without a copy
    bool at_once;       // vectors out go to their places at once, in any order: nothing else is to be done with them
    int vectors_out;    // of a block
    const int *at[2];   // the places of a block's vectors out in bank and buffer; null: to be found in each run
};

static int found_places[2][MAP_VECTORS];

// `lasts`: whether it holds for other samples, too.
static ShufflePlan plan_shuffle(const Nest &nest, bool lasts) {
    const Instruction &code = *nest.code;
    const Box reads = shuffle_reads(nest), writes = shuffle_writes(nest);
    ShufflePlan plan = {};
    long vectors_in = 1, vectors_out = 1;
    for (int j = 1; j < LEVELS; j++) vectors_in *= nest.end[j], vectors_out *= writes.to[j] + 1;
    plan.is_too_large = vectors_in > MOST_READS || vectors_out > MAP_VECTORS;
    if (plan.is_too_large || nest.n[0] < 2) return plan;
    plan.vectors_out = static_cast<int>(vectors_out);
    const bool has_offsets = nest.operand[ENTRY_IN].token_offset || nest.operand[ENTRY_OUT].token_offset;
    plan.same_entries = stays_along(nest, ENTRY_IN, 0) && stays_along(nest, ENTRY_OUT, 0) && !has_offsets;
    const Reach &from = nest.operand[SOURCE], &to = nest.operand[SHUFFLED_OUT];
    plan.meet = from.memory == to.memory && overlap(from, to);
    plan.stays = !plan.meet && lies_together(nest, SOURCE, reads);
    const bool to_bank = code.operand[SHUFFLED_OUT].valid, to_buffer = code.operand[SHUFFLED_BUFFER].valid;
    const bool is_distinct = are_distinct(nest, to_buffer ? SHUFFLED_BUFFER : SHUFFLED_OUT, writes);
    plan.at_once = !plan.meet && !(code.flags & CHECK) && to_bank != to_buffer && is_distinct;
    for (int i = 0; i < 2 && lasts; i++) {
        plan.at[i] = places_of(nest, SHUFFLED_OUT + i, at_block(writes, 1), found_places[i]);
        if (plan.at[i] != in_order) plan.at[i] = kept_places(plan.at[i], plan.vectors_out);
    }
    return plan;
}

static void run_shuffle(const Nest &nest, const ShufflePlan &plan, Run &run) {
    if (plan.is_too_large) {
        run.overflow = true;
        return;
    }
    const int blocks = nest.n[0];
    if (blocks < 2) return;
    const Instruction &code = *nest.code;
    const Box reads = shuffle_reads(nest), writes = shuffle_writes(nest);
    ShuffleMap *map = kept_map(nest);
    const int *at[2];
    for (int i = 0; i < 2; i++) {
        at[i] = plan.at[i] ? plan.at[i] : places_of(nest, SHUFFLED_OUT + i, at_block(writes, 1), found_places[i]);
    }
    const bool check = code.flags & CHECK, to_buffer = code.operand[SHUFFLED_BUFFER].valid;
    const auto to_bank_of = [&](int block) { return Destination{start_of(nest, SHUFFLED_OUT, block), at[0]}; };
    const auto to_buffer_of = [&](int block) { return Destination{buffer_start(nest, block), at[1]}; };
    const auto make = [&](int block) { make_map(*map, nest, at_block(reads, block), at_block(writes, block + 1)); };
    if (plan.at_once && plan.stays && plan.same_entries) {
        if (!map->is_made) make(0);
        give_blocks(*map, blocks - 1, [&](int block) {
            return Block{start_of(nest, SOURCE, block), to_buffer ? to_buffer_of(block + 1) : to_bank_of(block + 1)};
        });
        return;
    }
    // Reads a block's vectors while the previous block's are written: step by step if both may access the same address.
    Marks marks = {};
    const Vector *before = nullptr;
    for (int block = 0; block < blocks; block++) {
        const bool takes = block + 1 < blocks, gives = block > 0;
        if (gives && !(plan.same_entries && map->is_made)) make(block - 1);
        Vector *taken = plan.stays ? start_of(nest, SOURCE, block) : block_vectors[block % 2];
        if (!plan.meet && takes && !plan.stays) take_vectors(nest, at_block(reads, block), taken);
        Destinations all = {};
        if (code.operand[SHUFFLED_OUT].valid) all.to[all.count++] = to_bank_of(block);
        if (to_buffer) all.to[all.count++] = to_buffer_of(block);
        if (gives) give_blocks(*map, 1, [&](int) { return Block{before, plan.at_once ? all.to[0] : Destination{permuted, in_order}}; });
        if (!plan.at_once) {
            const int vectors = gives ? plan.vectors_out : 0;
            for (int w = 0; w < vectors; w++) {
                if (check) mark_overflow(marks, load(permuted + w), STATE_LIMIT);
                if (!plan.meet) all.give(w, load(permuted + w));
            }
            if (plan.meet) swap_block(nest, block, at_block(reads, block), at_block(writes, block), taken, all);
        }
        before = taken;
    }
    map->is_made = map->is_made && plan.same_entries;
    if (check) run.overflow |= any_mark(marks);
}

#endif
