// A TT linear layer without bias, contracted right to left: x with G6, then G5, and so on to G1. Every step handles all
// tokens, and leaves an intermediate for each of them.
//
//   A6 (tokens j1 j2 x r5)  = x  G6      sums over j3            A3 (tokens i3 x r2)     = A4 G3
//   A5 (tokens j1 x r4)     = A6 G5      over j2 and r5          A2 (tokens i3 i2 x r1)  = A3 G2
//   A4 (tokens x r3)        = A5 G4      over j1 and r4          y  (tokens i3 i2 x i1)  = A2 G1
//
// as bttlab.tensor.flow_cost names them. A rank lies along the lanes, filled to whole words; the rows are all that stands
// before the x. So y comes with its modes reversed and is turned, token by token. Tokens meet in the gradients of the cores
// alone: both engines take half of the tokens through all steps, and the gradients are added on their way out.
#ifndef BTTLAB_CONTRACT_RIGHT_TO_LEFT_H
#define BTTLAB_CONTRACT_RIGHT_TO_LEFT_H

#include "contraction.h"

namespace right_to_left {

enum ForwardStep { LOAD, TRANSPOSE, MAKE_A6, MAKE_A5, MAKE_A4, MAKE_A3, MAKE_A2, MAKE_Y, PACK_Y, TURN_Y, STORE };
enum BackwardStep {
    LOAD_DY,
    TURN_DY,
    MAKE_DG1,
    MAKE_DA2,
    MAKE_DG2,
    MAKE_DA3,
    MAKE_DG3,
    MAKE_DA4,
    MAKE_DG4,
    MAKE_DA5,
    MAKE_DG5,
    MAKE_DA6,
    MAKE_DG6,
    MAKE_DX,
    PACK_DX,
    STORE_GRADIENTS
};

// Rows of a token, and words of a row of the cores, along a half.
template <class H>
struct Walk {
    static constexpr int ROWS = H::NEAR * H::MIDDLE;  // before the far mode
    static constexpr int NEAR_WORDS = H::NEAR * RANK_WORDS, MIDDLE_WORDS = H::MIDDLE * RANK_WORDS;
    static_assert(NEAR_WORDS <= HIDDEN_WORDS && MIDDLE_WORDS <= HIDDEN_WORDS, "a row of a core is no longer than a token");
    static_assert(H::FAR_WORDS == 1 && H::FAR <= ENGINE_ROWS, "a far mode lies in a word, and on an engine's rows");
};
typedef Walk<OutHalf> OutWalk;
typedef Walk<InHalf> InWalk;

// An engine's tokens: what the forward pass keeps of them.
struct Share {
    Word a6[MOST_TOKENS * InWalk::ROWS * RANK_WORDS];
    Word a5[MOST_TOKENS * InHalf::NEAR * RANK_WORDS];
    Word a4[MOST_TOKENS * RANK_WORDS];
    Word a3[MOST_TOKENS * OutHalf::NEAR * RANK_WORDS];
    Word a2[MOST_TOKENS * OutWalk::ROWS * RANK_WORDS];
};
static Cores cores;
static Word out_far_transposed[OutHalf::FAR * RANK_WORDS], in_far_transposed[InHalf::FAR * RANK_WORDS];  // far x rank
static Word x[ENGINES][MOST_WORDS], d_x[ENGINES][MOST_WORDS];
static Share kept[ENGINES];
// y, d_y or d_x with a row of the far mode a word, and without gaps but with the modes of y in the order i3 i2 i1.
static Word padded[ENGINES][MOST_TOKENS * larger(OutWalk::ROWS, InWalk::ROWS)];
static Word reversed[ENGINES][MOST_WORDS];

// The gradients of what is kept, and an engine's part of those of the cores.
static Share d_kept[ENGINES];
static Cores d_cores[ENGINES];

// out (COLUMNS x ROWS) = in^T (ROWS x COLUMNS), rows filled with zeros to whole words
template <int ROWS, int COLUMNS>
static void transpose(Word *out, const Word *in) {
    constexpr int IN_WORDS = words_for(COLUMNS), OUT_WORDS = words_for(ROWS);
    float element[OUT_WORDS * LANES][IN_WORDS * LANES] = {};
#pragma HLS ARRAY_PARTITION variable=element complete dim=0
    loop(ROWS * IN_WORDS, 1, READ + WRITE + START);
Read_Pipeline:
    for (int i = 0; i < ROWS * IN_WORDS; i++) {
#pragma HLS PIPELINE II=1
        const Word word = in[i];
    Read_Unroll:
        for (int l = 0; l < LANES; l++) element[i / IN_WORDS][i % IN_WORDS * LANES + l] = word[l];
    }
    loop(COLUMNS * OUT_WORDS, 1, READ + WRITE + START);
Write_Pipeline:
    for (int i = 0; i < COLUMNS * OUT_WORDS; i++) {
#pragma HLS PIPELINE II=1
        Word word;
    Write_Unroll:
        for (int l = 0; l < LANES; l++) word[l] = element[i % OUT_WORDS * LANES + l][i / OUT_WORDS];
        out[i] = word;
    }
}

// A step of the input half. next (rows x rank) = a (rows x MODE rank) . core^T (rank x MODE rank)
template <int ENGINE, int WORDS>
static void leave_mode(Word *next, const Word *a, const Word *core, int rows) {
    reduce<ENGINE>(next, RANK_WORDS, nullptr, 0, a, WORDS, core, WORDS, rows, LINEAR_RANK, WORDS);
}

// A step of the output half. next (rows x MODE rank) = a (rows x rank) . core (rank x MODE rank)
template <int ENGINE, int WORDS>
static void enter_mode(Word *next, const Word *a, const Word *core, int rows) {
    expand<ENGINE>(next, WORDS, nullptr, 0, a, RANK_WORDS * LANES, 1, core, WORDS, rows, LINEAR_RANK, WORDS);
}

// The gradient of a core (rank x MODE rank) = thin^T (rank x rows) . wide (rows x MODE rank)
template <int ENGINE, int WORDS>
static void core_gradient(Word *d_core, const Word *thin, const Word *wide, int rows) {
    accumulate<ENGINE>(d_core, WORDS, thin, 1, RANK_WORDS * LANES, wide, WORDS, LINEAR_RANK, rows, WORDS);
}

// At the ends of the train, where rows of a far mode follow each other without gaps: the mode is the engine's rows.
// inner (rows x rank) = outer (rows x far) . far_transposed (far x rank)
template <int ENGINE, class H>
static void leave_far(Word *inner, const Word *outer, const Word *far_transposed, int tokens) {
    expand<ENGINE>(inner, RANK_WORDS, nullptr, 0, outer, H::FAR, 1, far_transposed, RANK_WORDS, tokens * Walk<H>::ROWS,
                   H::FAR, RANK_WORDS);
}

// outer (rows x far, a word a row) = inner (rows x rank) . far core (rank x far)
template <int ENGINE, class H>
static void enter_far(Word *outer, const Word *inner, const Word *core, int tokens) {
    expand<ENGINE>(outer, 1, nullptr, 0, inner, RANK_WORDS * LANES, 1, core, 1, tokens * Walk<H>::ROWS, LINEAR_RANK, 1);
}

// The gradient of a far core: first far x rank = outer^T (far x rows) . inner (rows x rank), then transposed.
template <int ENGINE, class H>
static void far_core_gradient(Word *d_half, const Word *outer, const Word *inner, int tokens) {
    static Word d_transposed[H::FAR * RANK_WORDS];
    accumulate_few<ENGINE, H::FAR, RANK_WORDS>(d_transposed, nullptr, outer, 1, H::FAR, inner, tokens * Walk<H>::ROWS);
    transpose<H::FAR, LINEAR_RANK>(d_half + H::FAR_CORE, d_transposed);
}

// Closes the gaps at the end of each row of a far mode.
template <class H>
static void pack_tokens(Word *packed, const Word *with_gaps, int tokens) {
Pack_Tokens:
    for (int t = 0; t < tokens; t++) {
        pack<Walk<H>::ROWS, H::FAR>(packed + t * HIDDEN_WORDS, with_gaps + t * Walk<H>::ROWS);
    }
}

// The modes of y or d_y from the order i3 i2 i1 to i1 i2 i3 (FROM_REVERSED), or back.
template <bool FROM_REVERSED>
static void turn_tokens(Word (*out)[MOST_WORDS], const Word (*in)[MOST_WORDS], const Tokens &tokens) {
    turn<FROM_REVERSED>(out[0], in[0], tokens.count[0]);
    if (tokens.count[1] > 0) turn<FROM_REVERSED>(out[1], in[1], tokens.count[1]);
}

// The gradients of both engines, added where there are two.
static void store_gradients(Word *memory, const Word *first, const Word *second, bool both, int words) {
    loop(words, 1, READ + ADD + WRITE + START);
Gradients_Pipeline:
    for (int i = 0; i < words; i++) {
#pragma HLS PIPELINE II=1
        memory[i] = both ? first[i] + second[i] : first[i];
    }
}

// The forward pass of an engine's tokens, but for the order of y's modes.
template <int ENGINE>
static void forward_share(int tokens) {
    Share &to = kept[ENGINE];
    const Word *in = cores.in, *out = cores.out;
    constexpr int OUT_MIDDLE = OutHalf::MIDDLE_CORE, IN_MIDDLE = InHalf::MIDDLE_CORE;
    {
        const Step step(MAKE_A6);
        leave_far<ENGINE, InHalf>(to.a6, x[ENGINE], in_far_transposed, tokens);
    }
    {
        const Step step(MAKE_A5);
        leave_mode<ENGINE, InWalk::MIDDLE_WORDS>(to.a5, to.a6, in + IN_MIDDLE, tokens * InHalf::NEAR);
    }
    {
        const Step step(MAKE_A4);
        leave_mode<ENGINE, InWalk::NEAR_WORDS>(to.a4, to.a5, in, tokens);
    }
    {
        const Step step(MAKE_A3);
        enter_mode<ENGINE, OutWalk::NEAR_WORDS>(to.a3, to.a4, out, tokens);
    }
    {
        const Step step(MAKE_A2);
        enter_mode<ENGINE, OutWalk::MIDDLE_WORDS>(to.a2, to.a3, out + OUT_MIDDLE, tokens * OutHalf::NEAR);
    }
    {
        const Step step(MAKE_Y);
        enter_far<ENGINE, OutHalf>(padded[ENGINE], to.a2, out + OutHalf::FAR_CORE, tokens);
    }
    {
        const Step step(PACK_Y);
        pack_tokens<OutHalf>(reversed[ENGINE], padded[ENGINE], tokens);
    }
}

static void forward(Word *results, const Word *operands, int all_tokens) {
    static Word y[ENGINES][MOST_WORDS];
    const Tokens tokens(all_tokens);
    {
        const Step step(LOAD);
        load_cores(cores, operands);
        load_tokens(x, operands + CORES_WORDS, tokens);
    }
    {
        const Step step(TRANSPOSE);
        FORK;
        transpose<LINEAR_RANK, InHalf::FAR>(in_far_transposed, cores.in + InHalf::FAR_CORE);
        BESIDE;
        transpose<LINEAR_RANK, OutHalf::FAR>(out_far_transposed, cores.out + OutHalf::FAR_CORE);
        JOIN;
    }
    {
        FORK;
        forward_share<0>(tokens.count[0]);
        BESIDE;
        if (tokens.count[1] > 0) forward_share<1>(tokens.count[1]);
        JOIN;
    }
    {
        const Step step(TURN_Y);
        turn_tokens<true>(y, reversed, tokens);
    }
    const Step step(STORE);
    store_tokens(results, y, tokens);
}

// Each step in reverse: its core's gradient, and that of what it read.
template <int ENGINE>
static void backward_share(int tokens) {
    const Share &from = kept[ENGINE];
    Share &d = d_kept[ENGINE];
    Cores &d_core = d_cores[ENGINE];
    const Word *in = cores.in, *out = cores.out, *d_y = reversed[ENGINE];
    constexpr int OUT_MIDDLE = OutHalf::MIDDLE_CORE, IN_MIDDLE = InHalf::MIDDLE_CORE;
    const int out_rows = tokens * OutHalf::NEAR, in_rows = tokens * InHalf::NEAR;
    {
        const Step step(MAKE_DG1);
        far_core_gradient<ENGINE, OutHalf>(d_core.out, d_y, from.a2, tokens);
    }
    {
        const Step step(MAKE_DA2);
        leave_far<ENGINE, OutHalf>(d.a2, d_y, out_far_transposed, tokens);
    }
    {
        const Step step(MAKE_DG2);
        core_gradient<ENGINE, OutWalk::MIDDLE_WORDS>(d_core.out + OUT_MIDDLE, from.a3, d.a2, out_rows);
    }
    {
        const Step step(MAKE_DA3);
        leave_mode<ENGINE, OutWalk::MIDDLE_WORDS>(d.a3, d.a2, out + OUT_MIDDLE, out_rows);
    }
    {
        const Step step(MAKE_DG3);
        core_gradient<ENGINE, OutWalk::NEAR_WORDS>(d_core.out, from.a4, d.a3, tokens);
    }
    {
        const Step step(MAKE_DA4);
        leave_mode<ENGINE, OutWalk::NEAR_WORDS>(d.a4, d.a3, out, tokens);
    }
    {
        const Step step(MAKE_DG4);
        core_gradient<ENGINE, InWalk::NEAR_WORDS>(d_core.in, d.a4, from.a5, tokens);
    }
    {
        const Step step(MAKE_DA5);
        enter_mode<ENGINE, InWalk::NEAR_WORDS>(d.a5, d.a4, in, tokens);
    }
    {
        const Step step(MAKE_DG5);
        core_gradient<ENGINE, InWalk::MIDDLE_WORDS>(d_core.in + IN_MIDDLE, d.a5, from.a6, in_rows);
    }
    {
        const Step step(MAKE_DA6);
        enter_mode<ENGINE, InWalk::MIDDLE_WORDS>(d.a6, d.a5, in + IN_MIDDLE, in_rows);
    }
    {
        const Step step(MAKE_DG6);
        far_core_gradient<ENGINE, InHalf>(d_core.in, x[ENGINE], d.a6, tokens);
    }
    {
        const Step step(MAKE_DX);
        enter_far<ENGINE, InHalf>(padded[ENGINE], d.a6, in + InHalf::FAR_CORE, tokens);
    }
    {
        const Step step(PACK_DX);
        pack_tokens<InHalf>(d_x[ENGINE], padded[ENGINE], tokens);
    }
}

static void backward(Word *results, const Word *operands, int all_tokens) {
    static Word d_y[ENGINES][MOST_WORDS];
    const Tokens tokens(all_tokens);
    {
        const Step step(LOAD_DY);
        load_tokens(d_y, operands, tokens);
    }
    {
        const Step step(TURN_DY);
        turn_tokens<false>(reversed, d_y, tokens);
    }
    {
        FORK;
        backward_share<0>(tokens.count[0]);
        BESIDE;
        if (tokens.count[1] > 0) backward_share<1>(tokens.count[1]);
        JOIN;
    }
    const Step step(STORE_GRADIENTS);
    const bool both = tokens.count[1] > 0;
    spend(HBM);
    store_gradients(results, d_cores[0].out, d_cores[1].out, both, OutHalf::WORDS);
    store_gradients(results + OutHalf::WORDS, d_cores[0].in, d_cores[1].in, both, InHalf::WORDS);
    store_tokens(results + CORES_WORDS, d_x, tokens);
}

}  // namespace right_to_left

#endif
