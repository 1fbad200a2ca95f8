// The shuffle unit. The permutation of a block is a map from elements in to elements out; it is built once for all
// instructions with the same table entries and block size, and cached.
#ifndef BTTLAB_PROCESSOR_EMULATION_SHUFFLE_H
#define BTTLAB_PROCESSOR_EMULATION_SHUFFLE_H

#include "engine_steps.h"
#include "order.h"

enum ShuffleOperand { ENTRY_IN, SOURCE, ENTRY_OUT, NOTHING_HERE, SHUFFLED_OUT, SHUFFLED_BUFFER };

// Vectors that a block may read. Two blocks are in flight.
constexpr int MOST_READS = 1024;
static Vector block_vectors[2][MOST_READS];

// For each element out, in the order of the steps: its index among the elements in; ZERO_PLACE for a lane without one.
typedef unsigned short Place;
constexpr int ZERO_PLACE = MOST_READS * LANES;
static_assert(ZERO_PLACE + LANES <= 1 << 16, "places are numbers of 16 bits");
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

// A vector that no transpose has. Each of its quarters is four consecutive elements, or zero, if `has_runs`.
struct Single {
    int vector;
    bool has_runs;
};
static Single single_memory[MAP_VECTORS];
static Vector permuted[MAP_VECTORS];

struct ShuffleMap {
    bool is_made;
    int key[4 * LEVELS];  // the cache key, apart from the tables
    const Place (*place)[LANES];
    bool moves_vectors;  // each vector out is a vector in, or zero
    const Transpose *transposes;
    const Single *singles;
    int transpose_count, single_count;
};
constexpr int MAPS = 256, MAPS_LOOKED_AT = 8;
static ShuffleMap maps[MAPS];

static void forget_maps() {
    map_vectors = 0;
    for (int i = 0; i < MAPS; i++) maps[i].is_made = false;
}

// The cache entry of an instruction's map, which may still have to be built.
static ShuffleMap *kept_map(const Nest &nest) {
    const Reach &in = nest.operand[ENTRY_IN], &out = nest.operand[ENTRY_OUT];
    int key[4 * LEVELS] = {in.start, out.start, nest.count};
    for (int j = 1; j < LEVELS; j++) {
        const int parts[4] = {nest.n[j], nest.active[j], in.stride[j], out.stride[j]};
        for (int i = 0; i < 4; i++) key[4 * j + i] = parts[i];
    }
    unsigned long number = 0;
    for (int part : key) number = number * 31 + part;
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

// Whether every vector out is a vector in, or zero.
static bool are_vectors(const Place (*place)[LANES], int vectors) {
    bool are_whole = true;
    for (int w = 0; w < vectors; w++) {
        const Place first = place[w][0];
        are_whole &= first % LANES == 0;
        for (int l = 1; l < LANES; l++) are_whole &= place[w][l] == (first == ZERO_PLACE ? first : first + l);
    }
    return are_whole;
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
            singles[map.single_count++] = {w, has_runs(from)};
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
    map.moves_vectors = are_vectors(place, made);
    if (!map.moves_vectors) find_transposes(map, made);
}
static_assert((SHUFFLE_VECTORS & (SHUFFLE_VECTORS - 1)) == 0, "places are taken modulo their number");

// Where the vectors out of a block go: vector w to to[at[w]], and to second[second_at[w]] unless that is null.
struct Destination {
    Vector *to, *second;
    const int *at, *second_at;
    bool check;

    void give(int w, const Lanes &value, Marks &marks) const {
        store(to + at[w], value);
        if (second) store(second + second_at[w], value);
        if (check) mark_overflow(marks, value, STATE_LIMIT);
    }
};

static inline __m256 two_quarters(const float *low, const float *high) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high), 1);
}

static inline void give_transpose(const Transpose &t, const float *elements, const Destination &to, Marks &marks) {
    const Lanes lanes = some_lanes(t.lanes);
    __m256 row[2][4], column[2][4];
    UNROLL
    for (int i = 0; i < 4; i++) row[0][i] = two_quarters(elements + t.from[i], elements + t.from[i + 4]);
    transpose(row[0], column[0]);
    if (t.period == 0) {
        to.give(t.vector, join(column[0][0], column[0][1]) & lanes, marks);
        to.give(t.vector + 1, join(column[0][2], column[0][3]) & lanes, marks);
        return;
    }
    UNROLL
    for (int i = 0; i < 4; i++) row[1][i] = two_quarters(elements + t.from[i + 8], elements + t.from[i + 12]);
    transpose(row[1], column[1]);
    UNROLL
    for (int i = 0; i < 4; i++) to.give(t.vector + i * t.period, join(column[0][i], column[1][i]) & lanes, marks);
}

// Gathers the vectors out from the elements of a block.
static void permute_block(const ShuffleMap &map, const Vector *block, const Destination &where, Marks &marks) {
    static const float zeros[4] = {};
    const Destination to = where;  // a copy, because the compiler must assume that stores change the original
    const float *elements = reinterpret_cast<const float *>(block);
    for (int t = 0; t < map.transpose_count; t++) give_transpose(map.transposes[t], elements, to, marks);
    for (const Single *s = map.singles; s < map.singles + map.single_count; s++) {
        const Place *place = map.place[s->vector];
        const auto at = [&](int l) { return place[l] == ZERO_PLACE ? zeros : elements + place[l]; };
        if (s->has_runs) {
            to.give(s->vector, join(two_quarters(at(0), at(4)), two_quarters(at(8), at(12))), marks);
            continue;
        }
        Vector vector = {};
        for (int l = 0; l < LANES; l++) vector[l] = *at(l);
        to.give(s->vector, load(&vector), marks);
    }
}

// Moves the vectors out from those of a block.
static void move_block(const ShuffleMap &map, int vectors, const Vector *block, const Destination &where, Marks &marks) {
    const Destination to = where;  // a copy, too
    for (int w = 0; w < vectors; w++) {
        const Place place = map.place[w][0];
        to.give(w, place == ZERO_PLACE ? splat<Lanes>(0.0f) : load(block + place / LANES), marks);
    }
}

static void give_block(const ShuffleMap &map, int vectors, const Vector *block, const Destination &to, Marks &marks) {
    if (map.moves_vectors) return move_block(map, vectors, block, to, marks);
    permute_block(map, block, to, marks);
}

// The places of a block's vectors out, from that of the first one on.
static int bank_places[MAP_VECTORS], buffer_places[MAP_VECTORS], in_order[MAP_VECTORS];

static inline long row_offset(const Nest &nest, const Step &step) { return 1L * row_of(nest, step) * BUFFER_PITCH; }

static void find_places(const Nest &nest, const Box &writes) {
    int w = 0;
    long bank = 0, buffer = 0;
    each_step(nest, writes, [&](const Step &step) {
        const long row = nest.code->row_level ? row_offset(nest, step) : 0;
        in_order[w] = w;
        if (w == 0) bank = step.offset[SHUFFLED_OUT], buffer = step.offset[SHUFFLED_BUFFER];
        bank_places[w] = static_cast<int>(step.offset[SHUFFLED_OUT] - bank);
        buffer_places[w++] = static_cast<int>(step.offset[SHUFFLED_BUFFER] - buffer + row);
    });
}

// Where the vectors out of a block go.
static Destination destination_of(const Nest &nest, int block) {
    const auto &operand = nest.code->operand;
    const int first[LEVELS] = {block}, row = nest.code->row_level ? 0 : nest.code->row_base + block;
    const auto at = [&](int o) { return nest.operand[o].memory + nest.operand[o].offset(first, nest.code->offset_level); };
    const bool check = nest.code->flags & CHECK;
    if (!operand[SHUFFLED_BUFFER].valid) return {at(SHUFFLED_OUT), nullptr, bank_places, nullptr, check};
    Vector *buffer = at(SHUFFLED_BUFFER) + (row & (ROWS - 1)) * BUFFER_PITCH;
    if (!operand[SHUFFLED_OUT].valid) return {buffer, nullptr, buffer_places, nullptr, check};
    return {at(SHUFFLED_OUT), buffer, bank_places, buffer_places, check};
}

// Reads the vectors in.
static Vector *take_vectors(const Nest &nest, const Box &reads, Vector *to) {
    each_row(nest, reads, innermost(reads), [&](const Step &step, int count, const long *stride) {
        const Vector *source = nest.operand[SOURCE].memory + step.offset[SOURCE];
        for (int n = 0; n < count; n++) store(to++, load(source + n * stride[SOURCE]));
    });
    return to;
}

// Whether a block's vectors in are contiguous and in order.
static bool lies_together(const Nest &nest, const Box &reads) {
    int vectors = 1;
    for (int j = LEVELS - 1; j > 0; j--) {
        if (reads.to[j] > 0 && nest.operand[SOURCE].stride[j] != vectors) return false;
        vectors *= reads.to[j] + 1;
    }
    return !nest.operand[SOURCE].token_offset;
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
static void swap_block(const Nest &nest, int block, const Box &in, const Box &out, Vector *taken, const Destination &to) {
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
        const Lanes value = load(permuted + given);
        store(to.to + to.at[given], value);
        if (to.second) store(to.second + to.second_at[given], value);
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
    const bool has_offsets = nest.operand[ENTRY_IN].token_offset || nest.operand[ENTRY_OUT].token_offset;
    const bool same_entries = stays_along(nest, ENTRY_IN, 0) && stays_along(nest, ENTRY_OUT, 0) && !has_offsets;
    ShuffleMap *map = kept_map(nest);
    Marks marks = {};
    // Reads a block's vectors while the previous block's are written: step by step if both may access the same address.
    const Reach &from = nest.operand[SOURCE], &to = nest.operand[SHUFFLED_OUT];
    const bool meet = from.memory == to.memory && overlap(from, to);
    const bool stays = !meet && lies_together(nest, reads);  // the block is read in place, without a copy
    const int vectors = static_cast<int>(vectors_out);
    const Vector *before = nullptr;
    for (int block = 0; block < nest.n[0]; block++) {
        Box in = reads, out = writes;
        in.from[0] = in.to[0] = block - 1;
        out.from[0] = out.to[0] = block;
        const bool takes = block + 1 < nest.n[0], gives = block > 0;
        if (gives && !(same_entries && map->is_made)) make_map(*map, nest, in, out);
        if (block == 1) find_places(nest, out);
        in.from[0] = in.to[0] = block;
        const int first[LEVELS] = {block};
        Vector *taken = stays ? from.memory + from.offset(first, code.offset_level) : block_vectors[block % 2];
        const Destination at = destination_of(nest, block);
        if (!meet) {
            if (takes && !stays) take_vectors(nest, in, taken);
            if (gives) give_block(*map, vectors, before, at, marks);
        } else {
            if (gives) give_block(*map, vectors, before, {permuted, nullptr, in_order, nullptr, at.check}, marks);
            swap_block(nest, block, in, out, taken, at);
        }
        before = taken;
    }
    map->is_made = map->is_made && same_entries;
    if (code.flags & CHECK) run.overflow |= any_mark(marks);
}

#endif
