// Multi-head self-attention over the real tokens: softmax(Q K^T / sqrt(HEAD_SIZE)) V, head by head.
#ifndef BTTLAB_ATTENTION_H
#define BTTLAB_ATTENTION_H

#include "elementwise.h"
#include "engine.h"
#include "memory.h"

static inline float attention_scale() { return 1.0f / std::sqrt(static_cast<float>(HEAD_SIZE)); }

// context (tokens, HIDDEN_SIZE) from q, k, v (tokens, HIDDEN_SIZE); probability (HEADS, tokens, tokens) is kept, a row of
// it SEQUENCE_WORDS words.
static void attention_forward(Word *out, Word *probability, const Word *q, const Word *k, const Word *v, int tokens) {
    const Meter meter(FP, ATTENTION);
Heads:
    for (int head = 0; head < HEADS; head++) {
        Word *p = probability + head * SEQUENCE_LENGTH * SEQUENCE_WORDS;
        const int column = head * HEAD_WORDS;
        contract_inner(p, SEQUENCE_WORDS, q + column, HIDDEN_WORDS, k + column, HIDDEN_WORDS, tokens, tokens, HEAD_WORDS,
                       false);
    Softmax_Rows:
        for (int t = 0; t < tokens; t++) {
            spend(DIV);
            Word *row = p + t * SEQUENCE_WORDS;
            const float sum = row_exponential(row, tokens, attention_scale(), row_maximum(row, tokens));
            scale_row(row, words_for(tokens), 1.0f / sum);
        }
        contract_outer(out + column, HIDDEN_WORDS, p, SEQUENCE_WORDS * LANES, 1, v + column, HIDDEN_WORDS, tokens, tokens,
                       HEAD_WORDS, false);
    }
}

// d_q, d_k, d_v (tokens, HIDDEN_SIZE) from d_out (tokens, HIDDEN_SIZE)
static void attention_backward(Word *d_q, Word *d_k, Word *d_v, const Word *d_out, const Word *probability, const Word *q,
                               const Word *k, const Word *v, int tokens) {
    const Meter meter(BP, ATTENTION);
    static Word d_p[SEQUENCE_LENGTH * SEQUENCE_WORDS];
Heads:
    for (int head = 0; head < HEADS; head++) {
        const Word *p = probability + head * SEQUENCE_LENGTH * SEQUENCE_WORDS;
        const int column = head * HEAD_WORDS;
        contract_outer(d_v + column, HIDDEN_WORDS, p, 1, SEQUENCE_WORDS * LANES, d_out + column, HIDDEN_WORDS, tokens,
                       tokens, HEAD_WORDS, false);
        contract_inner(d_p, SEQUENCE_WORDS, d_out + column, HIDDEN_WORDS, v + column, HIDDEN_WORDS, tokens, tokens,
                       HEAD_WORDS, false);
        spend(tokens * (words_for(tokens) * (ACCUMULATE + 1) + 2 * READ + 4 * MUL + ADD + LANE_TREE + 2 * START));
    Softmax_Rows:  // of the scores: p * (d_p - sum(p * d_p)) * scale
        for (int t = 0; t < tokens; t++) {
            Word *d_row = d_p + t * SEQUENCE_WORDS;
            const Word *row = p + t * SEQUENCE_WORDS;
            Word sum(0.0f);
            for (int w = 0; w < words_for(tokens); w++) sum += d_row[w] * row[w];
            const Word mean(sum_lanes(sum)), scale(attention_scale());
            for (int w = 0; w < words_for(tokens); w++) d_row[w] = row[w] * (d_row[w] - mean) * scale;
        }
        contract_outer(d_q + column, HIDDEN_WORDS, d_p, SEQUENCE_WORDS * LANES, 1, k + column, HIDDEN_WORDS, tokens,
                       tokens, HEAD_WORDS, false);
        contract_outer(d_k + column, HIDDEN_WORDS, d_p, 1, SEQUENCE_WORDS * LANES, q + column, HIDDEN_WORDS, tokens,
                       tokens, HEAD_WORDS, false);
    }
}

#endif
