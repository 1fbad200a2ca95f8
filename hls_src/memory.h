// Where everything lives on chip. Every array keeps its contents between kernel calls: parameters, gradients and optimizer
// state never leave the card while it trains.
#ifndef BTTLAB_MEMORY_H
#define BTTLAB_MEMORY_H

#include "cycles.h"
#include "half.h"

// TTM embedding, one slice a row index: core 1 (row, column 1) x rank, core 2 (row, rank) x (column 2, rank) with each
// rank filled to whole words, core 3 (row, column 3) x rank.
constexpr int SLICE_1_WORDS = COLUMN_MODE_1 * EMBEDDING_RANK_WORDS;
constexpr int SLICE_2_ROW_WORDS = COLUMN_MODE_2 * EMBEDDING_RANK_WORDS;
constexpr int SLICE_2_WORDS = EMBEDDING_RANK * SLICE_2_ROW_WORDS;
constexpr int SLICE_3_WORDS = COLUMN_MODE_3 * EMBEDDING_RANK_WORDS;

constexpr int NORM_SCALE = 0;  // within a LayerNorm
constexpr int NORM_SHIFT = HIDDEN_WORDS;
constexpr int NORM_WORDS = 2 * HIDDEN_WORDS;

// Within the rest: the heads, each the rows of its weight and then its bias; position embedding, LayerNorms, biases of the
// linear layers.
constexpr int INTENT_HEAD = 0;
constexpr int SLOT_HEAD = INTENT_HEAD + INTENTS * HIDDEN_WORDS + INTENT_WORDS;
constexpr int POSITION = SLOT_HEAD + SLOTS * HIDDEN_WORDS + SLOT_WORDS;
constexpr int EMBEDDING_NORM = POSITION + SEQUENCE_LENGTH * HIDDEN_WORDS;
constexpr int ENCODER_NORMS = EMBEDDING_NORM + NORM_WORDS;
constexpr int BIASES = ENCODER_NORMS + 2 * ENCODERS * NORM_WORDS;
constexpr int REST_WORDS = BIASES + LINEARS * HIDDEN_WORDS;

static inline int attention_norm(int encoder) { return ENCODER_NORMS + 2 * encoder * NORM_WORDS; }
static inline int feed_forward_norm(int encoder) { return attention_norm(encoder) + NORM_WORDS; }
static inline int bias_of(int linear) { return BIASES + linear * HIDDEN_WORDS; }

constexpr int OUT_CORES_WORDS = LINEARS * OutHalf::WORDS;
constexpr int IN_CORES_WORDS = LINEARS * InHalf::WORDS;
constexpr int WORD_1_WORDS = ROW_MODE_1 * SLICE_1_WORDS;
constexpr int WORD_2_WORDS = ROW_MODE_2 * SLICE_2_WORDS;
constexpr int WORD_3_WORDS = ROW_MODE_3 * SLICE_3_WORDS;

// One value for each parameter. Memories of their own, so that both ends of a train, the cores of the embedding and the
// biases are reached in one cycle. In HBM they follow each other in this order.
struct Tensors {
    Word out_cores[OUT_CORES_WORDS];
    Word in_cores[IN_CORES_WORDS];
    Word word_1[WORD_1_WORDS];
    Word word_2[WORD_2_WORDS];
    Word word_3[WORD_3_WORDS];
    Word rest[REST_WORDS];
};
constexpr int PARAMETER_WORDS = sizeof(Tensors) / sizeof(Word);

// The same of what only the update reads, in a memory for each of its units: fewer memories leave less of a block unused.
struct Moments {
    static constexpr int OUT_CORES = 0, IN_CORES = OUT_CORES_WORDS, WORD_2 = IN_CORES + IN_CORES_WORDS;
    static constexpr int WORD_1 = 0, WORD_3 = WORD_1_WORDS, REST = WORD_3 + WORD_3_WORDS;
    Word cores[WORD_2 + WORD_2_WORDS];
    Word rest[REST + REST_WORDS];
};

// Linear layers are numbered: encoder by encoder in the order of cycles.h, then the intent and the slot pooler.
constexpr int INTENT_POOLER = LINEARS_PER_ENCODER * ENCODERS;
constexpr int SLOT_POOLER = INTENT_POOLER + 1;

static inline int unit_of(int linear) { return linear >= INTENT_POOLER ? POOLER : linear % LINEARS_PER_ENCODER; }

// Merged halves of the layers, in turn. While an encoder is in its backward pass, those of the one before are written.
constexpr int MERGED_SLOTS = smaller(LINEARS, MERGED_LAYERS);
static_assert(MERGED_LAYERS >= 2 * LINEARS_PER_ENCODER, "two encoders' merged halves are in use at once");
static inline int slot_of(int linear) { return linear % MERGED_SLOTS; }

constexpr int TOKENS_WORDS = SEQUENCE_LENGTH * HIDDEN_WORDS;  // a (tokens, HIDDEN_SIZE) matrix

// Parameters and what training keeps of them.
static Tensors parameters;
static Tensors gradients;
static Moments first_moment;   // momentum's velocity, AdamW's m
static Moments second_moment;  // AdamW's v
static int step_count;         // updates so far

// What the forward pass keeps for the backward pass. Of the last linear layers the merged halves and their tails, layer l
// in slot l % MERGED_SLOTS; of every one z = x R^T.
static Word merged_out[MERGED_SLOTS][LINEAR_RANK * HIDDEN_WORDS];  // L^T: rank x features
static Word merged_in[MERGED_SLOTS][LINEAR_RANK * HIDDEN_WORDS];   // R: rank x features
static Word tail_out[MERGED_SLOTS][LINEAR_RANK * OutHalf::TAIL_WORDS];
static Word tail_in[MERGED_SLOTS][LINEAR_RANK * InHalf::TAIL_WORDS];
static Word bottleneck[LINEARS][SEQUENCE_LENGTH * RANK_WORDS];

// Of the embedding: each token's first two cores merged, (column 1, column 2) x rank. Two banks: one token's is read while
// the next one's is made.
static Word embedding_tail[2][(SEQUENCE_LENGTH + 1) / 2][COLUMN_MODE_1 * SLICE_2_ROW_WORDS];
static Word embedding_normalized[TOKENS_WORDS];
static float embedding_inverse_std[SEQUENCE_LENGTH];

// Per encoder. Four matrices a memory, where no loop asks for more than two of them: together they fill the depth of
// UltraRAM, which each alone would leave a part of. *_NORMALIZED and *_inverse_std: what LayerNorm keeps of each token, (x
// - mean) / std and 1 / std.
enum AttentionKept { QUERIES, KEYS, VALUES, CONTEXT };
enum FeedForwardKept { ATTENTION_NORMALIZED, ACTIVATED, SLOPE, FEED_FORWARD_NORMALIZED };
static Word attention_kept[4][ENCODERS][TOKENS_WORDS];
static Word feed_forward_kept[4][ENCODERS][TOKENS_WORDS];
static Word attention[ENCODERS][HEADS * SEQUENCE_LENGTH * SEQUENCE_WORDS];  // probabilities: head, query token, key token
static float attention_inverse_std[ENCODERS][SEQUENCE_LENGTH];
static float feed_forward_inverse_std[ENCODERS][SEQUENCE_LENGTH];

// Of the encoder in work: what goes into it, then what comes out; and what comes out of its first LayerNorm. The backward
// pass makes both anew from *_NORMALIZED.
static Word hidden[TOKENS_WORDS];
static Word attended[TOKENS_WORDS];
static Word inner[TOKENS_WORDS];  // on the way to a LayerNorm

// Of the heads.
static Word pooled_intent[HIDDEN_WORDS];
static Word pooled_slots[TOKENS_WORDS];
static Word intent_logits[INTENT_WORDS];
static Word slot_logits[SEQUENCE_LENGTH * SLOT_WORDS];

#endif
