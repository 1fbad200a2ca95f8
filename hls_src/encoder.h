// One encoder (post-LN): h = LayerNorm(x + output(attention(x))), y = LayerNorm(h + second(GELU(first(h)))).
#ifndef BTTLAB_ENCODER_H
#define BTTLAB_ENCODER_H

#include "attention.h"
#include "norm.h"
#include "tt_linear.h"

// hidden[e + 1] from hidden[e], both (tokens, HIDDEN_SIZE)
static void encoder_forward(int e, int tokens) {
    const int linear = LINEARS_PER_ENCODER * e;
    static Word inner[TOKENS_WORDS];

    tt_linear_forward(queries[e], hidden[e], tokens, linear + QUERY);
    tt_linear_forward(keys[e], hidden[e], tokens, linear + KEY);
    tt_linear_forward(values[e], hidden[e], tokens, linear + VALUE);
    attention_forward(context[e], attention[e], queries[e], keys[e], values[e], tokens);
    tt_linear_forward(inner, context[e], tokens, linear + OUTPUT);
    layer_norm_forward(attended[e], attention_normalized[e], attention_inverse_std[e], inner, hidden[e],
                       parameters.rest + attention_norm(e), tokens);

    tt_linear_forward(inner, attended[e], tokens, linear + FIRST);
    gelu_forward(activated[e], slope[e], inner, tokens * HIDDEN_WORDS);
    tt_linear_forward(inner, activated[e], tokens, linear + SECOND);
    layer_norm_forward(hidden[e + 1], feed_forward_normalized[e], feed_forward_inverse_std[e], inner, attended[e],
                       parameters.rest + feed_forward_norm(e), tokens);
}

// d_hidden (tokens, HIDDEN_SIZE) holds the gradient of hidden[e + 1] and then that of hidden[e]. What is added to it goes
// to a second memory and back, since an engine cannot write where it reads. While the LayerNorms keep the engines waiting,
// these merge the cores of the encoder before again.
static void encoder_backward(Word *d_hidden, int e, int tokens) {
    const int linear = LINEARS_PER_ENCODER * e, before = linear - LINEARS_PER_ENCODER;
    static Word d_inner[TOKENS_WORDS], d_sum[TOKENS_WORDS];
    static Word d_queries[TOKENS_WORDS], d_keys[TOKENS_WORDS], d_values[TOKENS_WORDS];

    {
        const Meter meter(BP, NORM);
        FORK;
        layer_norm_backward(d_hidden, gradients.rest + feed_forward_norm(e), feed_forward_normalized[e],
                            feed_forward_inverse_std[e], parameters.rest + feed_forward_norm(e), tokens);
        BESIDE;
        merge_again(before + OUTPUT, 3);
        JOIN;
    }
    tt_linear_backward(d_inner, nullptr, d_hidden, activated[e], tokens, linear + SECOND);
    gelu_backward(d_inner, slope[e], tokens * HIDDEN_WORDS);
    tt_linear_backward(d_sum, d_hidden, d_inner, attended[e], tokens, linear + FIRST);

    {
        const Meter meter(BP, NORM);
        FORK;
        layer_norm_backward(d_sum, gradients.rest + attention_norm(e), attention_normalized[e], attention_inverse_std[e],
                            parameters.rest + attention_norm(e), tokens);
        BESIDE;
        merge_again(before + QUERY, 3);
        JOIN;
    }
    tt_linear_backward(d_inner, nullptr, d_sum, context[e], tokens, linear + OUTPUT);
    attention_backward(d_queries, d_keys, d_values, d_inner, attention[e], queries[e], keys[e], values[e], tokens);
    tt_linear_backward(d_hidden, d_sum, d_queries, hidden[e], tokens, linear + QUERY);
    tt_linear_backward(d_sum, d_hidden, d_keys, hidden[e], tokens, linear + KEY);
    tt_linear_backward(d_hidden, d_sum, d_values, hidden[e], tokens, linear + VALUE);
}

#endif
