// The model that this overlay trains: the numbers come from bttlab.model.ModelConfig as -D flags
// (`python -m bttlab.u50.build --flags train_enc2` prints them).
#ifndef BTTLAB_SHAPE_H
#define BTTLAB_SHAPE_H

#include "word.h"

#if !defined(ENCODERS) || !defined(SEQUENCE_LENGTH) || !defined(HIDDEN_SIZE) || !defined(HEADS) || \
    !defined(VOCABULARY_SIZE) || !defined(INTENTS) || !defined(SLOTS) || !defined(LINEAR_RANK) || !defined(EMBEDDING_RANK)
#error "the model's shape comes as -D flags: python -m bttlab.u50.build --flags train_enc2"
#endif

constexpr int larger(int a, int b) { return a > b ? a : b; }
constexpr int smaller(int a, int b) { return a < b ? a : b; }
constexpr int parts(int whole, int part) { return (whole + part - 1) / part; }

constexpr int HIDDEN_WORDS = HIDDEN_SIZE / LANES;
constexpr int HEAD_SIZE = HIDDEN_SIZE / HEADS;
constexpr int HEAD_WORDS = HEAD_SIZE / LANES;
constexpr int SEQUENCE_WORDS = words_for(SEQUENCE_LENGTH);
constexpr int INTENT_WORDS = words_for(INTENTS);
constexpr int SLOT_WORDS = words_for(SLOTS);
constexpr int RANK_WORDS = words_for(LINEAR_RANK);
constexpr int EMBEDDING_RANK_WORDS = words_for(EMBEDDING_RANK);

constexpr int LINEARS_PER_ENCODER = 6;  // query, key, value, output, first, second
constexpr int LINEARS = LINEARS_PER_ENCODER * ENCODERS + 2;  // and the two poolers

static_assert(OUT_MODE_1 * OUT_MODE_2 * OUT_MODE_3 == HIDDEN_SIZE, "output modes must multiply to HIDDEN_SIZE");
static_assert(IN_MODE_1 * IN_MODE_2 * IN_MODE_3 == HIDDEN_SIZE, "input modes must multiply to HIDDEN_SIZE");
static_assert(ROW_MODE_1 * ROW_MODE_2 * ROW_MODE_3 == VOCABULARY_SIZE, "row modes must multiply to VOCABULARY_SIZE");
static_assert(COLUMN_MODE_1 * COLUMN_MODE_2 * COLUMN_MODE_3 == HIDDEN_SIZE, "column modes must multiply to HIDDEN_SIZE");
static_assert(HIDDEN_SIZE % (HEADS * LANES) == 0, "a head must fill whole words");
static_assert((IN_MODE_2 * IN_MODE_3) % LANES == 0 && (OUT_MODE_1 * OUT_MODE_2) % LANES == 0,
              "the two modes at each end of a train must fill whole words");
static_assert(COLUMN_MODE_1 * COLUMN_MODE_2 % LANES == 0, "the first two column modes must fill whole words");

// The longest contraction with a scalar operand (engine.h stages that many).
constexpr int MAX_DEPTH = larger(
    larger(larger(SEQUENCE_LENGTH, EMBEDDING_RANK), larger(INTENTS, SLOTS)),
    larger(COLUMN_MODE_1 * COLUMN_MODE_2,
           LINEAR_RANK * larger(larger(IN_MODE_1, IN_MODE_2), larger(OUT_MODE_2, OUT_MODE_3))));

#endif
