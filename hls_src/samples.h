// What comes in and goes out through HBM, in words of LANES 32-bit integers. The host has the same layout in
// lib/bttlab/u50/records.py.
#ifndef BTTLAB_SAMPLES_H
#define BTTLAB_SAMPLES_H

#include "functions.h"
#include "shape.h"

// A sample record: one word {real tokens, intent, learning rate and label smoothing as FP32 bits}, then token ids, then slot labels.
constexpr int RECORD_WORDS = 1 + 2 * SEQUENCE_WORDS;
// A result: one word {status, predicted intent, loss, intent loss, slot loss as FP32 bits}, then predicted slots.
constexpr int RESULT_WORDS = 1 + SEQUENCE_WORDS;
// A call takes at most this many samples.
constexpr int MAX_SAMPLES = 1 << 16;

// Status of a sample. The first that is not DONE ends the call; parameters stay as before that sample.
enum Status {
    NOT_REACHED,
    DONE,
    BAD_LENGTH,
    BAD_TOKEN,
    BAD_INTENT,
    BAD_SLOT,
    BAD_LEARNING_RATE,
    BAD_OPTIMIZER,
    LOSS_NOT_FINITE,
    STATE_NOT_FINITE,
    GRADIENT_NOT_FINITE,
    UPDATE_NOT_FINITE
};

struct Sample {
    int tokens;  // real ones, [CLS] first
    int intent;
    float learning_rate;
    float label_smoothing;  // of the targets, 0 to 1 (softmax.h)
    int token_ids[SEQUENCE_WORDS * LANES];
    int slots[SEQUENCE_WORDS * LANES];  // of each token; that of [CLS] is not used
};

struct Result {
    int status;
    int intent;
    float loss, intent_loss, slot_loss;
    int slots[SEQUENCE_WORDS * LANES];
};

static void read_sample(Sample &sample, const IntWord *record) {
    const IntWord head = record[0];
    sample.tokens = head[0];
    sample.intent = head[1];
    sample.learning_rate = float_of(head[2]);
    sample.label_smoothing = float_of(head[3]);
Read_Words:
    for (int w = 0; w < SEQUENCE_WORDS; w++) {
        const IntWord ids = record[1 + w], slots = record[1 + SEQUENCE_WORDS + w];
    Lanes_Unroll:
        for (int l = 0; l < LANES; l++) {
#pragma HLS UNROLL
            sample.token_ids[w * LANES + l] = ids[l];
            sample.slots[w * LANES + l] = slots[l];
        }
    }
}

static void write_result(IntWord *record, const Result &result) {
    IntWord head(0);
    head[0] = result.status;
    head[1] = result.intent;
    head[2] = bits_of(result.loss);
    head[3] = bits_of(result.intent_loss);
    head[4] = bits_of(result.slot_loss);
    record[0] = head;
Write_Words:
    for (int w = 0; w < SEQUENCE_WORDS; w++) {
        IntWord slots;
    Lanes_Unroll:
        for (int l = 0; l < LANES; l++) {
#pragma HLS UNROLL
            slots[l] = result.slots[w * LANES + l];
        }
        record[1 + w] = slots;
    }
}

// No id may reach an array before it is known to be inside.
static int check_sample(const Sample &sample) {
    if (sample.tokens < 1 || sample.tokens > SEQUENCE_LENGTH) return BAD_LENGTH;
    if (sample.intent < 0 || sample.intent >= INTENTS) return BAD_INTENT;
Check_Tokens:
    for (int t = 0; t < sample.tokens; t++) {
        if (sample.token_ids[t] < 0 || sample.token_ids[t] >= VOCABULARY_SIZE) return BAD_TOKEN;
        if (t > 0 && (sample.slots[t] < 0 || sample.slots[t] >= SLOTS)) return BAD_SLOT;
    }
    if (!is_finite(sample.learning_rate) || sample.learning_rate < 0.0f) return BAD_LEARNING_RATE;
    return DONE;
}

#endif
