// A linear layer in tensor-train format, y = x W^T + bias with W[i1 i2 i3, j1 j2 j3] = G1[i1] G2[i2] G3[i3] G4[j1] G5[j2]
// G6[j3], contracted from both ends (BTT, arXiv 2501.06663): G1..G3 merge into L (features x rank), G4..G6 into R (rank x
// features), independent of the tokens; then z = x R^T and y = z L^T. The backward pass goes the same two ways.
#ifndef BTTLAB_TT_LINEAR_H
#define BTTLAB_TT_LINEAR_H

#include "elementwise.h"
#include "memory.h"
#include "merge.h"

static Word reversed[LINEAR_RANK * HIDDEN_WORDS];  // L^T of the layer to come, with features in the order i3 i2 i1

static void merge_in(int linear) {
    merge_forward<0, InHalf>(merged_in[slot_of(linear)], tail_in[slot_of(linear)], parameters.in_cores + linear * InHalf::WORDS);
}

static void merge_out(int linear) {
    merge_forward<1, OutHalf>(reversed, tail_out[slot_of(linear)], parameters.out_cores + linear * OutHalf::WORDS);
}

static void turn_out(int linear) {
    turn<true>(merged_out[slot_of(linear)], reversed, LINEAR_RANK);
}

static void merge(int linear) {
    FORK;
    merge_in(linear);
    BESIDE;
    merge_out(linear);
    turn_out(linear);
    JOIN;
}

// Both ends of the first layer of a sample; those of every other are merged beside the layer before it.
static void tt_linear_prepare(int linear) {
    const Meter meter(FP, unit_of(linear));
    merge(linear);
}

// Backward: those of `count` layers again, if there are such and later ones have taken their slots since.
static void merge_again(int first, int count) {
Layers:
    for (int linear = first; linear < first + count; linear++) {
        if (linear >= 0 && linear + MERGED_SLOTS < LINEARS) merge(linear);
    }
}

// z (tokens, rank) = x R^T, in the first engine; the second merges the next layer's L meanwhile.
static void tt_linear_in(const Word *x, int tokens, int linear) {
    const int next = linear + 1;
    FORK;
    reduce<0>(bottleneck[linear], RANK_WORDS, nullptr, 0, x, HIDDEN_WORDS, merged_in[slot_of(linear)], HIDDEN_WORDS, tokens,
              LINEAR_RANK, HIDDEN_WORDS);
    BESIDE;
    if (next < LINEARS) merge_out(next);
    JOIN;
}

// y = z L^T + bias, in the second engine; the first merges the next layer's R, and its L is turned.
static void tt_linear_out(Word *y, int tokens, int linear) {
    const int next = linear + 1;
    FORK;
    expand<1>(y, HIDDEN_WORDS, parameters.rest + bias_of(linear), 0, bottleneck[linear], RANK_WORDS * LANES, 1,
              merged_out[slot_of(linear)], HIDDEN_WORDS, tokens, LINEAR_RANK, HIDDEN_WORDS);
    BESIDE;
    if (next < LINEARS) merge_in(next);
    BESIDE;
    if (next < LINEARS) turn_out(next);
    JOIN;
}

// y (tokens, HIDDEN_SIZE) from x (tokens, HIDDEN_SIZE)
static void tt_linear_forward(Word *y, const Word *x, int tokens, int linear) {
    const Meter meter(FP, unit_of(linear));
    tt_linear_in(x, tokens, linear);
    tt_linear_out(y, tokens, linear);
}

// d_z = d_y L in the first engine, d_L^T = z^T d_y in the second.
static void tt_linear_backward_out(Word *d_z, Word *d_merged_out, const Word *d_y, int tokens, int linear) {
    FORK;
    reduce<0>(d_z, RANK_WORDS, nullptr, 0, d_y, HIDDEN_WORDS, merged_out[slot_of(linear)], HIDDEN_WORDS, tokens, LINEAR_RANK,
              HIDDEN_WORDS);
    BESIDE;
    accumulate<1>(d_merged_out, HIDDEN_WORDS, bottleneck[linear], 1, RANK_WORDS * LANES, d_y, HIDDEN_WORDS,
                  LINEAR_RANK, tokens, HIDDEN_WORDS);
    JOIN;
}

// d_R = d_z^T x in the first engine, d_x = d_z R in the second; d_L is turned meanwhile, and d_y summed for the bias.
static void tt_linear_backward_in(Word *d_x, const Word *addend, Word *d_merged_in, Word *d_reversed, const Word *d_z,
                                  const Word *d_merged_out, const Word *d_y, const Word *x, int tokens, int linear) {
    FORK;
    accumulate<0>(d_merged_in, HIDDEN_WORDS, d_z, 1, RANK_WORDS * LANES, x, HIDDEN_WORDS, LINEAR_RANK, tokens,
                  HIDDEN_WORDS);
    BESIDE;
    expand<1>(d_x, HIDDEN_WORDS, addend, HIDDEN_WORDS, d_z, RANK_WORDS * LANES, 1, merged_in[slot_of(linear)], HIDDEN_WORDS, tokens,
              LINEAR_RANK, HIDDEN_WORDS);
    BESIDE;
    turn<false>(d_reversed, d_merged_out, LINEAR_RANK);
    BESIDE;
    column_sums(gradients.rest + bias_of(linear), d_y, tokens, HIDDEN_WORDS);
    JOIN;
}

// Gradients of cores and bias, and d_x = addend (none if null) + what flows back to x; d_x, addend, d_y and x are
// (tokens, HIDDEN_SIZE).
static void tt_linear_backward(Word *d_x, const Word *addend, const Word *d_y, const Word *x, int tokens, int linear) {
    const Meter meter(BP, unit_of(linear));
    const int out = linear * OutHalf::WORDS, in = linear * InHalf::WORDS;
    static Word d_z[SEQUENCE_LENGTH * RANK_WORDS];
    static Word d_merged_out[LINEAR_RANK * HIDDEN_WORDS], d_reversed[LINEAR_RANK * HIDDEN_WORDS];
    static Word d_merged_in[LINEAR_RANK * HIDDEN_WORDS];

    tt_linear_backward_out(d_z, d_merged_out, d_y, tokens, linear);
    tt_linear_backward_in(d_x, addend, d_merged_in, d_reversed, d_z, d_merged_out, d_y, x, tokens, linear);
    FORK;
    merge_backward<1, OutHalf>(gradients.out_cores + out, d_reversed, tail_out[slot_of(linear)], parameters.out_cores + out);
    BESIDE;
    merge_backward<0, InHalf>(gradients.in_cores + in, d_merged_in, tail_in[slot_of(linear)], parameters.in_cores + in);
    JOIN;
}

#endif
