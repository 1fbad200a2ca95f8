// A linear layer in tensor-train format, y = x W^T + bias with W[i1 i2 i3, j1 j2 j3] = G1[i1] G2[i2] G3[i3] G4[j1] G5[j2]
// G6[j3], contracted from both ends (BTT, arXiv 2501.06663): G1..G3 merge into L (features x rank), G4..G6 into R (rank x
// features), independent of the tokens; then z = x R^T and y = z L^T. The backward pass goes the same two ways.
#ifndef BTTLAB_TT_LINEAR_H
#define BTTLAB_TT_LINEAR_H

#include "elementwise.h"
#include "engine.h"
#include "memory.h"

// out (rows x columns, no gaps) from in (rows x whole words), and back with zeros in the gaps.
template <int ROWS, int COLUMNS>
static void pack(Word *out, const Word *in) {
    loop(ROWS * COLUMNS, READ + WRITE, READ + START);  // an element is written into the word that is there
Rows_Pipeline:
    for (int row = 0; row < ROWS; row++) {
        for (int i = 0; i < COLUMNS; i++) {
            set_element(out, row * COLUMNS + i, element(in, row * words_for(COLUMNS) * LANES + i));
        }
    }
}

template <int ROWS, int COLUMNS>
static void unpack(Word *out, const Word *in) {
    loop(ROWS * words_for(COLUMNS) * LANES, READ + WRITE, READ + START);
Rows_Pipeline:
    for (int row = 0; row < ROWS; row++) {
        for (int i = 0; i < words_for(COLUMNS) * LANES; i++) {
            set_element(out, row * words_for(COLUMNS) * LANES + i,
                        i < COLUMNS ? element(in, row * COLUMNS + i) : 0.0f);
        }
    }
}

// out[n1][n2][n3] = in[n3][n2][n1] for each of `ranks` rows of HIDDEN_SIZE.
template <int N1, int N2, int N3>
static void reverse_modes(Word *out, const Word *in, int ranks) {
    loop(ranks * HIDDEN_SIZE, READ + WRITE, READ + START);
Ranks:
    for (int rank = 0; rank < ranks; rank++) {
        for (int i2 = 0; i2 < N2; i2++) {
            for (int i3 = 0; i3 < N3; i3++) {
                for (int i1 = 0; i1 < N1; i1++) {
                    set_element(out, rank * HIDDEN_SIZE + (i1 * N2 + i2) * N3 + i3,
                                element(in, rank * HIDDEN_SIZE + (i3 * N2 + i2) * N1 + i1));
                }
            }
        }
    }
}

// merged (rank, near x middle x far) = near . tail with tail (rank, middle x far) = middle . far
template <class H>
static void merge_forward(Word *merged, Word *tail, const Word *cores) {
    static Word padded[H::MIDDLE_ROWS * H::FAR_WORDS];
    contract_outer(padded, H::FAR_WORDS, cores + H::MIDDLE_CORE, RANK_WORDS * LANES, 1, cores + H::FAR_CORE, H::FAR_WORDS,
                   H::MIDDLE_ROWS, LINEAR_RANK, H::FAR_WORDS, false);
    pack<H::MIDDLE_ROWS, H::FAR>(tail, padded);
    contract_outer(merged, H::TAIL_WORDS, cores, RANK_WORDS * LANES, 1, tail, H::TAIL_WORDS, H::NEAR_ROWS, LINEAR_RANK,
                   H::TAIL_WORDS, false);
}

// Gradients of the three cores from that of the merged half.
template <class H>
static void merge_backward(Word *d_cores, const Word *d_merged, const Word *tail, const Word *cores) {
    static Word d_tail[LINEAR_RANK * H::TAIL_WORDS], d_padded[H::MIDDLE_ROWS * H::FAR_WORDS];
    contract_inner(d_cores, RANK_WORDS, d_merged, H::TAIL_WORDS, tail, H::TAIL_WORDS, H::NEAR_ROWS, LINEAR_RANK,
                   H::TAIL_WORDS, false);
    contract_outer(d_tail, H::TAIL_WORDS, cores, 1, RANK_WORDS * LANES, d_merged, H::TAIL_WORDS, LINEAR_RANK, H::NEAR_ROWS,
                   H::TAIL_WORDS, false);
    unpack<H::MIDDLE_ROWS, H::FAR>(d_padded, d_tail);
    contract_inner(d_cores + H::MIDDLE_CORE, RANK_WORDS, d_padded, H::FAR_WORDS, cores + H::FAR_CORE, H::FAR_WORDS,
                   H::MIDDLE_ROWS, LINEAR_RANK, H::FAR_WORDS, false);
    contract_outer(d_cores + H::FAR_CORE, H::FAR_WORDS, cores + H::MIDDLE_CORE, 1, RANK_WORDS * LANES, d_padded,
                   H::FAR_WORDS, LINEAR_RANK, H::MIDDLE_ROWS, H::FAR_WORDS, false);
}

// y (tokens, HIDDEN_SIZE) from x (tokens, HIDDEN_SIZE)
static void tt_linear_forward(Word *y, const Word *x, int tokens, int linear) {
    const Word *layer = parameters + linear_offset(linear);
    const Meter meter(FP, unit_of(linear));
    static Word reversed[LINEAR_RANK * HIDDEN_WORDS];  // L^T with features in the order i3 i2 i1
    merge_forward<InHalf>(merged_in[linear], tail_in[linear], layer + IN_CORES);
    merge_forward<OutHalf>(reversed, tail_out[linear], layer + OUT_CORES);
    reverse_modes<OUT_MODE_1, OUT_MODE_2, OUT_MODE_3>(merged_out[linear], reversed, LINEAR_RANK);

    Word *z = bottleneck[linear];
    contract_inner(z, RANK_WORDS, x, HIDDEN_WORDS, merged_in[linear], HIDDEN_WORDS, tokens, LINEAR_RANK, HIDDEN_WORDS,
                   false);
    bias_forward(y, layer + BIAS, tokens, HIDDEN_WORDS);
    contract_outer(y, HIDDEN_WORDS, z, RANK_WORDS * LANES, 1, merged_out[linear], HIDDEN_WORDS, tokens, LINEAR_RANK,
                   HIDDEN_WORDS, true);
}

// Gradients of cores and bias, and d_x (tokens, HIDDEN_SIZE), from d_y (tokens, HIDDEN_SIZE); accumulate adds to d_x.
static void tt_linear_backward(Word *d_x, const Word *d_y, const Word *x, int tokens, int linear, bool accumulate) {
    const Word *layer = parameters + linear_offset(linear);
    Word *d_layer = gradients + linear_offset(linear);
    const Meter meter(BP, unit_of(linear));
    static Word d_z[SEQUENCE_LENGTH * RANK_WORDS];
    static Word d_merged[LINEAR_RANK * HIDDEN_WORDS], d_reversed[LINEAR_RANK * HIDDEN_WORDS];

    bias_backward(d_layer + BIAS, d_y, tokens, HIDDEN_WORDS);
    contract_inner(d_z, RANK_WORDS, d_y, HIDDEN_WORDS, merged_out[linear], HIDDEN_WORDS, tokens, LINEAR_RANK, HIDDEN_WORDS,
                   false);
    contract_outer(d_x, HIDDEN_WORDS, d_z, RANK_WORDS * LANES, 1, merged_in[linear], HIDDEN_WORDS, tokens, LINEAR_RANK,
                   HIDDEN_WORDS, accumulate);
    // d_L^T = z^T d_y and d_R = d_z^T x
    contract_outer(d_merged, HIDDEN_WORDS, bottleneck[linear], 1, RANK_WORDS * LANES, d_y, HIDDEN_WORDS, LINEAR_RANK,
                   tokens, HIDDEN_WORDS, false);
    reverse_modes<OUT_MODE_3, OUT_MODE_2, OUT_MODE_1>(d_reversed, d_merged, LINEAR_RANK);
    merge_backward<OutHalf>(d_layer + OUT_CORES, d_reversed, tail_out[linear], layer + OUT_CORES);
    contract_outer(d_merged, HIDDEN_WORDS, d_z, 1, RANK_WORDS * LANES, x, HIDDEN_WORDS, LINEAR_RANK, tokens, HIDDEN_WORDS,
                   false);
    merge_backward<InHalf>(d_layer + IN_CORES, d_merged, tail_in[linear], layer + IN_CORES);
}

#endif
