// One encoder (post-LN): h = LayerNorm(x + output(attention(x))), y = LayerNorm(h + second(GELU(first(h)))).
#ifndef BTTLAB_ENCODER_H
#define BTTLAB_ENCODER_H

#include "attention.h"
#include "norm.h"
#include "tt_linear.h"

// hidden (tokens, HIDDEN_SIZE) is replaced by what comes out.
static void encoder_forward(int e, int tokens) {
    const int linear = LINEARS_PER_ENCODER * e;
    Word *queries = attention_kept[QUERIES][e], *keys = attention_kept[KEYS][e], *values = attention_kept[VALUES][e];
    Word *context = attention_kept[CONTEXT][e], *activated = feed_forward_kept[ACTIVATED][e];

    tt_linear_forward(queries, hidden, tokens, linear + QUERY);
    tt_linear_forward(keys, hidden, tokens, linear + KEY);
    tt_linear_forward(values, hidden, tokens, linear + VALUE);
    attention_forward(context, attention[e], queries, keys, values, tokens);
    tt_linear_forward(inner, context, tokens, linear + OUTPUT);
    layer_norm_forward(attended, feed_forward_kept[ATTENTION_NORMALIZED][e], attention_inverse_std[e], inner, hidden,
                       parameters.rest + attention_norm(e), tokens);

    tt_linear_forward(inner, attended, tokens, linear + FIRST);
    gelu_forward(activated, feed_forward_kept[SLOPE][e], inner, tokens * HIDDEN_WORDS);
    tt_linear_forward(inner, activated, tokens, linear + SECOND);
    layer_norm_forward(hidden, feed_forward_kept[FEED_FORWARD_NORMALIZED][e], feed_forward_inverse_std[e], inner, attended,
                       parameters.rest + feed_forward_norm(e), tokens);
}

// The second LayerNorm; makes the first one's output anew. Meanwhile the engines merge cores of the encoder before again.
static void feed_forward_norm_backward(Word *d_hidden, int e, int tokens) {
    const Meter meter(BP, NORM);
    FORK;
    layer_norm_backward(d_hidden, gradients.rest + feed_forward_norm(e), feed_forward_kept[FEED_FORWARD_NORMALIZED][e],
                        feed_forward_inverse_std[e], parameters.rest + feed_forward_norm(e), tokens, attended,
                        feed_forward_kept[ATTENTION_NORMALIZED][e], parameters.rest + attention_norm(e));
    BESIDE;
    merge_again(LINEARS_PER_ENCODER * (e - 1) + OUTPUT, 3);
    JOIN;
}

// The first; makes anew what came into the encoder, out of the LayerNorm before it.
static void attention_norm_backward(Word *d_sum, int e, int tokens) {
    const Meter meter(BP, NORM);
    const Word *normalized = e > 0 ? feed_forward_kept[FEED_FORWARD_NORMALIZED][e - 1] : embedding_normalized;
    const int norm = e > 0 ? feed_forward_norm(e - 1) : EMBEDDING_NORM;
    FORK;
    layer_norm_backward(d_sum, gradients.rest + attention_norm(e), feed_forward_kept[ATTENTION_NORMALIZED][e],
                        attention_inverse_std[e], parameters.rest + attention_norm(e), tokens, hidden, normalized,
                        parameters.rest + norm);
    BESIDE;
    merge_again(LINEARS_PER_ENCODER * (e - 1) + QUERY, 3);
    JOIN;
}

// d_hidden (tokens, HIDDEN_SIZE) holds the gradient of what came out of the encoder and then that of what went in. What is
// added to it goes to a second memory and back, since an engine cannot write where it reads.
static void encoder_backward(Word *d_hidden, int e, int tokens) {
    const int linear = LINEARS_PER_ENCODER * e;
    static Word d_inner[TOKENS_WORDS], d_sum[TOKENS_WORDS];
    static Word d_queries[TOKENS_WORDS], d_keys[TOKENS_WORDS], d_values[TOKENS_WORDS];

    feed_forward_norm_backward(d_hidden, e, tokens);
    tt_linear_backward(d_inner, nullptr, d_hidden, feed_forward_kept[ACTIVATED][e], tokens, linear + SECOND);
    gelu_backward(d_inner, feed_forward_kept[SLOPE][e], tokens * HIDDEN_WORDS);
    tt_linear_backward(d_sum, d_hidden, d_inner, attended, tokens, linear + FIRST);

    attention_norm_backward(d_sum, e, tokens);
    tt_linear_backward(d_inner, nullptr, d_sum, attention_kept[CONTEXT][e], tokens, linear + OUTPUT);
    attention_backward(d_queries, d_keys, d_values, d_inner, attention[e], attention_kept[QUERIES][e],
                       attention_kept[KEYS][e], attention_kept[VALUES][e], tokens);
    tt_linear_backward(d_hidden, d_sum, d_queries, hidden, tokens, linear + QUERY);
    tt_linear_backward(d_sum, d_hidden, d_keys, hidden, tokens, linear + KEY);
    tt_linear_backward(d_hidden, d_sum, d_values, hidden, tokens, linear + VALUE);
}

#endif
