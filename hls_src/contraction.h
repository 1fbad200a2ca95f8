// What the contraction kernels share: the layer, their tokens, and what comes in and goes out through HBM. The host has the
// same layout in lib/bttlab/u50/layer.py.
//
//   FORWARD   operands: cores, x     results: y                       x, y, dy, dx: (tokens, HIDDEN_SIZE)
//   BACKWARD  operands: dy           results: gradients of the cores, dx
//   record    one word {status}, two of the shape, then one word {begin, end, words multiplied} a step (steps.h)
//
// A pass's operands and what the forward pass keeps stay on chip, so BACKWARD follows a FORWARD of as many tokens.
#ifndef BTTLAB_CONTRACTION_H
#define BTTLAB_CONTRACTION_H

#include "copy.h"
#include "engine.h"
#include "half.h"
#include "steps.h"
#include "turn.h"

enum Command { DESCRIBE, FORWARD, BACKWARD };
enum Status { NOT_REACHED, DONE, BAD_TOKENS, NO_FORWARD };

constexpr int SHAPE_WORDS = 2;
constexpr int CORES_WORDS = OutHalf::WORDS + InHalf::WORDS;  // in HBM: G3, G2, G1, then G4, G5, G6

// Tokens meet in no product, so each engine takes half of them, with memories of its own.
constexpr int MOST_TOKENS = parts(SEQUENCE_LENGTH, ENGINES);  // of an engine
constexpr int MOST_WORDS = MOST_TOKENS * HIDDEN_WORDS;

struct Tokens {
    int count[ENGINES];
    explicit Tokens(int tokens) : count{parts(tokens, ENGINES), tokens - parts(tokens, ENGINES)} {}
};
static_assert(ENGINES == 2, "tokens are dealt out to two engines");

// The cores of a layer, or their gradients.
struct Cores {
    Word out[OutHalf::WORDS];
    Word in[InHalf::WORDS];
};

static void load_cores(Cores &cores, const Word *memory) {
    spend(HBM);
    copy(cores.out, memory, OutHalf::WORDS);
    copy(cores.in, memory + OutHalf::WORDS, InHalf::WORDS);
}

// A matrix (tokens, HIDDEN_SIZE), half of it for each engine.
static void load_tokens(Word (*matrix)[MOST_WORDS], const Word *memory, const Tokens &tokens) {
    spend(HBM);
    copy(matrix[0], memory, tokens.count[0] * HIDDEN_WORDS);
    copy(matrix[1], memory + tokens.count[0] * HIDDEN_WORDS, tokens.count[1] * HIDDEN_WORDS);
}

static void store_tokens(Word *memory, const Word (*matrix)[MOST_WORDS], const Tokens &tokens) {
    spend(HBM);
    copy(memory, matrix[0], tokens.count[0] * HIDDEN_WORDS);
    copy(memory + tokens.count[0] * HIDDEN_WORDS, matrix[1], tokens.count[1] * HIDDEN_WORDS);
}

static int check_call(int command, int tokens, int kept) {
    if (command == DESCRIBE) return DONE;
    if (tokens < 1 || tokens > SEQUENCE_LENGTH) return BAD_TOKENS;
    if (command == BACKWARD && tokens != kept) return NO_FORWARD;
    return command == FORWARD || command == BACKWARD ? DONE : NOT_REACHED;
}

static void write_record(IntWord *record, int status) {
    const int shape[SHAPE_WORDS * LANES] = {HIDDEN_SIZE, SEQUENCE_LENGTH, OUT_MODE_1, OUT_MODE_2, OUT_MODE_3,
                                            IN_MODE_1,   IN_MODE_2,       IN_MODE_3,  LINEAR_RANK};
    IntWord word(0);
    word[0] = status;
    record[0] = word;
Shape_Words:
    for (int w = 0; w < SHAPE_WORDS; w++) {
        for (int l = 0; l < LANES; l++) word[l] = shape[w * LANES + l];
        record[1 + w] = word;
    }
Steps_Words:
    for (int step = 0; step < MOST_STEPS; step++) {
        const Note note = note_of(step);
        word = IntWord(0);
        word[0] = note.begin, word[1] = note.end, word[2] = note.words;
        record[1 + SHAPE_WORDS + step] = word;
    }
}

#endif
