// The embedding: word embedding in tensor-train-matrix (TTM) format, position embedding, LayerNorm. The row of token
// (i1 i2 i3) is F1[i1] F2[i2] F3[i3], with F1[i1] (column 1 x rank), F2[i2] (rank x column 2 x rank), F3[i3] (rank x column
// 3, held transposed). Only the slices that a token touches are read; only their gradients are not zero.
#ifndef BTTLAB_EMBEDDING_H
#define BTTLAB_EMBEDDING_H

#include "elementwise.h"
#include "engine.h"
#include "memory.h"

constexpr int FRONT = COLUMN_MODE_1 * COLUMN_MODE_2;  // the first two column modes, merged
constexpr int FRONT_WORDS = FRONT / LANES;

// Offsets of a token's three slices.
struct Slices {
    int core_1, core_2, core_3;
};

static Slices slices_of(int token) {
    Slices slices;
    slices.core_1 = WORD_CORE_1 + token / (ROW_MODE_2 * ROW_MODE_3) * SLICE_1_WORDS;
    slices.core_2 = WORD_CORE_2 + token / ROW_MODE_3 % ROW_MODE_2 * SLICE_2_WORDS;
    slices.core_3 = WORD_CORE_3 + token % ROW_MODE_3 * SLICE_3_WORDS;
    return slices;
}

// out (tokens, HIDDEN_SIZE), before the first encoder
static void embedding_forward(Word *out, const int *token_ids, int tokens) {
    const Meter meter(FP, EMBEDDING);
    static Word turned[COLUMN_MODE_3 * FRONT_WORDS];  // a row of the table, column 3 before (column 1, column 2)
    static Word sum[TOKENS_WORDS];
Tokens:
    for (int t = 0; t < tokens; t++) {
        const Slices slices = slices_of(token_ids[t]);
        // (column 1) x (column 2, rank)
        contract_outer(embedding_tail[t], SLICE_2_ROW_WORDS, parameters + slices.core_1, EMBEDDING_RANK_WORDS * LANES, 1,
                       parameters + slices.core_2, SLICE_2_ROW_WORDS, COLUMN_MODE_1, EMBEDDING_RANK, SLICE_2_ROW_WORDS,
                       false);
        // (column 3) x (column 1, column 2)
        contract_inner(turned, FRONT_WORDS, parameters + slices.core_3, EMBEDDING_RANK_WORDS, embedding_tail[t],
                       EMBEDDING_RANK_WORDS, COLUMN_MODE_3, FRONT, EMBEDDING_RANK_WORDS, false);
        loop(HIDDEN_SIZE, READ + WRITE, READ + START);
    Turn_Rows:
        for (int front = 0; front < FRONT; front++) {
            for (int i3 = 0; i3 < COLUMN_MODE_3; i3++) {
                set_element(sum, t * HIDDEN_SIZE + front * COLUMN_MODE_3 + i3, element(turned, i3 * FRONT + front));
            }
        }
        add(sum + t * HIDDEN_WORDS, parameters + POSITION + t * HIDDEN_WORDS, HIDDEN_WORDS);
    }
    layer_norm_forward(out, embedding_normalized, embedding_inverse_std, sum, parameters + EMBEDDING_NORM, tokens);
}

// Gradients of the embedding's parameters from d_out (tokens, HIDDEN_SIZE), which is overwritten.
static void embedding_backward(Word *d_out, const int *token_ids, int tokens) {
    const Meter meter(BP, EMBEDDING);
    static Word d_tail[COLUMN_MODE_1 * SLICE_2_ROW_WORDS];
    layer_norm_backward(d_out, gradients + EMBEDDING_NORM, embedding_normalized, embedding_inverse_std,
                        parameters + EMBEDDING_NORM, tokens);
    clear(gradients + WORD_CORE_1, POSITION - WORD_CORE_1);  // tokens may share slices: their gradients add up
    copy(gradients + POSITION, d_out, tokens * HIDDEN_WORDS);
    clear(gradients + POSITION + tokens * HIDDEN_WORDS, (SEQUENCE_LENGTH - tokens) * HIDDEN_WORDS);
Tokens:
    for (int t = 0; t < tokens; t++) {
        const Slices slices = slices_of(token_ids[t]);
        const Word *d_row = d_out + t * HIDDEN_WORDS;  // (column 1, column 2) x (column 3)
        contract_outer(gradients + slices.core_3, EMBEDDING_RANK_WORDS, d_row, 1, COLUMN_MODE_3, embedding_tail[t],
                       EMBEDDING_RANK_WORDS, COLUMN_MODE_3, FRONT, EMBEDDING_RANK_WORDS, true);
        contract_outer(d_tail, EMBEDDING_RANK_WORDS, d_row, COLUMN_MODE_3, 1, parameters + slices.core_3,
                       EMBEDDING_RANK_WORDS, FRONT, COLUMN_MODE_3, EMBEDDING_RANK_WORDS, false);
        contract_outer(gradients + slices.core_2, SLICE_2_ROW_WORDS, parameters + slices.core_1, 1,
                       EMBEDDING_RANK_WORDS * LANES, d_tail, SLICE_2_ROW_WORDS, EMBEDDING_RANK, COLUMN_MODE_1,
                       SLICE_2_ROW_WORDS, true);
        contract_inner(gradients + slices.core_1, EMBEDDING_RANK_WORDS, d_tail, SLICE_2_ROW_WORDS,
                       parameters + slices.core_2, SLICE_2_ROW_WORDS, COLUMN_MODE_1, EMBEDDING_RANK, SLICE_2_ROW_WORDS,
                       true);
    }
}

#endif
