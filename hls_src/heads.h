// From the last hidden states to the logits: the intent from token 0 ([CLS]), a slot from each word. Each head is a TT
// pooler with tanh, then a dense layer of `classes` rows.
#ifndef BTTLAB_HEADS_H
#define BTTLAB_HEADS_H

#include "tt_linear.h"

// pooled (rows, HIDDEN_SIZE) from x (rows, HIDDEN_SIZE)
static void pooler_forward(Word *pooled, const Word *x, int rows, int pooler) {
    tt_linear_forward(pooled, x, rows, pooler);
    const Meter meter(FP, HEAD);
    tanh_forward(pooled, rows * HIDDEN_WORDS);
}

// logits (rows, classes in whole words) from pooled (rows, HIDDEN_SIZE); head: weight, bias
template <int ENGINE>
static void logits_forward(Word *logits, const Word *pooled, int rows, const Word *head, int classes) {
    reduce<ENGINE>(logits, words_for(classes), head + classes * HIDDEN_WORDS, 0, pooled, HIDDEN_WORDS, head, HIDDEN_WORDS,
                   rows, classes, HIDDEN_WORDS);
}

// Both heads, side by side: intent_logits from token 0 of x (tokens, HIDDEN_SIZE), slot_logits from the rest.
static void heads_forward(const Word *x, int tokens) {
    pooler_forward(pooled_intent, x, 1, INTENT_POOLER);
    pooler_forward(pooled_slots, x + HIDDEN_WORDS, tokens - 1, SLOT_POOLER);
    const Meter meter(FP, HEAD);
    FORK;
    logits_forward<0>(slot_logits, pooled_slots, tokens - 1, parameters.rest + SLOT_HEAD, SLOTS);
    BESIDE;
    logits_forward<1>(intent_logits, pooled_intent, 1, parameters.rest + INTENT_HEAD, INTENTS);
    JOIN;
}

// d_x (rows, HIDDEN_SIZE) and the parameters' gradients from d_logits (rows, classes in whole words): those of the weight
// in the first engine, that of the input in the second.
static void head_backward(Word *d_x, const Word *d_logits, const Word *pooled, const Word *x, int rows, int pooler,
                          const Word *head, Word *d_head, int classes) {
    const int class_words = words_for(classes);
    static Word d_pooled[TOKENS_WORDS];
    {
        const Meter meter(BP, HEAD);
        column_sums(d_head + classes * HIDDEN_WORDS, d_logits, rows, class_words);
        FORK;
        accumulate<0>(d_head, HIDDEN_WORDS, d_logits, 1, class_words * LANES, pooled, HIDDEN_WORDS, classes, rows,
                      HIDDEN_WORDS);
        BESIDE;
        accumulate<1>(d_pooled, HIDDEN_WORDS, d_logits, class_words * LANES, 1, head, HIDDEN_WORDS, rows, classes,
                      HIDDEN_WORDS);
        JOIN;
        tanh_backward(d_pooled, pooled, rows * HIDDEN_WORDS);
    }
    tt_linear_backward(d_x, nullptr, d_pooled, x, rows, pooler);
}

// d_x (tokens, HIDDEN_SIZE) from the gradients of the logits
static void heads_backward(Word *d_x, const Word *x, int tokens) {
    head_backward(d_x, intent_logits, pooled_intent, x, 1, INTENT_POOLER, parameters.rest + INTENT_HEAD,
                  gradients.rest + INTENT_HEAD, INTENTS);
    head_backward(d_x + HIDDEN_WORDS, slot_logits, pooled_slots, x + HIDDEN_WORDS, tokens - 1, SLOT_POOLER,
                  parameters.rest + SLOT_HEAD, gradients.rest + SLOT_HEAD, SLOTS);
}

#endif
