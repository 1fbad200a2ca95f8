// From the last hidden states to the logits: the intent from token 0 ([CLS]), a slot from each word. Each head is a TT
// pooler with tanh, then a dense layer of `classes` rows.
#ifndef BTTLAB_HEADS_H
#define BTTLAB_HEADS_H

#include "tt_linear.h"

// logits (rows, classes in whole words); pooled (rows, HIDDEN_SIZE) is kept; x (rows, HIDDEN_SIZE); head: weight, bias
static void head_forward(Word *logits, Word *pooled, const Word *x, int rows, int pooler, const Word *head, int classes) {
    const Meter meter(FP, HEAD);
    const int class_words = words_for(classes);
    tt_linear_forward(pooled, x, rows, pooler);
    tanh_forward(pooled, rows * HIDDEN_WORDS);
    bias_forward(logits, head + classes * HIDDEN_WORDS, rows, class_words);
    contract_inner(logits, class_words, pooled, HIDDEN_WORDS, head, HIDDEN_WORDS, rows, classes, HIDDEN_WORDS, true);
}

// d_x (rows, HIDDEN_SIZE) and the parameters' gradients from d_logits (rows, classes in whole words)
static void head_backward(Word *d_x, const Word *d_logits, const Word *pooled, const Word *x, int rows, int pooler,
                          const Word *head, Word *d_head, int classes) {
    const Meter meter(BP, HEAD);
    const int class_words = words_for(classes);
    static Word d_pooled[TOKENS_WORDS];
    bias_backward(d_head + classes * HIDDEN_WORDS, d_logits, rows, class_words);
    contract_outer(d_head, HIDDEN_WORDS, d_logits, 1, class_words * LANES, pooled, HIDDEN_WORDS, classes, rows,
                   HIDDEN_WORDS, false);
    contract_outer(d_pooled, HIDDEN_WORDS, d_logits, class_words * LANES, 1, head, HIDDEN_WORDS, rows, classes,
                   HIDDEN_WORDS, false);
    tanh_backward(d_pooled, pooled, rows * HIDDEN_WORDS);
    tt_linear_backward(d_x, d_pooled, x, rows, pooler, false);
}

#endif
