// One encoder (post-LN): h = LayerNorm(x + output(attention(x))), y = LayerNorm(h + second(GELU(first(h)))).
#ifndef BTTLAB_ENCODER_H
#define BTTLAB_ENCODER_H

#include "attention.h"
#include "tt_linear.h"

// hidden[e + 1] from hidden[e], both (tokens, HIDDEN_SIZE)
static void encoder_forward(int e, int tokens) {
    const Meter residuals(FP, NORM);
    const int linear = LINEARS_PER_ENCODER * e, words = tokens * HIDDEN_WORDS;
    const Word *encoder = parameters + encoder_offset(e);
    static Word residual[TOKENS_WORDS];

    tt_linear_forward(queries[e], hidden[e], tokens, linear + QUERY);
    tt_linear_forward(keys[e], hidden[e], tokens, linear + KEY);
    tt_linear_forward(values[e], hidden[e], tokens, linear + VALUE);
    attention_forward(context[e], attention[e], queries[e], keys[e], values[e], tokens);
    tt_linear_forward(residual, context[e], tokens, linear + OUTPUT);
    add(residual, hidden[e], words);
    layer_norm_forward(attended[e], attention_normalized[e], attention_inverse_std[e], residual, encoder + ATTENTION_NORM,
                       tokens);

    tt_linear_forward(first_out[e], attended[e], tokens, linear + FIRST);
    gelu_forward(activated[e], first_out[e], words);
    tt_linear_forward(residual, activated[e], tokens, linear + SECOND);
    add(residual, attended[e], words);
    layer_norm_forward(hidden[e + 1], feed_forward_normalized[e], feed_forward_inverse_std[e], residual,
                       encoder + FEED_FORWARD_NORM, tokens);
}

// d_hidden (tokens, HIDDEN_SIZE) holds the gradient of hidden[e + 1] and then that of hidden[e].
static void encoder_backward(Word *d_hidden, int e, int tokens) {
    const Meter residuals(BP, NORM);
    const int linear = LINEARS_PER_ENCODER * e, words = tokens * HIDDEN_WORDS;
    const Word *encoder = parameters + encoder_offset(e);
    Word *d_encoder = gradients + encoder_offset(e);
    static Word d_residual[TOKENS_WORDS], d_inner[TOKENS_WORDS];
    static Word d_queries[TOKENS_WORDS], d_keys[TOKENS_WORDS], d_values[TOKENS_WORDS];

    layer_norm_backward(d_hidden, d_encoder + FEED_FORWARD_NORM, feed_forward_normalized[e], feed_forward_inverse_std[e],
                        encoder + FEED_FORWARD_NORM, tokens);
    copy(d_residual, d_hidden, words);
    tt_linear_backward(d_inner, d_residual, activated[e], tokens, linear + SECOND, false);
    gelu_backward(d_inner, first_out[e], words);
    tt_linear_backward(d_hidden, d_inner, attended[e], tokens, linear + FIRST, true);

    layer_norm_backward(d_hidden, d_encoder + ATTENTION_NORM, attention_normalized[e], attention_inverse_std[e],
                        encoder + ATTENTION_NORM, tokens);
    copy(d_residual, d_hidden, words);
    tt_linear_backward(d_inner, d_residual, context[e], tokens, linear + OUTPUT, false);
    attention_backward(d_queries, d_keys, d_values, d_inner, attention[e], queries[e], keys[e], values[e], tokens);
    tt_linear_backward(d_hidden, d_queries, hidden[e], tokens, linear + QUERY, true);
    tt_linear_backward(d_hidden, d_keys, hidden[e], tokens, linear + KEY, true);
    tt_linear_backward(d_hidden, d_values, hidden[e], tokens, linear + VALUE, true);
}

#endif
