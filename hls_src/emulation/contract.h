// The engine's contractions for a native compiler: tiles that fit the host's vector registers instead of the engine's
// rows. Each result is summed in the order of the depth, one multiplication and one addition a step, as the engine does
// it, so that the bits are the same (testbench/test_engine.cpp compares them).
#ifndef BTTLAB_EMULATION_CONTRACT_H
#define BTTLAB_EMULATION_CONTRACT_H

#if defined(__AVX512F__)
constexpr int OUTER_ROWS = 4, OUTER_WORDS = 2;
constexpr int INNER_ROWS = 4, INNER_COLUMNS = 4;
#else
constexpr int OUTER_ROWS = 4, OUTER_WORDS = 1;
constexpr int INNER_ROWS = 4, INNER_COLUMNS = 1;
#endif

// The longest contraction: where scalars come with the stream, the engine holds none, so it has no limit.
constexpr int LONGEST_DEPTH = larger(MAX_DEPTH, SEQUENCE_LENGTH * HIDDEN_WORDS);

// c (rows x words) = addend + a (rows x depth) . b (depth x words). Element (row, d) of a is a[row * a_row + d * a_depth],
// strides in elements; rows of the others are c_row, addend_row, b_row words apart.
static void contract_outer(Word *c, int c_row, const Word *addend, int addend_row, const Word *a, int a_row, int a_depth,
                           const Word *b, int b_row, int rows, int depth, int words) {
    static float staged[LONGEST_DEPTH][OUTER_ROWS];
    for (int row0 = 0; row0 < rows; row0 += OUTER_ROWS) {
        const int tile_rows = smaller(OUTER_ROWS, rows - row0);
        for (int d = 0; d < depth; d++) {
            for (int r = 0; r < OUTER_ROWS; r++) {
                staged[d][r] = element(a, (row0 + smaller(r, tile_rows - 1)) * a_row + d * a_depth);
            }
        }
        for (int word0 = 0; word0 < words; word0 += OUTER_WORDS) {
            const int tile_words = smaller(OUTER_WORDS, words - word0);
            Word sum[OUTER_WORDS][OUTER_ROWS];
            for (int w = 0; w < OUTER_WORDS; w++) {
                for (int r = 0; r < OUTER_ROWS; r++) {
                    const int row = row0 + smaller(r, tile_rows - 1), word = word0 + smaller(w, tile_words - 1);
                    sum[w][r] = addend ? addend[row * addend_row + word] : Word(0.0f);
                }
            }
            for (int d = 0; d < depth; d++) {
                for (int w = 0; w < OUTER_WORDS; w++) {
                    const Word operand = b[d * b_row + word0 + smaller(w, tile_words - 1)];
                    for (int r = 0; r < OUTER_ROWS; r++) sum[w][r] += operand * Word(staged[d][r]);
                }
            }
            for (int w = 0; w < tile_words; w++) {
                for (int r = 0; r < tile_rows; r++) c[(row0 + r) * c_row + word0 + w] = sum[w][r];
            }
        }
    }
}

// As contract_outer, but `partials` sums of every partials-th term are kept apart, then added up, then the addend.
template <int ROWS, int WORDS, int PARTIALS>
static void contract_partials(Word *c, const Word *addend, const Word *a, int a_row, int a_depth, const Word *b, int depth) {
    static Word partial[PARTIALS][ROWS * WORDS];
    for (int p = 0; p < PARTIALS; p++) {
        const Word *first = reinterpret_cast<const Word *>(reinterpret_cast<const float *>(a) + p * a_depth);
        contract_outer(partial[p], WORDS, nullptr, 0, first, a_row, a_depth * PARTIALS, b + p * WORDS, WORDS * PARTIALS, ROWS,
                       (depth - p + PARTIALS - 1) / PARTIALS, WORDS);
    }
    for (int i = 0; i < ROWS * WORDS; i++) {
        Word sum = partial[0][i];
        for (int p = 1; p < PARTIALS; p++) sum += partial[p][i];
        c[i] = addend ? addend[i] + sum : sum;
    }
}

// c (rows x columns) = addend + a (rows x depth words) . b^T (columns x depth words); rows of c are filled with zeros up
// to a whole word.
static void contract_inner(Word *c, int c_row, const Word *addend, int addend_row, const Word *a, int a_row, const Word *b,
                           int b_row, int rows, int columns, int depth_words) {
    static Word staged[HIDDEN_WORDS][INNER_ROWS];
    for (int row0 = 0; row0 < rows; row0 += INNER_ROWS) {
        const int tile_rows = smaller(INNER_ROWS, rows - row0);
        for (int d = 0; d < depth_words; d++) {
            for (int r = 0; r < INNER_ROWS; r++) staged[d][r] = a[(row0 + smaller(r, tile_rows - 1)) * a_row + d];
        }
        for (int word = 0; word < words_for(columns); word++) {
            const int column0 = word * LANES, word_columns = smaller(LANES, columns - column0);
            Word sum[INNER_ROWS][LANES];
            for (int tile0 = 0; tile0 < LANES; tile0 += INNER_COLUMNS) {
                Word tile[INNER_COLUMNS][INNER_ROWS];
                for (int n = 0; n < INNER_COLUMNS; n++) {
                    for (int r = 0; r < INNER_ROWS; r++) tile[n][r] = Word(0.0f);
                }
                const int tile_depth = tile0 < word_columns ? depth_words : 0;
                for (int d = 0; d < tile_depth; d++) {
                    for (int n = 0; n < INNER_COLUMNS; n++) {
                        const Word operand = b[(column0 + smaller(tile0 + n, word_columns - 1)) * b_row + d];
                        for (int r = 0; r < INNER_ROWS; r++) tile[n][r] += operand * staged[d][r];
                    }
                }
                for (int n = 0; n < INNER_COLUMNS; n++) {
                    for (int r = 0; r < INNER_ROWS; r++) {
                        sum[r][tile0 + n] = tile0 + n < word_columns ? tile[n][r] : Word(0.0f);
                    }
                }
            }
            for (int r = 0; r < tile_rows; r++) {
                const Word product = sum_lanes_of_each(sum[r]);
                c[(row0 + r) * c_row + word] = addend ? addend[(row0 + r) * addend_row + word] + product : product;
            }
        }
    }
}

#endif
