// The units beside the engine: what is computed element by element or row by row. A matrix of activations is
// (tokens, HIDDEN_SIZE), HIDDEN_WORDS words a row; only real tokens are visited.
#ifndef BTTLAB_ELEMENTWISE_H
#define BTTLAB_ELEMENTWISE_H

#include "copy.h"
#include "functions.h"
#include "shape.h"

static void clear(Word *out, int words) {
    loop(words, 1, WRITE + START);
Clear_Pipeline:
    for (int i = 0; i < words; i++) {
#pragma HLS PIPELINE II=1
        out[i] = Word(0.0f);
    }
}

// sums (row_words) = sum of the rows of in (rows x row_words). Row by row: a sum comes round after a row's words.
static void column_sums(Word *sums, const Word *in, int rows, int row_words) {
    loop(larger(rows, 1) * larger(row_words, ACCUMULATE), 1, READ + ADD + WRITE + START);
    const int turn = larger(row_words, ACCUMULATE), steps = larger(rows, 1) * turn;
Sums_Pipeline:
    for (int step = 0, row = 0, w = 0; step < steps; step++) {
#pragma HLS PIPELINE II=1
#pragma HLS DEPENDENCE variable=sums type=inter direction=RAW distance=6 dependent=true
        if (w < row_words) {
            const Word value = row < rows ? in[row * row_words + w] : Word(0.0f);
            sums[w] = row > 0 ? sums[w] + value : value;
        }
        if (++w == turn) w = 0, row++;
    }
}

// out (tokens, HIDDEN_SIZE) = in * Phi(in), and the slope Phi(in) + in phi(in) for the way back. FUNCTION_LANES lanes
// work on a word; the interval shares them.
static void gelu_forward(Word *out, Word *slope, const Word *in, int words) {
    const Meter meter(FP, GELU);
    loop(words, LANES / FUNCTION_LANES, READ + DISTRIBUTION + MUL + ADD + WRITE + START);
Gelu_Pipeline:
    for (int i = 0; i < words; i++) {
#pragma HLS PIPELINE II=LANES/FUNCTION_LANES
        const Word x = in[i], probability = each_lane<normal_distribution>(x);
        out[i] = x * probability;
        slope[i] = probability + x * each_lane<normal_density>(x);
    }
}

// d_in = d_out * slope, written over d_out
static void gelu_backward(Word *d_in, const Word *slope, int words) {
    const Meter meter(BP, GELU);
    loop(words, 1, READ + MUL + WRITE + START);
Gelu_Pipeline:
    for (int i = 0; i < words; i++) {
#pragma HLS PIPELINE II=1
        d_in[i] *= slope[i];
    }
}

static void tanh_forward(Word *out, int words) {
    loop(words, LANES / FUNCTION_LANES, READ + TANGENT + WRITE + START);
Tanh_Pipeline:
    for (int i = 0; i < words; i++) {
#pragma HLS PIPELINE II=LANES/FUNCTION_LANES
        out[i] = each_lane<hyperbolic_tangent>(out[i]);
    }
}

// d_in = d_out * (1 - out^2), written over d_out
static void tanh_backward(Word *d_in, const Word *out, int words) {
    loop(words, 1, READ + MUL + ADD + MUL + WRITE + START);
Tanh_Pipeline:
    for (int i = 0; i < words; i++) {
#pragma HLS PIPELINE II=1
        d_in[i] *= Word(1.0f) - out[i] * out[i];
    }
}

#endif
