// Multi-head self-attention over the real tokens: softmax(Q K^T / sqrt(HEAD_SIZE)) V.
#ifndef BTTLAB_ATTENTION_H
#define BTTLAB_ATTENTION_H

#include <cmath>

#include "engine.h"
#include "memory.h"
#include "softmax.h"

constexpr int SCORE_WORDS = SEQUENCE_LENGTH * SEQUENCE_WORDS;  // a head's (tokens, tokens) matrix

// The rows of all heads' scores.
static inline Rows score_rows(int tokens) {
    return Rows{HEADS, SCORE_WORDS, tokens, SEQUENCE_WORDS, words_for(tokens)};
}

static inline float attention_scale() { return 1.0f / std::sqrt(static_cast<float>(HEAD_SIZE)); }

// context (tokens, HIDDEN_SIZE) from q, k, v (tokens, HIDDEN_SIZE); probability (HEADS, tokens, tokens) is kept, a row of
// it SEQUENCE_WORDS words.
static void attention_forward(Word *out, Word *probability, const Word *q, const Word *k, const Word *v, int tokens) {
    const Meter meter(FP, ATTENTION);
    static RowFacts facts;
    reduce<0>(probability, SEQUENCE_WORDS, nullptr, 0, q, HIDDEN_WORDS, k, HIDDEN_WORDS, tokens, tokens, HEAD_WORDS,
              Batch{HEADS, SCORE_WORDS, HEAD_WORDS, HEAD_WORDS});
    softmax(probability, facts, score_rows(tokens), tokens, attention_scale(), 1.0f);
    accumulate<0>(out, HIDDEN_WORDS, probability, SEQUENCE_WORDS * LANES, 1, v, HIDDEN_WORDS, tokens, tokens,
                  HEAD_WORDS, Batch{HEADS, HEAD_WORDS, SCORE_WORDS, HEAD_WORDS});
}

// Gradients of all heads' scores, written over d_p: p * (d_p - sum(p * d_p)) * scale
static void scores_backward(Word *d_p, const Word *p, int tokens) {
    const Word scale(attention_scale());
    const int words = words_for(tokens);
    loop(HEADS * tokens, 2 * SEQUENCE_WORDS, READ + 3 * MUL + ADD + LANE_TREE + ADD + WRITE + START);
    Place at;
Rows_Pipeline:
    for (int i = 0; i < HEADS * tokens; i++, at.next(Rows{HEADS, SCORE_WORDS, tokens, SEQUENCE_WORDS, 1})) {
#pragma HLS PIPELINE II=2*SEQUENCE_WORDS
        Word *d_row = d_p + at.offset();
        const Word *row = p + at.offset();
        Word sum(0.0f);
    Sum_Unroll:
        for (int w = 0; w < SEQUENCE_WORDS; w++) {
#pragma HLS UNROLL
            if (w < words) sum += d_row[w] * row[w];
        }
        const Word mean(sum_lanes(sum));
    Words_Unroll:
        for (int w = 0; w < SEQUENCE_WORDS; w++) {
#pragma HLS UNROLL
            if (w < words) d_row[w] = row[w] * (d_row[w] - mean) * scale;
        }
    }
}

// d_v = p^T d_out in the first engine, d_p = d_out v^T in the second, for all heads.
static void context_backward(Word *d_p, Word *d_v, const Word *d_out, const Word *p, const Word *v, int tokens) {
    FORK;
    accumulate<0>(d_v, HIDDEN_WORDS, p, 1, SEQUENCE_WORDS * LANES, d_out, HIDDEN_WORDS, tokens, tokens,
                  HEAD_WORDS, Batch{HEADS, HEAD_WORDS, SCORE_WORDS, HEAD_WORDS});
    BESIDE;
    reduce<1>(d_p, SEQUENCE_WORDS, nullptr, 0, d_out, HIDDEN_WORDS, v, HIDDEN_WORDS, tokens, tokens, HEAD_WORDS,
              Batch{HEADS, SCORE_WORDS, HEAD_WORDS, HEAD_WORDS});
    JOIN;
}

// d_q = d_s k in the first engine, d_k = d_s^T q in the second, for all heads; d_s: the gradients of the scores.
static void scores_to_inputs(Word *d_q, Word *d_k, const Word *d_s, const Word *q, const Word *k, int tokens) {
    const Batch heads = {HEADS, HEAD_WORDS, SCORE_WORDS, HEAD_WORDS};
    FORK;
    accumulate<0>(d_q, HIDDEN_WORDS, d_s, SEQUENCE_WORDS * LANES, 1, k, HIDDEN_WORDS, tokens, tokens, HEAD_WORDS,
                  heads);
    BESIDE;
    accumulate<1>(d_k, HIDDEN_WORDS, d_s, 1, SEQUENCE_WORDS * LANES, q, HIDDEN_WORDS, tokens, tokens, HEAD_WORDS,
                  heads);
    JOIN;
}

// d_q, d_k, d_v (tokens, HIDDEN_SIZE) from d_out (tokens, HIDDEN_SIZE)
static void attention_backward(Word *d_q, Word *d_k, Word *d_v, const Word *d_out, const Word *probability, const Word *q,
                               const Word *k, const Word *v, int tokens) {
    const Meter meter(BP, ATTENTION);
    static Word d_scores[HEADS * SCORE_WORDS];
    context_backward(d_scores, d_v, d_out, probability, v, tokens);
    scores_backward(d_scores, probability, tokens);
    scores_to_inputs(d_q, d_k, d_scores, q, k, tokens);
}

#endif
