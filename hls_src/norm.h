// LayerNorm over each token's features. Loops that add up a token's features visit the tokens in turn, word by word, so
// that a token's sum comes round only after the adder's latency (ACCUMULATE steps, idle ones where there are fewer
// tokens). Both counters run in one loop: a nest whose inner bound is a variable would drain its pipeline at every turn.
#ifndef BTTLAB_NORM_H
#define BTTLAB_NORM_H

#include <cmath>

#include "elementwise.h"

// row = in + residual (none if null); out = normalized * scale + shift with normalized = (row - mean) * inverse_std.
// in is overwritten with row.
static void layer_norm_forward(Word *out, Word *normalized, float *inverse_std, Word *in, const Word *residual,
                               const Word *norm, int tokens) {
    const Meter meter(FP, NORM);
    const Word *scale = norm, *shift = norm + HIDDEN_WORDS;
    const int turn = larger(tokens, ACCUMULATE), steps = HIDDEN_WORDS * turn;
    Word sum[SEQUENCE_LENGTH], mean[SEQUENCE_LENGTH];
    loop(steps, 1, READ + 2 * ADD + WRITE + START);
Mean_Pipeline:
    for (int step = 0, w = 0, t = 0; step < steps; step++) {
#pragma HLS PIPELINE II=1
#pragma HLS DEPENDENCE variable=sum type=inter direction=RAW distance=6 dependent=true
        if (t < tokens) {
            const int i = t * HIDDEN_WORDS + w;
            const Word value = in[i] + residual[i];
            in[i] = value;
            sum[t] = w > 0 ? sum[t] + value : value;
        }
        if (++t == turn) t = 0, w++;
    }
    loop(tokens, 1, LANE_TREE + DIV + START);
Mean_Of_Lanes_Pipeline:
    for (int t = 0; t < tokens; t++) {
#pragma HLS PIPELINE II=1
        mean[t] = Word(sum_lanes(sum[t]) / HIDDEN_SIZE);
    }
    loop(steps, 1, READ + ADD + MUL + ADD + WRITE + START);
Variance_Pipeline:
    for (int step = 0, w = 0, t = 0; step < steps; step++) {
#pragma HLS PIPELINE II=1
#pragma HLS DEPENDENCE variable=sum type=inter direction=RAW distance=6 dependent=true
        if (t < tokens) {
            const Word centred = in[t * HIDDEN_WORDS + w] - mean[t];
            sum[t] = w > 0 ? sum[t] + centred * centred : centred * centred;
        }
        if (++t == turn) t = 0, w++;
    }
    loop(tokens, 1, LANE_TREE + DIV + ADD + ROOT + DIV + WRITE + START);
Deviation_Pipeline:
    for (int t = 0; t < tokens; t++) {
#pragma HLS PIPELINE II=1
        inverse_std[t] = 1.0f / std::sqrt(sum_lanes(sum[t]) / HIDDEN_SIZE + 1e-5f);
    }
    loop(tokens * HIDDEN_WORDS, 1, READ + 2 * ADD + 2 * MUL + WRITE + START);
Scale_Tokens:
    for (int t = 0; t < tokens; t++) {
        const Word factor(inverse_std[t]);
    Scale_Pipeline:
        for (int w = 0; w < HIDDEN_WORDS; w++) {
#pragma HLS PIPELINE II=1
            const Word value = (in[t * HIDDEN_WORDS + w] - mean[t]) * factor;
            normalized[t * HIDDEN_WORDS + w] = value;
            out[t * HIDDEN_WORDS + w] = value * scale[w] + shift[w];
        }
    }
}

// With d = d_out * scale: d_in = (d - mean(d) - normalized * mean(d * normalized)) * inverse_std, written over d_out;
// d_scale = sum over tokens of d_out * normalized, d_shift = sum over tokens of d_out. Beside that `earlier` (none if
// null), the output of an earlier LayerNorm, from what that one kept.
static void layer_norm_backward(Word *d_in, Word *d_norm, const Word *normalized, const float *inverse_std,
                                const Word *norm, int tokens, Word *earlier, const Word *earlier_normalized,
                                const Word *earlier_norm) {
    const Meter meter(BP, NORM);
    const Word *scale = norm;
    Word *d_scale = d_norm, *d_shift = d_norm + HIDDEN_WORDS;
    Word sum[SEQUENCE_LENGTH], projection[SEQUENCE_LENGTH], mean[SEQUENCE_LENGTH], slope[SEQUENCE_LENGTH];
    // Token by token: the gradient of a word of scale and shift comes round after a token's words. II of 2: both lie in one
    // memory, which reads and writes a word a cycle. That leaves a multiplier and an adder to the earlier LayerNorm.
    loop(tokens * HIDDEN_WORDS, 2, READ + MUL + ADD + WRITE + START);
Parameters_Tokens:
    for (int t = 0; t < tokens; t++) {
    Parameters_Pipeline:
        for (int w = 0; w < HIDDEN_WORDS; w++) {
#pragma HLS PIPELINE II=2
            const int i = t * HIDDEN_WORDS + w;
            const Word d = d_in[i], product = d * normalized[i];
            d_scale[w] = t > 0 ? d_scale[w] + product : product;
            d_shift[w] = t > 0 ? d_shift[w] + d : d;
            if (earlier) earlier[i] = earlier_normalized[i] * earlier_norm[w] + earlier_norm[HIDDEN_WORDS + w];
        }
    }
    const int turn = larger(tokens, ACCUMULATE), steps = HIDDEN_WORDS * turn;
    loop(steps, 1, READ + 2 * MUL + ADD + WRITE + START);
Sums_Pipeline:
    for (int step = 0, w = 0, t = 0; step < steps; step++) {
#pragma HLS PIPELINE II=1
#pragma HLS DEPENDENCE variable=sum type=inter direction=RAW distance=6 dependent=true
#pragma HLS DEPENDENCE variable=projection type=inter direction=RAW distance=6 dependent=true
        if (t < tokens) {
            const int i = t * HIDDEN_WORDS + w;
            const Word d = d_in[i] * scale[w], product = d * normalized[i];
            d_in[i] = d;
            sum[t] = w > 0 ? sum[t] + d : d;
            projection[t] = w > 0 ? projection[t] + product : product;
        }
        if (++t == turn) t = 0, w++;
    }
    loop(tokens, 2, LANE_TREE + DIV + WRITE + START);  // one lane tree for both
Means_Pipeline:
    for (int t = 0; t < tokens; t++) {
#pragma HLS PIPELINE II=2
        mean[t] = Word(sum_lanes(sum[t]) / HIDDEN_SIZE);
        slope[t] = Word(sum_lanes(projection[t]) / HIDDEN_SIZE);
    }
    loop(tokens * HIDDEN_WORDS, 1, READ + 2 * MUL + 2 * ADD + WRITE + START);
Scale_Tokens:
    for (int t = 0; t < tokens; t++) {
        const Word factor(inverse_std[t]);
    Scale_Pipeline:
        for (int w = 0; w < HIDDEN_WORDS; w++) {
#pragma HLS PIPELINE II=1
            const int i = t * HIDDEN_WORDS + w;
            d_in[i] = (d_in[i] - mean[t] - normalized[i] * slope[t]) * factor;
        }
    }
}

#endif
