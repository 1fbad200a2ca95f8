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

// Eight lanes of four vectors out, the halves `half`, half + period, half + 2 period, half + 3 period of the block: the i-th of
// them takes the elements from[l] + i. They are a transpose of four consecutive elements from eight places.
struct Transpose {
    int half, period;
    Place from[8];
};
static Transpose transpose_memory[MAP_VECTORS / 2];
static int single_memory[2 * MAP_VECTORS];
static Vector permuted[MAP_VECTORS];

struct ShuffleMap {
    bool is_made;
    int key[4 * LEVELS];  // the cache key, apart from the tables
    const Place (*place)[LANES];
    bool moves_vectors;  // each vector out is a vector in, or zero
    const Transpose *transposes;
    const int *singles;  // halves that no transpose has
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

// Half h of the vectors out: lanes 0 to 7 of vector h / 2, or lanes 8 to 15.
static const Place *half_of(const Place (*place)[LANES], int h) { return &place[h / 2][h % 2 * 8]; }

static bool is_next(const Place *half, const Place *other, int ahead) {
    bool is = true;
    for (int l = 0; l < 8; l++) is &= other[l] == (half[l] == ZERO_PLACE ? ZERO_PLACE : half[l] + ahead);
    return is;
}

// Finds the transposes of a map of so many vectors out: all halves that one can have.
static void find_transposes(ShuffleMap &map, int vectors) {
    static bool is_taken[2 * MAP_VECTORS];
    const int halves = 2 * vectors, first = static_cast<int>(map.place - map_memory);
    Transpose *transposes = transpose_memory + first / 2;
    int *singles = single_memory + 2 * first;
    map.transposes = transposes, map.singles = singles;
    map.transpose_count = map.single_count = 0;
    for (int h = 0; h < halves; h++) is_taken[h] = false;
    for (int h = 0; h < halves; h++) {
        if (is_taken[h]) continue;
        const Place *half = half_of(map.place, h);
        int period = 1;
        const auto fits = [&](int i) {
            const int other = h + i * period;
            return other < halves && !is_taken[other] && is_next(half, half_of(map.place, other), i);
        };
        while (h + 3 * period < halves && !fits(1)) period++;
        if (is_next(half, half, 1) || !(fits(1) && fits(2) && fits(3))) {  // all zeros, or alone
            singles[map.single_count++] = h;
            continue;
        }
        Transpose &found = transposes[map.transpose_count++];
        found.half = h, found.period = period;
        for (int l = 0; l < 8; l++) found.from[l] = half[l];
        for (int i = 0; i < 4; i++) is_taken[h + i * period] = true;
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
    if (map_vectors + steps > MAP_VECTORS) forget_maps();
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
    map_vectors += steps;
    map.is_made = true;
    map.place = place;
    map.moves_vectors = are_vectors(place, made);
    if (!map.moves_vectors) find_transposes(map, made);
}
static_assert((SHUFFLE_VECTORS & (SHUFFLE_VECTORS - 1)) == 0, "places are taken modulo their number");

// Gathers the vectors out from the elements of a block.
static void permute_block(const ShuffleMap &map, const Vector *block, Vector *to) {
    static const float zeros[4] = {};
    const float *elements = reinterpret_cast<const float *>(block);
    const auto at = [&](Place place) { return place == ZERO_PLACE ? zeros : elements + place; };
    float *halves = reinterpret_cast<float *>(to);
    for (const Transpose *t = map.transposes; t < map.transposes + map.transpose_count; t++) {
        __m256 row[4], column[4];
        UNROLL
        for (int i = 0; i < 4; i++) {
            const __m128 low = _mm_loadu_ps(at(t->from[i])), high = _mm_loadu_ps(at(t->from[i + 4]));
            row[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(low), high, 1);
        }
        transpose(row, column);
        UNROLL
        for (int i = 0; i < 4; i++) _mm256_store_ps(halves + 8 * (t->half + i * t->period), column[i]);
    }
    for (int s = 0; s < map.single_count; s++) {
        const Place *place = half_of(map.place, map.singles[s]);
        __m128 four[2];
        UNROLL
        for (int i = 0; i < 2; i++) {
            const Place *p = place + 4 * i;
            four[i] = _mm_insert_ps(_mm_load_ss(at(p[0])), _mm_load_ss(at(p[1])), 0x10);
            four[i] = _mm_insert_ps(four[i], _mm_load_ss(at(p[2])), 0x20);
            four[i] = _mm_insert_ps(four[i], _mm_load_ss(at(p[3])), 0x30);
        }
        _mm256_store_ps(halves + 8 * map.singles[s], _mm256_insertf128_ps(_mm256_castps128_ps256(four[0]), four[1], 1));
    }
}

static inline Lanes whole_vector(const Vector *block, Place place) {
    return place == ZERO_PLACE ? splat<Lanes>(0.0f) : load(block + place / LANES);
}

// Writes the vectors out of a block: those that the map moves, or those of a permuted block, one after the other.
template <bool MOVED>
static void give_vectors(const Nest &nest, const Box &writes, const Vector *block, const Place (*place)[LANES],
                       Marks &marks) {
    const int row_level = nest.code->row_level, inner = innermost(writes);
    const bool to_bank = nest.code->operand[SHUFFLED_OUT].valid, to_buffer = nest.code->operand[SHUFFLED_BUFFER].valid;
    const bool check = nest.code->flags & CHECK;
    each_row(nest, writes, inner, [&](const Step &step, int count, const long *stride) {
        Vector *bank = nest.operand[SHUFFLED_OUT].memory + step.offset[SHUFFLED_OUT];
        Vector *buffer = nest.operand[SHUFFLED_BUFFER].memory + step.offset[SHUFFLED_BUFFER];
        const int row = row_of(nest, step), rows = row_level == inner;
        const long bank_stride = stride[SHUFFLED_OUT], buffer_stride = stride[SHUFFLED_BUFFER];
        for (int n = 0; n < count; n++) {
            const Lanes vector = MOVED ? whole_vector(block, **place++) : load(block++);
            if (to_bank) store(bank + n * bank_stride, vector);
            if (to_buffer) store(buffer + ((row + n * rows) & (ROWS - 1)) * BUFFER_PITCH + n * buffer_stride, vector);
            if (check) mark_overflow(marks, vector, STATE_LIMIT);
        }
    });
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
    const Vector *before = nullptr;
    for (int block = 0; block < nest.n[0]; block++) {
        Box in = reads, out = writes;
        in.from[0] = in.to[0] = block - 1;
        out.from[0] = out.to[0] = block;
        const bool takes = block + 1 < nest.n[0], gives = block > 0;
        if (gives && !(same_entries && map->is_made)) make_map(*map, nest, in, out);
        const auto give = map->moves_vectors ? give_vectors<true> : give_vectors<false>;
        in.from[0] = in.to[0] = block;
        if (gives && !map->moves_vectors) permute_block(*map, before, permuted);
        const int first[LEVELS] = {block};
        Vector *vectors = stays ? from.memory + from.offset(first, code.offset_level) : block_vectors[block % 2];
        if (!meet) {
            if (takes && !stays) take_vectors(nest, in, vectors);
            if (gives) give(nest, out, map->moves_vectors ? before : permuted, map->place, marks);
            before = vectors;
            continue;
        }
        Vector *taken = vectors;
        int given = 0;
        Box steps = active_box(nest);
        for (int j = 1; j < LEVELS; j++) steps.to[j] = nest.n[j] - 1;
        steps.from[0] = steps.to[0] = block;
        each_step(nest, steps, [&](const Step &step) {
            Box here;
            bool is_in = takes, is_out = gives && step.index[3] <= out.to[3];
            for (int j = 0; j < LEVELS; j++) {
                here.from[j] = here.to[j] = step.index[j];
                is_in &= j == 0 || step.index[j] <= in.to[j];
            }
            if (is_in) taken = take_vectors(nest, here, taken);
            if (is_out) give(nest, here, map->moves_vectors ? before : permuted + given, map->place + given, marks);
            given += is_out;
        });
        before = vectors;
    }
    map->is_made = map->is_made && same_entries;
    if (code.flags & CHECK) run.overflow |= any_mark(marks);
}

#endif
