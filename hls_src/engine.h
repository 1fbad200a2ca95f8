// The contraction engine: all linear algebra of the model runs here. It contracts in two ways, which differ in what lies
// along the lanes:
//
//   contract_outer   c (rows x words)   (+)= a (rows x depth) . b (depth x words)               lanes: columns of c
//   contract_inner   c (rows x columns) (+)= a (rows x depth words) . b^T (columns x depth words)    lanes: the depth
//
// In the first a scalar of a meets a word of b, in the second a word meets a word and the lanes are summed at the end.
// Between them no large operand is ever transposed in memory. Each result is summed in the order of the depth, one
// multiplication and one addition a step, so its bits do not depend on the tile sizes of config.h.
#ifndef BTTLAB_ENGINE_H
#define BTTLAB_ENGINE_H

#include "cycles.h"
#include "shape.h"

static inline int smaller(int a, int b) { return a < b ? a : b; }

static inline int parts(int whole, int part) { return (whole + part - 1) / part; }

// What the loops below take with the tiles of the hardware.
static inline void count_outer(int rows, int depth, int words) {
    const int row_tiles = parts(rows, ENGINE_ROWS), tiles = row_tiles * parts(words, ENGINE_SLOTS);
    spend(START);
    spend(row_tiles * (ENGINE_ROWS * depth + READ + START));             // Stage_A
    spend(tiles * (ENGINE_ROWS * ENGINE_SLOTS + READ + START));          // Load_C
    spend(tiles * (ENGINE_SLOTS * depth + READ + MUL + ADD + START));    // Depth
    spend(rows * words + tiles * START);                                 // Store_C
}

static inline void count_inner(int rows, int columns, int depth_words) {
    const int row_tiles = parts(rows, ENGINE_ROWS), words = row_tiles * words_for(columns);
    const int tiles = row_tiles * parts(columns, ENGINE_SLOTS);
    spend(START);
    spend(row_tiles * (ENGINE_ROWS * depth_words + READ + START));            // Stage_A
    spend(words * (LANES / ENGINE_SLOTS) * 2 * (ENGINE_SLOTS + START));       // Clear, Keep
    spend(tiles * (ENGINE_SLOTS * depth_words + READ + MUL + ADD + START));   // Depth
    spend(rows * words_for(columns) + words * (LANE_TREE + ADD + START));     // Store_C
}

// Element (row, d) of a is a[row * a_row + d * a_depth], strides in elements: a transposed operand swaps them.
// Rows of b and c are b_row and c_row words apart. depth <= MAX_DEPTH.
static void contract_outer(Word *c, int c_row, const Word *a, int a_row, int a_depth, const Word *b, int b_row, int rows,
                           int depth, int words, bool accumulate) {
#pragma HLS INLINE off
    count_outer(rows, depth, words);
    // The rows of a that a tile needs: the engine reads OUTER_ROWS scalars a cycle, a memory gives one word.
    static float staged[MAX_DEPTH][OUTER_ROWS];
#pragma HLS ARRAY_PARTITION variable=staged dim=2 complete
Row_Tiles:
    for (int row0 = 0; row0 < rows; row0 += OUTER_ROWS) {
        const int tile_rows = smaller(OUTER_ROWS, rows - row0);
    Stage_A:
        for (int d = 0; d < depth; d++) {
#pragma HLS LOOP_TRIPCOUNT max=MAX_DEPTH
        Stage_Pipeline:
            for (int r = 0; r < OUTER_ROWS; r++) {
#pragma HLS PIPELINE II=1
                staged[d][r] = element(a, (row0 + smaller(r, tile_rows - 1)) * a_row + d * a_depth);
            }
        }
    Word_Tiles:
        for (int word0 = 0; word0 < words; word0 += OUTER_WORDS) {
            const int tile_words = smaller(OUTER_WORDS, words - word0);
            Word sum[OUTER_WORDS][OUTER_ROWS];
#pragma HLS ARRAY_PARTITION variable=sum dim=2 complete
        Load_C:
            for (int w = 0; w < OUTER_WORDS; w++) {
            Load_Pipeline:
                for (int r = 0; r < OUTER_ROWS; r++) {
#pragma HLS PIPELINE II=1
                    const int row = row0 + smaller(r, tile_rows - 1), word = word0 + smaller(w, tile_words - 1);
                    sum[w][r] = accumulate ? c[row * c_row + word] : Word(0.0f);
                }
            }
        Depth:
            for (int d = 0; d < depth; d++) {
#pragma HLS LOOP_TRIPCOUNT max=MAX_DEPTH
            // Flattened with the depth: the same sum comes round only after OUTER_WORDS cycles, the adder's latency.
            Words_Pipeline:
                for (int w = 0; w < OUTER_WORDS; w++) {
#pragma HLS PIPELINE II=1
                    const Word operand = b[d * b_row + word0 + smaller(w, tile_words - 1)];
                Rows_Unroll:
                    for (int r = 0; r < OUTER_ROWS; r++) {
#pragma HLS UNROLL
                        sum[w][r] += operand * Word(staged[d][r]);
                    }
                }
            }
        Store_C:
            for (int w = 0; w < tile_words; w++) {
            Store_Pipeline:
                for (int r = 0; r < tile_rows; r++) {
#pragma HLS PIPELINE II=1
                    c[(row0 + r) * c_row + word0 + w] = sum[w][r];
                }
            }
        }
    }
}

// Rows of a, b and c are a_row, b_row and c_row words apart; rows of c are filled with zeros up to a whole word.
// depth_words <= HIDDEN_WORDS.
static void contract_inner(Word *c, int c_row, const Word *a, int a_row, const Word *b, int b_row, int rows, int columns,
                           int depth_words, bool accumulate) {
#pragma HLS INLINE off
    count_inner(rows, columns, depth_words);
    static Word staged[HIDDEN_WORDS][INNER_ROWS];
#pragma HLS ARRAY_PARTITION variable=staged dim=2 complete
Row_Tiles:
    for (int row0 = 0; row0 < rows; row0 += INNER_ROWS) {
        const int tile_rows = smaller(INNER_ROWS, rows - row0);
    Stage_A:
        for (int d = 0; d < depth_words; d++) {
#pragma HLS LOOP_TRIPCOUNT max=HIDDEN_WORDS
        Stage_Pipeline:
            for (int r = 0; r < INNER_ROWS; r++) {
#pragma HLS PIPELINE II=1
                staged[d][r] = a[(row0 + smaller(r, tile_rows - 1)) * a_row + d];
            }
        }
    Result_Words:
        for (int word = 0; word < words_for(columns); word++) {
            const int column0 = word * LANES, word_columns = smaller(LANES, columns - column0);
            Word sum[INNER_ROWS][LANES];
#pragma HLS ARRAY_PARTITION variable=sum dim=1 complete
        Column_Tiles:
            for (int t = 0; t < LANES / INNER_COLUMNS; t++) {
                const int tile0 = t * INNER_COLUMNS;
                Word tile[INNER_COLUMNS][INNER_ROWS];
#pragma HLS ARRAY_PARTITION variable=tile dim=2 complete
            Clear_Pipeline:
                for (int n = 0; n < INNER_COLUMNS; n++) {
#pragma HLS PIPELINE II=1
                    for (int r = 0; r < INNER_ROWS; r++) tile[n][r] = Word(0.0f);
                }
                const int tile_depth = tile0 < word_columns ? depth_words : 0;
            Depth:
                for (int d = 0; d < tile_depth; d++) {
#pragma HLS LOOP_TRIPCOUNT max=HIDDEN_WORDS
                // Flattened with the depth: the same sum comes round only after INNER_COLUMNS cycles.
                Columns_Pipeline:
                    for (int n = 0; n < INNER_COLUMNS; n++) {
#pragma HLS PIPELINE II=1
                        const Word operand = b[(column0 + smaller(tile0 + n, word_columns - 1)) * b_row + d];
                    Rows_Unroll:
                        for (int r = 0; r < INNER_ROWS; r++) {
#pragma HLS UNROLL
                            tile[n][r] += operand * staged[d][r];
                        }
                    }
                }
            Keep_Pipeline:
                for (int n = 0; n < INNER_COLUMNS; n++) {
#pragma HLS PIPELINE II=1
                    for (int r = 0; r < INNER_ROWS; r++) {
                        sum[r][tile0 + n] = tile0 + n < word_columns ? tile[n][r] : Word(0.0f);
                    }
                }
            }
        Store_C:
            for (int r = 0; r < tile_rows; r++) {
#pragma HLS PIPELINE
                Word *result = c + (row0 + r) * c_row + word;
                const Word product = sum_lanes_of_each(sum[r]);
                *result = accumulate ? *result + product : product;
            }
        }
    }
}

#endif
