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

// Gathers the vectors out from the elements of a block.
static void permute_block(const ShuffleMap &map, const Vector *block, Destination to) {
    static const float zeros[4] = {};
    const float *elements = reinterpret_cast<const float *>(block);
    for (int t = 0; t < map.transpose_count; t++) give_transpose(map.transposes[t], elements, to);
    for (const Single *s = map.singles; s < map.singles + map.single_count; s++) {
        const Place *place = map.place[s->vector];
        const auto at = [&](int l) { return place[l] == ZERO_PLACE ? zeros : elements + place[l]; };
#if defined(__AVX512F__)
        if (s->is_pair) {
            const __m512i lanes = _mm512_maskz_cvtepu16_epi32(0xffff, *reinterpret_cast<const __m256i_u *>(place));
            const int is_some = _mm512_cmpneq_epi32_mask(lanes, _mm512_set1_epi32(ZERO_PLACE));
            to.give(s->vector, permute(load(block + s->even), load(block + s->odd), lanes, is_some));
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
template <bool WHOLE>
static void exchange_block(const ShuffleMap &map, const Vector *block, Destination to) {
    const Lanes lanes = some_lanes(map.permutes.lanes);
    __m512i lane[STAGES][2];
    UNROLL
    for (int i = 0; i < 2 * STAGES; i++) lane[i / 2][i % 2] = _mm512_load_si512(map.permutes.lane[i / 2][i % 2]);
    for (const Exchange *e = map.exchanges; e < map.exchanges + map.exchange_count; e++) {
        Lanes vectors[EXCHANGED];
        UNROLL
        for (int i = 0; i < EXCHANGED; i++) vectors[i] = load(WHOLE || i < e->ins ? block + e->in[i] : &zero_vector);
        exchange(vectors, [&](int s, int half, const Lanes &a, const Lanes &b) { return permute(a, b, lane[s][half]); });
        UNROLL
        for (int i = 0; i < EXCHANGED; i++) {
            if (WHOLE || i < e->outs) to.give(e->out[i], vectors[i] & lanes);
        }
    }
}
#endif

static void move_block(const ShuffleMap &map, const Vector *block, Destination to) {
    for (const Move *move = map.moves; move < map.moves + map.move_count; move++) {
        const Vector *from = move->from < 0 ? &zero_vector : block + move->from;
        const int stride = move->from >= 0;
        for (int n = 0; n < move->count; n++, from += stride) to.give(move->to + n, load(from));
    }
}

static void give_block(const ShuffleMap &map, const Vector *block, const Destination &to) {
    if (map.move_count) return move_block(map, block, to);
#if defined(__AVX512F__)
    if (map.exchange_count && map.permutes.are_whole) return exchange_block<true>(map, block, to);
    if (map.exchange_count) return exchange_block<false>(map, block, to);
#endif
    permute_block(map, block, to);
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

static int bank_places[MAP_VECTORS], buffer_places[MAP_VECTORS];

// The places of a block's vectors out in operand o, from that of the first one on.
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

static void run_shuffle(const Nest &nest, Run &run) {
    const Instruction &code = *nest.code;
    const Box reads = shuffle_reads(nest), writes = shuffle_writes(nest);
    long vectors_in = 1;
    for (int j = 1; j < LEVELS; j++) vectors_in *= nest.end[j];
    long vectors_out = 1;
    for (int j = 1; j < LEVELS; j++) vectors_out *= writes.to[j] + 1;
    if (vectors_in > MOST_READS || vectors_out > MAP_VECTORS) {
        run.overflow = true;
        return;
    }
    const int blocks = nest.n[0];
    if (blocks < 2) return;
    const bool has_offsets = nest.operand[ENTRY_IN].token_offset || nest.operand[ENTRY_OUT].token_offset;
    const bool same_entries = stays_along(nest, ENTRY_IN, 0) && stays_along(nest, ENTRY_OUT, 0) && !has_offsets;
    ShuffleMap *map = kept_map(nest);
    // Reads a block's vectors while the previous block's are written: step by step if both may access the same address.
    const Reach &from = nest.operand[SOURCE], &to = nest.operand[SHUFFLED_OUT];
    const bool meet = from.memory == to.memory && overlap(from, to);
    const bool stays = !meet && lies_together(nest, SOURCE, reads);  // the block is read in place, without a copy
    const bool to_bank = code.operand[SHUFFLED_OUT].valid, to_buffer = code.operand[SHUFFLED_BUFFER].valid;
    const bool check = code.flags & CHECK;
    // Vectors out go to their places at once, in any order, unless something else is to be done with them.
    const bool is_distinct = are_distinct(nest, to_buffer ? SHUFFLED_BUFFER : SHUFFLED_OUT, writes);
    const bool at_once = !meet && !check && to_bank != to_buffer && is_distinct;
    const int *bank_at = places_of(nest, SHUFFLED_OUT, at_block(writes, 1), bank_places);
    const int *buffer_at = places_of(nest, SHUFFLED_BUFFER, at_block(writes, 1), buffer_places);
    Marks marks = {};
    const Vector *before = nullptr;
    for (int block = 0; block < blocks; block++) {
        const bool takes = block + 1 < blocks, gives = block > 0;
        if (gives && !(same_entries && map->is_made)) make_map(*map, nest, at_block(reads, block - 1), at_block(writes, block));
        Vector *taken = stays ? start_of(nest, SOURCE, block) : block_vectors[block % 2];
        if (!meet && takes && !stays) take_vectors(nest, at_block(reads, block), taken);
        Destinations all = {};
        if (to_bank) all.to[all.count++] = {start_of(nest, SHUFFLED_OUT, block), bank_at};
        if (to_buffer) all.to[all.count++] = {buffer_start(nest, block), buffer_at};
        if (gives) give_block(*map, before, at_once ? all.to[0] : Destination{permuted, in_order});
        if (!at_once) {
            const int vectors = gives ? static_cast<int>(vectors_out) : 0;
            for (int w = 0; w < vectors; w++) {
                if (check) mark_overflow(marks, load(permuted + w), STATE_LIMIT);
                if (!meet) all.give(w, load(permuted + w));
            }
            if (meet) swap_block(nest, block, at_block(reads, block), at_block(writes, block), taken, all);
        }
        before = taken;
    }
    map->is_made = map->is_made && same_entries;
    if (check) run.overflow |= any_mark(marks);
}

#endif
