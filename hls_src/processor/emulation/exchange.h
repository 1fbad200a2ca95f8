// Permutations of the shuffle unit that permutes of two registers make in three stages: transposes of 8 x 16 elements and
// the like. For hosts with AVX-512.
#ifndef BTTLAB_PROCESSOR_EMULATION_EXCHANGE_H
#define BTTLAB_PROCESSOR_EMULATION_EXCHANGE_H

#include "nest.h"

// Vectors that a block may read.
constexpr int MOST_READS = 1024;

// For each element out, in the order of the steps: its index among the elements in; ZERO_PLACE for a lane without one.
typedef unsigned short Place;
constexpr int ZERO_PLACE = MOST_READS * LANES;
static_assert(ZERO_PLACE + LANES <= 1 << 16, "places are numbers of 16 bits");

constexpr int STAGES = 3, EXCHANGED = 1 << STAGES;

// Vectors out of a block that come from the same vectors in, which are in ascending order.
struct Exchange {
    short in[EXCHANGED], out[EXCHANGED];
    int ins, outs;
};

// The permutes of each stage: the lane of each element, LANES more in the second vector. The lanes of results that may not be
// zero, as bits.
struct Permutes {
    alignas(REGISTER_BYTES) int lane[STAGES][2][LANES];
    int lanes;
    bool are_whole;  // all of their exchanges are of eight vectors in and eight out
};

// From eight vectors in to eight vectors out. After stage s, a vector has the elements that 2 << s vectors in have for
// 4 >> s vectors out: two vectors were permuted in two ways, for either half of the vectors out that they had elements for.
template <class V, class Permute>
ALWAYS_INLINE void exchange(V *vectors, Permute permute) {
    UNROLL
    for (int s = 0; s < STAGES; s++) {
        V made[EXCHANGED];
        UNROLL
        for (int i = 0; i < EXCHANGED; i++) {
            const int a = (i >> (s + 1) << (s + 1)) + (i % (2 << s)) / 2, b = a + (1 << s);
            made[i] = permute(s, i % 2, vectors[a], vectors[b]);
        }
        UNROLL
        for (int i = 0; i < EXCHANGED; i++) vectors[i] = made[i];
    }
}

// Finds the vectors in that a vector out comes from. False if they are too many.
static bool find_sources(const Place *place, Exchange &e) {
    e.ins = 0;
    for (int l = 0; l < LANES; l++) {
        if (place[l] == ZERO_PLACE) continue;
        const short in = static_cast<short>(place[l] / LANES);
        int i = e.ins;
        while (i > 0 && e.in[i - 1] >= in) i--;
        if (i < e.ins && e.in[i] == in) continue;
        if (e.ins == EXCHANGED) return false;
        for (int k = e.ins++; k > i; k--) e.in[k] = e.in[k - 1];
        e.in[i] = in;
    }
    return true;
}

// Groups vectors out. Returns the number of groups; 0 if a vector out comes from too many vectors in.
static int group_vectors(const Place (*place)[LANES], int vectors, Exchange *groups) {
    int count = 0;
    for (int w = 0; w < vectors; w++) {
        Exchange own = {};
        if (!find_sources(place[w], own)) return 0;
        const auto takes = [&](const Exchange &group) {
            bool same = group.ins == own.ins && group.outs < EXCHANGED;
            for (int i = 0; i < own.ins; i++) same &= group.in[i] == own.in[i];
            return same;
        };
        int g = 0;
        while (g < count && !takes(groups[g])) g++;
        if (g == count) groups[count++] = own;
        groups[g].out[groups[g].outs++] = static_cast<short>(w);
    }
    return count;
}

// Chooses permutes that keep elements in the order of the vectors out and their lanes. False if a vector would need more
// lanes.
static bool find_permutes(const Place (*place)[LANES], const Exchange &e, Permutes &permutes) {
    int source[EXCHANGED][LANES], at[EXCHANGED][LANES];  // of each element out: vector in, lane of the vector that has it
    for (int o = 0; o < e.outs; o++) {
        const Place *out = place[e.out[o]];
        const int missing = EXCHANGED - e.ins;
        int zeros = 0, zero = 0;
        for (int l = 0; l < LANES; l++) zeros += out[l] == ZERO_PLACE;
        for (int l = 0; l < LANES; l++) {
            int i = 0;
            while (i < e.ins && e.in[i] != out[l] / LANES) i++;
            // Zeros come from the vectors in that are missing, if there are such.
            if (out[l] == ZERO_PLACE) i = missing ? e.ins + zero++ * missing / zeros : -EXCHANGED;
            source[o][l] = i, at[o][l] = out[l] % LANES;
            if (out[l] != ZERO_PLACE) permutes.lanes |= 1 << l;
        }
    }
    for (int s = 0; s < STAGES; s++) {
        for (int i = 0; i < EXCHANGED; i++) {
            int elements = 0;
            for (int o = 0; o < e.outs; o++) {
                if (o >> (STAGES - 1 - s) != i % (2 << s)) continue;
                for (int l = 0; l < LANES; l++) {
                    if (source[o][l] >> (s + 1) != i >> (s + 1)) continue;
                    const int to = s == STAGES - 1 ? l : elements++;
                    if (to == LANES) return false;
                    const bool is_missing = s == 0 && source[o][l] >= e.ins;  // any lane of it will do
                    if (!is_missing) permutes.lane[s][i % 2][to] = (source[o][l] >> s & 1) * LANES + at[o][l];
                    at[o][l] = to;
                }
            }
        }
    }
    return true;
}

// Whether these permutes make the vectors out of a group.
static bool permutes_make(const Place (*place)[LANES], const Exchange &e, const Permutes &permutes) {
    struct Places {
        Place lane[LANES];
    };
    Places vectors[EXCHANGED];
    for (int i = 0; i < EXCHANGED; i++) {
        for (int l = 0; l < LANES; l++) vectors[i].lane[l] = static_cast<Place>(i < e.ins ? e.in[i] * LANES + l : ZERO_PLACE);
    }
    exchange(vectors, [&](int stage, int half, const Places &a, const Places &b) {
        Places result;
        for (int l = 0; l < LANES; l++) {
            const int from = permutes.lane[stage][half][l];
            result.lane[l] = (from < LANES ? a : b).lane[from % LANES];
        }
        return result;
    });
    bool are_equal = true;
    for (int o = 0; o < e.outs; o++) {
        for (int l = 0; l < LANES; l++) {
            are_equal &= place[e.out[o]][l] == (permutes.lanes >> l & 1 ? vectors[o].lane[l] : ZERO_PLACE);
        }
    }
    return are_equal;
}

// Finds groups of the vectors out and the permutes that make all of them. Returns the number of groups; 0 if there are no such
// permutes, or groups so small that they do not pay.
static int find_exchanges(const Place (*place)[LANES], int vectors, Exchange *groups, Permutes &permutes) {
    if (vectors > SHUFFLE_VECTORS) return 0;
    const int count = group_vectors(place, vectors, groups);
    if (count * EXCHANGED > 2 * vectors) return 0;
    permutes = {};
    permutes.are_whole = true;
    for (int g = 0; g < count; g++) {
        permutes.are_whole &= groups[g].ins == EXCHANGED && groups[g].outs == EXCHANGED;
        if (groups[g].ins > 0 && !find_permutes(place, groups[g], permutes)) return 0;
    }
    for (int g = 0; g < count; g++) {
        if (!permutes_make(place, groups[g], permutes)) return 0;
    }
    return count;
}

#endif
