// The merging of a half of a tensor train, and its way back: what BTT does apart from the tokens. One function a product.
#ifndef BTTLAB_MERGE_H
#define BTTLAB_MERGE_H

#include "engine.h"
#include "half.h"
#include "turn.h"

// tail (rank, middle x far) = middle . far; padded: the same, each row of `far` filled to whole words
template <int ENGINE, class H>
static void merge_tail(Word *tail, Word *padded, const Word *cores) {
    expand<ENGINE>(padded, H::FAR_WORDS, nullptr, 0, cores + H::MIDDLE_CORE, RANK_WORDS * LANES, 1, cores + H::FAR_CORE,
                   H::FAR_WORDS, H::MIDDLE_ROWS, LINEAR_RANK, H::FAR_WORDS);
    pack<H::MIDDLE_ROWS, H::FAR>(tail, padded);
}

// merged (rank, near x middle x far) = near . tail
template <int ENGINE, class H>
static void merge_near(Word *merged, const Word *tail, const Word *cores) {
    expand<ENGINE>(merged, H::TAIL_WORDS, nullptr, 0, cores, RANK_WORDS * LANES, 1, tail, H::TAIL_WORDS, H::NEAR_ROWS,
                   LINEAR_RANK, H::TAIL_WORDS);
}

template <int ENGINE, class H>
static void merge_forward(Word *merged, Word *tail, const Word *cores) {
    static Word padded[H::MIDDLE_ROWS * H::FAR_WORDS];
    merge_tail<ENGINE, H>(tail, padded, cores);
    merge_near<ENGINE, H>(merged, tail, cores);
}

template <int ENGINE, class H>
static void near_gradient(Word *d_cores, const Word *d_merged, const Word *tail) {
    reduce<ENGINE>(d_cores, RANK_WORDS, nullptr, 0, d_merged, H::TAIL_WORDS, tail, H::TAIL_WORDS, H::NEAR_ROWS, LINEAR_RANK,
                   H::TAIL_WORDS);
}

template <int ENGINE, class H>
static void tail_gradient(Word *d_padded, Word *d_tail, const Word *d_merged, const Word *cores) {
    accumulate<ENGINE>(d_tail, H::TAIL_WORDS, cores, 1, RANK_WORDS * LANES, d_merged, H::TAIL_WORDS, LINEAR_RANK,
                       H::NEAR_ROWS, H::TAIL_WORDS);
    unpack<H::MIDDLE_ROWS, H::FAR>(d_padded, d_tail);
}

template <int ENGINE, class H>
static void middle_gradient(Word *d_cores, const Word *d_padded, const Word *cores) {
    reduce<ENGINE>(d_cores + H::MIDDLE_CORE, RANK_WORDS, nullptr, 0, d_padded, H::FAR_WORDS, cores + H::FAR_CORE,
                   H::FAR_WORDS, H::MIDDLE_ROWS, LINEAR_RANK, H::FAR_WORDS);
}

template <int ENGINE, class H>
static void far_gradient(Word *d_cores, const Word *d_padded, const Word *cores) {
    accumulate_few<ENGINE, LINEAR_RANK, H::FAR_WORDS>(d_cores + H::FAR_CORE, nullptr, cores + H::MIDDLE_CORE, 1,
                                                      RANK_WORDS * LANES, d_padded, H::MIDDLE_ROWS);
}

// Gradients of the three cores from that of the merged half.
template <int ENGINE, class H>
static void merge_backward(Word *d_cores, const Word *d_merged, const Word *tail, const Word *cores) {
    static Word d_tail[LINEAR_RANK * H::TAIL_WORDS], d_padded[H::MIDDLE_ROWS * H::FAR_WORDS];
    near_gradient<ENGINE, H>(d_cores, d_merged, tail);
    tail_gradient<ENGINE, H>(d_padded, d_tail, d_merged, cores);
    middle_gradient<ENGINE, H>(d_cores, d_padded, cores);
    far_gradient<ENGINE, H>(d_cores, d_padded, cores);
}

#endif
