// The embedding: word embedding in tensor-train-matrix (TTM) format, position embedding, LayerNorm. The row of token (i1
// i2 i3) is F1[i1] F2[i2] F3[i3], with F1[i1] (column 1 x rank), F2[i2] (rank x column 2 x rank), F3[i3] (rank x column
// 3, held transposed). Only the slices that a token touches are read; only their gradients are not zero.
#ifndef BTTLAB_EMBEDDING_H
#define BTTLAB_EMBEDDING_H

#include "engine.h"
#include "memory.h"
#include "norm.h"
#include "tt_linear.h"

constexpr int FRONT = COLUMN_MODE_1 * COLUMN_MODE_2;  // the first two column modes, merged

// Offsets of a token's slice in each core.
struct Slices {
    int core_1, core_2, core_3;
};

static Slices slices_of(int token) {
    Slices slices;
    slices.core_1 = token / (ROW_MODE_2 * ROW_MODE_3) * SLICE_1_WORDS;
    slices.core_2 = token / ROW_MODE_3 % ROW_MODE_2 * SLICE_2_WORDS;
    slices.core_3 = token % ROW_MODE_3 * SLICE_3_WORDS;
    return slices;
}

// (column 1) x (column 2, rank), in the first engine
static void word_tail(Word *tail, int token) {
    const Slices slices = slices_of(token);
    accumulate<0>(tail, SLICE_2_ROW_WORDS, parameters.word_1 + slices.core_1, EMBEDDING_RANK_WORDS * LANES, 1,
                  parameters.word_2 + slices.core_2, SLICE_2_ROW_WORDS, COLUMN_MODE_1, EMBEDDING_RANK, SLICE_2_ROW_WORDS);
}

// A row of the table, (column 1, column 2) x (column 3), in the second
static void word_row(Word *row, const Word *tail, int token) {
    static Word padded[FRONT * words_for(COLUMN_MODE_3)];
    const Word *core_3 = parameters.word_3 + slices_of(token).core_3;
    reduce<1>(padded, words_for(COLUMN_MODE_3), nullptr, 0, tail, EMBEDDING_RANK_WORDS, core_3, EMBEDDING_RANK_WORDS, FRONT,
              COLUMN_MODE_3, EMBEDDING_RANK_WORDS);
    pack<FRONT, COLUMN_MODE_3>(row, padded);
}

// Tokens may share slices: their gradients add up.
static void clear_word_gradients() {
    FORK;
    clear(gradients.word_1, WORD_1_WORDS);
    BESIDE;
    clear(gradients.word_2, WORD_2_WORDS);
    BESIDE;
    clear(gradients.word_3, WORD_3_WORDS);
    JOIN;
}

// words (tokens, HIDDEN_SIZE) from the table, in two stages: a token's tail beside the row of the token before.
static void look_up(Word *words, const int *token_ids, int tokens) {
Tokens:
    for (int t = 0; t <= tokens; t++) {
        FORK;
        if (t < tokens) word_tail(embedding_tail[t % 2][t / 2], token_ids[t]);
        BESIDE;
        if (t > 0) word_row(words + (t - 1) * HIDDEN_WORDS, embedding_tail[(t - 1) % 2][(t - 1) / 2], token_ids[t - 1]);
        JOIN;
    }
}

// out (tokens, HIDDEN_SIZE), before the first encoder
static void embedding_forward(Word *out, const int *token_ids, int tokens) {
    const Meter meter(FP, EMBEDDING);
    FORK;
    look_up(inner, token_ids, tokens);
    BESIDE;
    clear_word_gradients();  // of the last sample
    JOIN;
    layer_norm_forward(out, embedding_normalized, embedding_inverse_std, inner, parameters.rest + POSITION,
                       parameters.rest + EMBEDDING_NORM, tokens);
}

// Gradients of a token's slices from that of its row, d_row: (column 1, column 2) x (column 3)
static void word_backward(const Word *d_row, const Word *tail, int token) {
    static Word d_tail[COLUMN_MODE_1 * SLICE_2_ROW_WORDS];
    const Slices slices = slices_of(token);
    const Word *core_1 = parameters.word_1 + slices.core_1, *core_2 = parameters.word_2 + slices.core_2;
    Word *d_core_1 = gradients.word_1 + slices.core_1, *d_core_2 = gradients.word_2 + slices.core_2;
    Word *d_core_3 = gradients.word_3 + slices.core_3;
    {
        FORK;
        accumulate_few<0, COLUMN_MODE_3, EMBEDDING_RANK_WORDS>(d_core_3, d_core_3, d_row, 1, COLUMN_MODE_3, tail, FRONT);
        BESIDE;
        expand<1>(d_tail, EMBEDDING_RANK_WORDS, nullptr, 0, d_row, COLUMN_MODE_3, 1, parameters.word_3 + slices.core_3,
                  EMBEDDING_RANK_WORDS, FRONT, COLUMN_MODE_3, EMBEDDING_RANK_WORDS);
        JOIN;
    }
    FORK;
    expand<0>(d_core_2, SLICE_2_ROW_WORDS, d_core_2, SLICE_2_ROW_WORDS, core_1, 1, EMBEDDING_RANK_WORDS * LANES, d_tail,
              SLICE_2_ROW_WORDS, EMBEDDING_RANK, COLUMN_MODE_1, SLICE_2_ROW_WORDS);
    BESIDE;
    reduce<1>(d_core_1, EMBEDDING_RANK_WORDS, d_core_1, EMBEDDING_RANK_WORDS, d_tail, SLICE_2_ROW_WORDS, core_2,
              SLICE_2_ROW_WORDS, COLUMN_MODE_1, EMBEDDING_RANK, SLICE_2_ROW_WORDS);
    JOIN;
}

// Gradients of the embedding's parameters from d_out (tokens, HIDDEN_SIZE), which is overwritten.
static void embedding_backward(Word *d_out, const int *token_ids, int tokens) {
    const Meter meter(BP, EMBEDDING);
    layer_norm_backward(d_out, gradients.rest + EMBEDDING_NORM, embedding_normalized, embedding_inverse_std,
                        parameters.rest + EMBEDDING_NORM, tokens, nullptr, nullptr, nullptr);
    copy(gradients.rest + POSITION, d_out, tokens * HIDDEN_WORDS);
    clear(gradients.rest + POSITION + tokens * HIDDEN_WORDS, (SEQUENCE_LENGTH - tokens) * HIDDEN_WORDS);
Tokens:
    for (int t = 0; t < tokens; t++) word_backward(d_out + t * HIDDEN_WORDS, embedding_tail[t % 2][t / 2], token_ids[t]);
}

#endif
