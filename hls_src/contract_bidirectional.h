// A TT linear layer without bias, contracted from both ends, as tt_linear.h does it within the transformer: G1..G3 merge
// into L (features x rank), G4..G6 into R (rank x features), apart from the tokens; then z = x R^T and y = z L^T.
//
// Steps have the names of bttlab.tensor.flow_cost: L2 = G1 G2, L = L3 = L2 G3, R5 = G5 G6, R = R4 = G4 R5. The first
// engine merges R, the second L; both take half of the tokens in z and y.
#ifndef BTTLAB_CONTRACT_BIDIRECTIONAL_H
#define BTTLAB_CONTRACT_BIDIRECTIONAL_H

#include "contraction.h"
#include "merge.h"

namespace bidirectional {

enum ForwardStep { LOAD, MAKE_L2, MAKE_L3, TURN_L3, MAKE_R5, MAKE_R4, MAKE_Z, MAKE_Y, STORE };
enum BackwardStep {
    LOAD_DY,
    MAKE_DZ,
    MAKE_DL3,
    MAKE_DR4,
    MAKE_DX,
    TURN_DL3,
    MAKE_DG3,
    MAKE_DL2,
    MAKE_DG2,
    MAKE_DG1,
    MAKE_DG4,
    MAKE_DR5,
    MAKE_DG5,
    MAKE_DG6,
    STORE_GRADIENTS
};

// What the forward pass keeps: its operands, the merged halves, their tails, and z.
static Cores cores;
static Word x[ENGINES][MOST_WORDS];
static Word tail_out[LINEAR_RANK * OutHalf::TAIL_WORDS];    // L2
static Word tail_in[LINEAR_RANK * InHalf::TAIL_WORDS];      // R5
static Word merged_out[LINEAR_RANK * HIDDEN_WORDS];         // L^T: rank x features
static Word merged_in[LINEAR_RANK * HIDDEN_WORDS];          // R: rank x features
static Word z[ENGINES][MOST_TOKENS * RANK_WORDS];           // tokens x rank

// L^T, or its gradient, with features in the order i3 i2 i1, as the half is merged.
static Word reversed[LINEAR_RANK * HIDDEN_WORDS];
// A half's tail, or its gradient, with each row of its far mode filled to whole words.
static Word padded_out[OutHalf::MIDDLE_ROWS * OutHalf::FAR_WORDS];
static Word padded_in[InHalf::MIDDLE_ROWS * InHalf::FAR_WORDS];

static void merge_out() {
    {
        const Step step(MAKE_L2);
        merge_tail<1, OutHalf>(tail_out, padded_out, cores.out);
    }
    {
        const Step step(MAKE_L3);
        merge_near<1, OutHalf>(reversed, tail_out, cores.out);
    }
    {
        const Step step(TURN_L3);
        turn<true>(merged_out, reversed, LINEAR_RANK);
    }
}

static void merge_in() {
    {
        const Step step(MAKE_R5);
        merge_tail<0, InHalf>(tail_in, padded_in, cores.in);
    }
    {
        const Step step(MAKE_R4);
        merge_near<0, InHalf>(merged_in, tail_in, cores.in);
    }
}

// z (tokens x rank) = x R^T
template <int ENGINE>
static void contract_x(int tokens) {
    if (tokens == 0) return;
    reduce<ENGINE>(z[ENGINE], RANK_WORDS, nullptr, 0, x[ENGINE], HIDDEN_WORDS, merged_in, HIDDEN_WORDS, tokens, LINEAR_RANK,
                   HIDDEN_WORDS);
}

// y (tokens x features) = z L^T
template <int ENGINE>
static void contract_z(Word *y, int tokens) {
    if (tokens == 0) return;
    expand<ENGINE>(y, HIDDEN_WORDS, nullptr, 0, z[ENGINE], RANK_WORDS * LANES, 1, merged_out, HIDDEN_WORDS, tokens,
                   LINEAR_RANK, HIDDEN_WORDS);
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
        FORK;
        merge_out();
        BESIDE;
        merge_in();
        JOIN;
    }
    {
        const Step step(MAKE_Z);
        FORK;
        contract_x<0>(tokens.count[0]);
        BESIDE;
        contract_x<1>(tokens.count[1]);
        JOIN;
    }
    {
        const Step step(MAKE_Y);
        FORK;
        contract_z<0>(y[0], tokens.count[0]);
        BESIDE;
        contract_z<1>(y[1], tokens.count[1]);
        JOIN;
    }
    const Step step(STORE);
    store_tokens(results, y, tokens);
}

// d_z (tokens x rank) = d_y L
template <int ENGINE>
static void contract_d_y(Word *d_z, const Word *d_y, int tokens) {
    if (tokens == 0) return;
    reduce<ENGINE>(d_z, RANK_WORDS, nullptr, 0, d_y, HIDDEN_WORDS, merged_out, HIDDEN_WORDS, tokens, LINEAR_RANK,
                   HIDDEN_WORDS);
}

// d_x (tokens x features) = d_z R
template <int ENGINE>
static void contract_d_z(Word *d_x, const Word *d_z, int tokens) {
    if (tokens == 0) return;
    expand<ENGINE>(d_x, HIDDEN_WORDS, nullptr, 0, d_z, RANK_WORDS * LANES, 1, merged_in, HIDDEN_WORDS, tokens, LINEAR_RANK,
                   HIDDEN_WORDS);
}

// d_merged (rank x features) = thin^T wide, summed over the tokens of both engines, in one of them.
template <int ENGINE>
static void merged_gradient(Word *d_merged, const Word (*thin)[MOST_TOKENS * RANK_WORDS], const Word (*wide)[MOST_WORDS],
                            const Tokens &tokens) {
    accumulate_few<ENGINE, LINEAR_RANK, HIDDEN_WORDS>(d_merged, nullptr, thin[0], 1, RANK_WORDS * LANES, wide[0],
                                                      tokens.count[0]);
    if (tokens.count[1] == 0) return;
    accumulate_few<ENGINE, LINEAR_RANK, HIDDEN_WORDS>(d_merged, d_merged, thin[1], 1, RANK_WORDS * LANES, wide[1],
                                                      tokens.count[1]);
}

static void unmerge_out(Word *d_cores) {
    static Word d_tail[LINEAR_RANK * OutHalf::TAIL_WORDS];
    {
        const Step step(MAKE_DG3);
        near_gradient<1, OutHalf>(d_cores, reversed, tail_out);
    }
    {
        const Step step(MAKE_DL2);
        tail_gradient<1, OutHalf>(padded_out, d_tail, reversed, cores.out);
    }
    {
        const Step step(MAKE_DG2);
        middle_gradient<1, OutHalf>(d_cores, padded_out, cores.out);
    }
    {
        const Step step(MAKE_DG1);
        far_gradient<1, OutHalf>(d_cores, padded_out, cores.out);
    }
}

static void unmerge_in(Word *d_cores, const Word *d_merged_in) {
    static Word d_tail[LINEAR_RANK * InHalf::TAIL_WORDS];
    {
        const Step step(MAKE_DG4);
        near_gradient<0, InHalf>(d_cores, d_merged_in, tail_in);
    }
    {
        const Step step(MAKE_DR5);
        tail_gradient<0, InHalf>(padded_in, d_tail, d_merged_in, cores.in);
    }
    {
        const Step step(MAKE_DG5);
        middle_gradient<0, InHalf>(d_cores, padded_in, cores.in);
    }
    {
        const Step step(MAKE_DG6);
        far_gradient<0, InHalf>(d_cores, padded_in, cores.in);
    }
}

static void backward(Word *results, const Word *operands, int all_tokens) {
    static Cores d_cores;
    static Word d_y[ENGINES][MOST_WORDS], d_x[ENGINES][MOST_WORDS], d_z[ENGINES][MOST_TOKENS * RANK_WORDS];
    static Word d_merged_out[LINEAR_RANK * HIDDEN_WORDS], d_merged_in[LINEAR_RANK * HIDDEN_WORDS];
    const Tokens tokens(all_tokens);
    {
        const Step step(LOAD_DY);
        load_tokens(d_y, operands, tokens);
    }
    {
        const Step step(MAKE_DZ);
        FORK;
        contract_d_y<0>(d_z[0], d_y[0], tokens.count[0]);
        BESIDE;
        contract_d_y<1>(d_z[1], d_y[1], tokens.count[1]);
        JOIN;
    }
    {
        FORK;
        {
            const Step step(MAKE_DR4);
            merged_gradient<0>(d_merged_in, d_z, x, tokens);
        }
        BESIDE;
        {
            const Step step(MAKE_DL3);
            merged_gradient<1>(d_merged_out, z, d_y, tokens);
        }
        JOIN;
    }
    {
        FORK;
        {
            const Step step(MAKE_DX);
            FORK;
            contract_d_z<0>(d_x[0], d_z[0], tokens.count[0]);
            BESIDE;
            contract_d_z<1>(d_x[1], d_z[1], tokens.count[1]);
            JOIN;
        }
        BESIDE;
        {
            const Step step(TURN_DL3);
            turn<false>(reversed, d_merged_out, LINEAR_RANK);
        }
        JOIN;
    }
    {
        FORK;
        unmerge_out(d_cores.out);
        BESIDE;
        unmerge_in(d_cores.in, d_merged_in);
        JOIN;
    }
    const Step step(STORE_GRADIENTS);
    spend(HBM);
    copy(results, d_cores.out, OutHalf::WORDS);
    copy(results + OutHalf::WORDS, d_cores.in, InHalf::WORDS);
    store_tokens(results + CORES_WORDS, d_x, tokens);
}

}  // namespace bidirectional

#endif
