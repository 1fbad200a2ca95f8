// The record and the result of a sample in HBM, and the computation of its losses on chip.
#ifndef BTTLAB_PROCESSOR_SAMPLES_H
#define BTTLAB_PROCESSOR_SAMPLES_H

#include "state.h"

constexpr int SEQUENCE_VECTORS = parts(SEQUENCE, LANES);
// {tokens, intent, scalars}, token offsets, slot labels; rows of a table may follow.
constexpr int RECORD_VECTORS = 1 + (OFFSET_TABLES + 1) * SEQUENCE_VECTORS;
// {status, intent, losses, cycles, cycles of FLUSH if it follows}, slots.
constexpr int RESULT_VECTORS = 1 + SEQUENCE_VECTORS;
// Most samples of a call.
constexpr int MAX_SAMPLES = 1 << 16;

// Scalars of a record that the kernel itself reads; the program reads the others. SAME_UPDATE, unless 0: the sample belongs to the
// same update as the one before it, so the moments do not decay. ENDS_SUM, unless 0: FLUSH follows the sample, as it follows the
// last one of a call.
enum Scalar { RATE, STEP, ROOT, KEEP, SAME_UPDATE = 9, ENDS_SUM = 10 };

struct Result {
    int status, intent;
    float loss, intent_loss, slot_loss;
    int cycles;
};

// Vectors from one record to the next: behind each there is space for the rows of the longest sample's tokens.
static inline int record_distance() { return RECORD_VECTORS + program.sequence_length * program.token_vectors; }

static void read_sample(Sample &sample, const IntVector *record) {
    count_vectors(FROM_HBM, RECORD_VECTORS);
    const IntVector head = record[0];
    sample.tokens = head[0];
    sample.intent = head[1];
Read_Scalars:
    for (int s = 0; s < SCALARS; s++) {
#pragma HLS UNROLL
        sample.scalar[s] = float_of(head[2 + s]);
    }
Read_Offsets:
    for (int w = 0; w < OFFSET_TABLES * SEQUENCE_VECTORS; w++) {
        const IntVector vector = record[1 + w];
    Offset_Lanes:
        for (int l = 0; l < LANES; l++) {
#pragma HLS PIPELINE II=1
            sample.token_offset[w / SEQUENCE_VECTORS][w % SEQUENCE_VECTORS * LANES + l] = vector[l];
        }
    }
Read_Slots:
    for (int w = 0; w < SEQUENCE_VECTORS; w++) {
        const IntVector vector = record[1 + OFFSET_TABLES * SEQUENCE_VECTORS + w];
    Slot_Lanes:
        for (int l = 0; l < LANES; l++) {
#pragma HLS PIPELINE II=1
            sample.slot[w * LANES + l] = vector[l];
        }
    }
}

// A value from the host is checked before it is used in an address.
static int check_sample(const Sample &sample, int least) {
    if (sample.tokens < least || sample.tokens > program.sequence_length) return BAD_LENGTH;
    if (sample.intent < 0 || sample.intent >= program.intents) return BAD_INTENT;
    bool bad_token = false, bad_slot = false;
Check_Tokens:
    for (int t = 0; t < sample.tokens; t++) {
#pragma HLS PIPELINE II=1
    Check_Offsets:
        for (int s = 0; s < OFFSET_TABLES; s++) {
            bad_token |= sample.token_offset[s][t] < 0 || sample.token_offset[s][t] >= program.offset_limit[s];
        }
        bad_slot |= t > 0 && (sample.slot[t] < 0 || sample.slot[t] >= program.slots);
    }
    if (bad_token) return BAD_TOKEN;
    if (bad_slot) return BAD_SLOT;
    if (!is_finite(sample.scalar[RATE]) || sample.scalar[RATE] < 0.0f) return BAD_LEARNING_RATE;
    return DONE;
}

// ln x for normal x > 0; absolute error below 2e-7 for x <= 1000. Infinity and NaN stay what they are.
static inline float logarithm(float x) {
    // x = 2^n m with m in [sqrt(1/2), sqrt(2)): ln m = 2 artanh((m - 1) / (m + 1))
    const int n = (bits_of(x) - 0x3f3504f3) >> 23;
    const float m = float_of(bits_of(x) - n * (1 << 23));
    const float s = (m - 1.0f) / (m + 1.0f);
    const float square = s * s;
    float series = 2.0f / 9.0f;
    series = series * square + 2.0f / 7.0f;
    series = series * square + 2.0f / 5.0f;
    series = series * square + 2.0f / 3.0f;
    series = series * square + 2.0f;
    return is_finite(x) ? s * series + static_cast<float>(n) * 0.69314718f : x;
}

// Cross-entropy of the intent, and the mean of that of the words' slots: row t - 1 is that of token t.
static void read_losses(Result &result, int tokens) {
    const int words = tokens - 1;
    float slot_loss = 0.0f;
    result.intent = argument[LAST_ROW];
    result.intent_loss = logarithm(loss_sum[LAST_ROW]) - loss_margin[LAST_ROW];
Losses:
    for (int row = 0; row < words; row++) {
#pragma HLS PIPELINE II=8
        slot_loss += logarithm(loss_sum[row]) - loss_margin[row];
    }
    result.slot_loss = words > 0 ? slot_loss / static_cast<float>(words) : 0.0f;
    result.loss = result.intent_loss + result.slot_loss;
}

// Adds the cycles of a FLUSH, which no sample overlaps, to the result of the sample before it.
static void add_flush(IntVector *record, int cycles) {
    count_vectors(FROM_HBM, 1);
    count_vectors(TO_HBM, 1);
    IntVector head = record[0];
    head[6] = cycles;
    record[0] = head;
}

static void write_result(IntVector *record, const Result &result, int tokens) {
    count_vectors(TO_HBM, RESULT_VECTORS);
    IntVector head = {};
    head[0] = result.status;
    head[1] = result.intent;
    head[2] = bits_of(result.loss);
    head[3] = bits_of(result.intent_loss);
    head[4] = bits_of(result.slot_loss);
    head[5] = result.cycles;
    record[0] = head;
Write_Vectors:
    for (int w = 0; w < SEQUENCE_VECTORS; w++) {
        IntVector slots = {};
    Write_Lanes:
        for (int l = 0; l < LANES; l++) {
#pragma HLS PIPELINE II=1
            const int t = w * LANES + l;
            slots[l] = t > 0 && t < tokens ? argument[t - 1] : 0;
        }
        record[1 + w] = slots;
    }
}

#endif
