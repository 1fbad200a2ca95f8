// A tensor train of six cores, as its two halves: how their cores lie in words.
#ifndef BTTLAB_HALF_H
#define BTTLAB_HALF_H

#include "shape.h"

// One half of a tensor train: NEAR is the mode next to the middle rank, FAR the one at the end. The input half holds G4,
// G5, G6 as they are; the output half holds G3, G2, G1, each with its ranks swapped, so that both halves are merged by the
// same code. Rows of words, a rank or the far mode along the lanes:
//   near   (rank, near mode) x rank
//   middle (rank, middle mode) x rank
//   far    rank x far mode
template <int NEAR_, int MIDDLE_, int FAR_>
struct Half {
    static constexpr int NEAR = NEAR_, MIDDLE = MIDDLE_, FAR = FAR_;
    static constexpr int NEAR_ROWS = LINEAR_RANK * NEAR;
    static constexpr int MIDDLE_ROWS = LINEAR_RANK * MIDDLE;
    static constexpr int FAR_WORDS = words_for(FAR);
    static constexpr int TAIL_WORDS = MIDDLE * FAR / LANES;  // middle and far merged
    static constexpr int MIDDLE_CORE = NEAR_ROWS * RANK_WORDS;
    static constexpr int FAR_CORE = MIDDLE_CORE + MIDDLE_ROWS * RANK_WORDS;
    static constexpr int WORDS = FAR_CORE + LINEAR_RANK * FAR_WORDS;
};
typedef Half<OUT_MODE_3, OUT_MODE_2, OUT_MODE_1> OutHalf;
typedef Half<IN_MODE_1, IN_MODE_2, IN_MODE_3> InHalf;

#endif
