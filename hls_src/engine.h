// The contraction engines: all linear algebra of the model runs here. An engine holds ENGINE_ROWS rows of one operand on
// registers and streams the other past them, a word a cycle; every cycle each of its rows x lanes multiplies and adds.
// Three contractions, which differ in what the rows hold and where a sum goes on:
//
//   expand      c (rows x words)   = a (rows x depth) . b (depth x words)       rows hold b; a sum runs down the rows
//   accumulate  c (rows x words)   = a (rows x depth) . b (depth x words)       rows hold c; b streams past
//   reduce      c (rows x columns) = a (rows x words) . b^T (columns x words)   rows hold b, or a if b has more rows
//
// The first two compute the same: `expand` where the depth fills the engine's rows, `accumulate` where the result's rows
// do. `expand` and `reduce` add `addend`, unless it is null; with addend_row = 0 its one row is added to every row. Each
// result is summed in the order of the depth (addend first, in `reduce` last), one multiplication and one addition a
// step.
//
// Ports: held operand, streamed operand, scalars and addend are read, and the result is written, a word a cycle each. So
// they lie in different memories, or follow each other in time (what is held is fetched before the first step), or have
// two ports (a gradient that is added to).
#ifndef BTTLAB_ENGINE_H
#define BTTLAB_ENGINE_H

#include "cycles.h"
#include "shape.h"

// Where the operands of a batch lie: `count` contractions of one shape, the next one's operands so many words on. They run
// through the engine without a gap.
struct Batch {
    int count, c, a, b;
};
constexpr Batch ALONE = {1, 0, 0, 0};

#include "engine_loop.h"
#if !defined(__SYNTHESIS__)
#include <contract.h>
#endif

// A step's way through the engine: fetch, multiply, down the rows, store.
constexpr int ENGINE_DEPTH = READ + MUL + ENGINE_ROWS * ADD + WRITE + START;

// The steps of the loop in engine_loop.h. While a chunk of words streams past, the next one is fetched and the last one's
// sums are stored: the longest of the three sets the pace.
static inline void count_expand(int rows, int depth, int words, bool scalars_held) {
    multiply(rows * depth * words);
    const int chunk = smaller(words, ENGINE_CHUNK), fetch = smaller(depth, ENGINE_ROWS) * chunk;
    const int scalars = scalars_held ? smaller(depth, ENGINE_ROWS) * words_for(rows) : 0;
    const int pass = fetch + parts(words, ENGINE_CHUNK) * larger(fetch, rows * chunk);
    spend(parts(depth, ENGINE_ROWS) * (scalars + pass + ENGINE_DEPTH));  // a pass adds to the results of the last
}

// `partials` sums of every partials-th term are kept apart, so that few words fill the adder's latency; then added up.
static inline void count_accumulate(int rows, int depth, int words, int partials, bool scalars_held, int batch) {
    multiply(rows * depth * words * batch);
    const int passes = parts(rows, ENGINE_ROWS), chunk = smaller(words, ENGINE_CHUNK), held = smaller(rows, ENGINE_ROWS);
    const int together = words < ACCUMULATE ? smaller(passes, ENGINE_SLOTS / words) : 1;  // passes that share the slots
    const int tiles = parts(passes, together) * parts(words, ENGINE_CHUNK) * batch;
    const int turns = larger(together * partials, parts(ACCUMULATE, chunk));  // of a chunk's words, some idle
    const int stream = parts(depth, partials) * turns * chunk;
    const int drain = together * held * chunk * partials;
    const int scalars = scalars_held ? together * held * words_for(depth) : 0;
    spend(scalars + tiles * larger(larger(stream, drain), scalars) + drain + ENGINE_DEPTH);
}

static inline void count_reduce(int rows, int columns, int words, int batch) {
    multiply(rows * columns * words * batch);
    const bool hold_a = columns > ENGINE_ROWS;  // rows of c are put together from a pass; else a step's results are one
    const int held = hold_a ? rows : columns, streamed = hold_a ? columns : rows, used = smaller(held, ENGINE_ROWS);
    const int slots = larger(ACCUMULATE, smaller(streamed, ENGINE_SLOTS)), chunk = smaller(words, ENGINE_CHUNK);
    const int fetch = used * chunk, drain = slots * parts(used, LANE_TREES);
    const int tiles = parts(held, ENGINE_ROWS) * parts(streamed, ENGINE_SLOTS) * parts(words, ENGINE_CHUNK) * batch;
    const int pace = larger(larger(fetch, slots * chunk), drain);
    spend(fetch + tiles * pace + drain + (hold_a ? 2 * used : 0) + ENGINE_DEPTH + LANE_TREE + ADD);
}

// Element (row, d) of a is a[row * a_row + d * a_depth], strides in elements, one of them 1. Rows of b, c and addend are
// b_row, c_row and addend_row words apart.
template <int ENGINE>
static void expand(Word *c, int c_row, const Word *addend, int addend_row, const Word *a, int a_row, int a_depth,
                   const Word *b, int b_row, int rows, int depth, int words) {
#pragma HLS INLINE off
    count_expand(rows, depth, words, a_depth != 1);
#if defined(__SYNTHESIS__)
    engine_expand<ENGINE>(c, c_row, addend, addend_row, a, a_row, a_depth, b, b_row, rows, depth, words);
#else
    contract_outer(c, c_row, addend, addend_row, a, a_row, a_depth, b, b_row, rows, depth, words);
#endif
}

template <int ENGINE>
static void accumulate(Word *c, int c_row, const Word *a, int a_row, int a_depth, const Word *b, int b_row, int rows,
                       int depth, int words, const Batch &batch = ALONE) {
#pragma HLS INLINE off
    count_accumulate(rows, depth, words, 1, a_row != 1, batch.count);
#if defined(__SYNTHESIS__)
    engine_accumulate<ENGINE>(c, c_row, a, a_row, a_depth, b, b_row, rows, depth, words, batch);
#else
    for (int i = 0; i < batch.count; i++) {
        contract_outer(c + i * batch.c, c_row, nullptr, 0, a + i * batch.a, a_row, a_depth, b + i * batch.b, b_row,
                       rows, depth, words);
    }
#endif
}

// `accumulate` for results of few words (ROWS x WORDS, no gaps; b without gaps): PARTIALS sums of every PARTIALS-th term
// are kept apart, so that the same sum comes round only after the adder's latency; then added up, then the addend.
template <int ENGINE, int ROWS, int WORDS>
static void accumulate_few(Word *c, const Word *addend, const Word *a, int a_row, int a_depth, const Word *b, int depth) {
#pragma HLS INLINE off
    constexpr int PARTIALS = (ACCUMULATE + WORDS - 1) / WORDS;
    count_accumulate(ROWS, depth, WORDS, PARTIALS, a_row != 1, 1);
#if defined(__SYNTHESIS__)
    engine_accumulate_few<ENGINE, ROWS, WORDS, PARTIALS>(c, addend, a, a_row, a_depth, b, depth);
#else
    contract_partials<ROWS, WORDS, PARTIALS>(c, addend, a, a_row, a_depth, b, depth);
#endif
}

template <int ENGINE>
static void reduce(Word *c, int c_row, const Word *addend, int addend_row, const Word *a, int a_row, const Word *b,
                   int b_row, int rows, int columns, int words, const Batch &batch = ALONE) {
#pragma HLS INLINE off
    count_reduce(rows, columns, words, batch.count);
#if defined(__SYNTHESIS__)
    engine_reduce<ENGINE>(c, c_row, addend, addend_row, a, a_row, b, b_row, rows, columns, words, batch);
#else
    for (int i = 0; i < batch.count; i++) {
        contract_inner(c + i * batch.c, c_row, addend, addend_row, a + i * batch.a, a_row, b + i * batch.b, b_row, rows,
                       columns, words);
    }
#endif
}

#endif
