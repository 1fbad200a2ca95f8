// The kernel: the sequencer above the layers, and its ports. A call does one of six commands:
//
//   DESCRIBE  writes the shape it was built for to results
//   LOAD      reads optimizer state and parameters from HBM into the chip
//   STORE     writes them back
//   TRAIN     for each sample: forward (FP), backward (BP), update (PU); one result a sample
//   PROFILE   writes the cycles per stage and unit since the last PROFILE to results (cycles.h; zeros on a card)
//   PREDICT   for each sample: forward only, the parameters stay; loss against the labels that came along
//
// Between calls everything stays where it is on chip.
#include "embedding.h"
#include "encoder.h"
#include "heads.h"
#include "samples.h"
#include "update.h"

enum Command { DESCRIBE, LOAD, STORE, TRAIN, PREDICT, PROFILE };

// Forward pass: embedding, encoders, heads. Leaves the logits in intent_logits and slot_logits.
static void forward(const Sample &sample) {
    const int tokens = sample.tokens, words = tokens - 1;
    embedding_forward(hidden[0], sample.token_ids, tokens);
Encoders_Forward:
    for (int e = 0; e < ENCODERS; e++) encoder_forward(e, tokens);
    const Word *last = hidden[ENCODERS];
    head_forward(intent_logits, pooled_intent, last, 1, INTENT_POOLER, parameters + INTENT_HEAD, INTENTS);
    head_forward(slot_logits, pooled_slots, last + HIDDEN_WORDS, words, SLOT_POOLER, parameters + SLOT_HEAD, SLOTS);
}

static void predict(Result &result, int tokens) {
    const Meter meter(FP, LOSS);
    result.intent = row_argument_maximum(intent_logits, INTENTS);
    result.slots[0] = 0;
Predict_Slots:
    for (int t = 1; t < SEQUENCE_WORDS * LANES; t++) {
        result.slots[t] = t < tokens ? row_argument_maximum(slot_logits + (t - 1) * SLOT_WORDS, SLOTS) : 0;
    }
}

// Cross-entropy of the intent plus the mean over the words of that of the slots; the logits become their gradients.
static void loss_forward(Result &result, const Sample &sample) {
    const Meter meter(FP, LOSS);
    const int words = sample.tokens - 1;
    float slot_loss = 0.0f;
    result.intent_loss = cross_entropy(intent_logits, INTENTS, sample.intent, 1.0f);
Slot_Loss:
    for (int w = 0; w < words; w++) {
        slot_loss += cross_entropy(slot_logits + w * SLOT_WORDS, SLOTS, sample.slots[w + 1], 1.0f / words);
    }
    result.slot_loss = words > 0 ? slot_loss / words : 0.0f;
    result.loss = result.intent_loss + result.slot_loss;
}

// Backward pass: every gradient of this sample.
static void backward(const Sample &sample) {
    const int tokens = sample.tokens, words = tokens - 1;
    static Word d_hidden[TOKENS_WORDS];
    const Word *last = hidden[ENCODERS];
    head_backward(d_hidden, intent_logits, pooled_intent, last, 1, INTENT_POOLER, parameters + INTENT_HEAD,
                  gradients + INTENT_HEAD, INTENTS);
    head_backward(d_hidden + HIDDEN_WORDS, slot_logits, pooled_slots, last + HIDDEN_WORDS, words, SLOT_POOLER,
                  parameters + SLOT_HEAD, gradients + SLOT_HEAD, SLOTS);
Encoders_Backward:
    for (int e = ENCODERS - 1; e >= 0; e--) encoder_backward(d_hidden, e, tokens);
    embedding_backward(d_hidden, sample.token_ids, tokens);
}

// One step on one sample. Nothing is updated unless loss and gradients are finite.
static void run_sample(Result &result, const Sample &sample, Optimizer &optimizer, bool train) {
    result.status = check_sample(sample);
    if (result.status != DONE) return;
    forward(sample);
    predict(result, sample.tokens);
    loss_forward(result, sample);
    if (!train) return;
    if (!is_finite(result.loss)) {
        result.status = LOSS_NOT_FINITE;
        return;
    }
    backward(sample);
    if (!gradients_are_finite()) {
        result.status = GRADIENT_NOT_FINITE;
        return;
    }
    optimizer.learning_rate = sample.learning_rate;
    update(optimizer);
}

static void run_samples(IntWord *results, const IntWord *sample_records, int samples, Optimizer &optimizer, bool train) {
Samples:
    for (int s = 0; s < samples; s++) {
        Sample sample;
        Result result = {};
        spend(2 * HBM + RECORD_WORDS + RESULT_WORDS + 2 * START);
        read_sample(sample, sample_records + s * RECORD_WORDS);
        run_sample(result, sample, optimizer, train);
        write_result(results + s * RESULT_WORDS, result);
        if (result.status != DONE) return;
    }
}

// In HBM: one word {updates so far, as an integer}, then parameters, first and second moment.
static void load(const Word *memory) {
    spend(4 * HBM);
    step_count = bits_of(memory[0][0]);
    copy(parameters, memory + 1, PARAMETER_WORDS);
    copy(first_moment, memory + 1 + PARAMETER_WORDS, PARAMETER_WORDS);
    copy(second_moment, memory + 1 + 2 * PARAMETER_WORDS, PARAMETER_WORDS);
}

static void store(Word *memory) {
    spend(4 * HBM);
    Word state(0.0f);
    state[0] = float_of(step_count);
    memory[0] = state;
    copy(memory + 1, parameters, PARAMETER_WORDS);
    copy(memory + 1 + PARAMETER_WORDS, first_moment, PARAMETER_WORDS);
    copy(memory + 1 + 2 * PARAMETER_WORDS, second_moment, PARAMETER_WORDS);
}

static void describe(IntWord *results) {
    const int shape[2 * LANES] = {
        ENCODERS,       SEQUENCE_LENGTH, HIDDEN_SIZE, HEADS,       VOCABULARY_SIZE, INTENTS,       SLOTS,
        OUT_MODE_1,     OUT_MODE_2,      OUT_MODE_3,  IN_MODE_1,   IN_MODE_2,       IN_MODE_3,     LINEAR_RANK,
        ROW_MODE_1,     ROW_MODE_2,      ROW_MODE_3,  COLUMN_MODE_1, COLUMN_MODE_2, COLUMN_MODE_3, EMBEDDING_RANK,
        PARAMETER_WORDS};
Describe_Words:
    for (int w = 0; w < 2; w++) {
        IntWord word;
        for (int l = 0; l < LANES; l++) word[l] = shape[w * LANES + l];
        results[w] = word;
    }
}

static void profile(IntWord *results) {
Profile_Words:
    for (int w = 0; w < parts(PROFILE_COUNTERS, LANES); w++) {
        IntWord word;
        for (int l = 0; l < LANES; l++) word[l] = take_counter(w * LANES + l);
        results[w] = word;
    }
}

extern "C" __attribute__((visibility("default"))) void train_transformer(int command, int samples, int optimizer_name,
                                                                          float beta1, float beta2, float epsilon,
                                                                          float weight_decay,
                                                                          const IntWord *sample_records, IntWord *results,
                                                                          Word *memory) {
#pragma HLS INTERFACE s_axilite port=command
#pragma HLS INTERFACE s_axilite port=samples
#pragma HLS INTERFACE s_axilite port=optimizer_name
#pragma HLS INTERFACE s_axilite port=beta1
#pragma HLS INTERFACE s_axilite port=beta2
#pragma HLS INTERFACE s_axilite port=epsilon
#pragma HLS INTERFACE s_axilite port=weight_decay
#pragma HLS INTERFACE m_axi port=sample_records bundle=gmem0 offset=slave
#pragma HLS INTERFACE m_axi port=results bundle=gmem1 offset=slave
#pragma HLS INTERFACE m_axi port=memory bundle=gmem2 offset=slave
#pragma HLS INTERFACE s_axilite port=return
#pragma HLS BIND_STORAGE variable=parameters type=ram_2p impl=uram
#pragma HLS BIND_STORAGE variable=gradients type=ram_2p impl=uram
#pragma HLS BIND_STORAGE variable=first_moment type=ram_2p impl=uram
#pragma HLS BIND_STORAGE variable=second_moment type=ram_2p impl=uram
#pragma HLS BIND_STORAGE variable=merged_out type=ram_2p impl=uram
#pragma HLS BIND_STORAGE variable=merged_in type=ram_2p impl=uram
#pragma HLS BIND_STORAGE variable=hidden type=ram_2p impl=uram
#pragma HLS BIND_STORAGE variable=queries type=ram_2p impl=uram
#pragma HLS BIND_STORAGE variable=keys type=ram_2p impl=uram
#pragma HLS BIND_STORAGE variable=values type=ram_2p impl=uram
#pragma HLS BIND_STORAGE variable=context type=ram_2p impl=uram
#pragma HLS BIND_STORAGE variable=attended type=ram_2p impl=uram
#pragma HLS BIND_STORAGE variable=attention_normalized type=ram_2p impl=uram
#pragma HLS BIND_STORAGE variable=first_out type=ram_2p impl=uram
#pragma HLS BIND_STORAGE variable=activated type=ram_2p impl=uram
#pragma HLS BIND_STORAGE variable=feed_forward_normalized type=ram_2p impl=uram
#pragma HLS BIND_STORAGE variable=embedding_tail type=ram_2p impl=uram
#pragma HLS BIND_STORAGE variable=attention type=ram_2p impl=bram
#pragma HLS BIND_STORAGE variable=tail_out type=ram_2p impl=bram
#pragma HLS BIND_STORAGE variable=tail_in type=ram_2p impl=bram
#pragma HLS BIND_STORAGE variable=bottleneck type=ram_2p impl=bram
    Optimizer optimizer = {optimizer_name, beta1, beta2, epsilon, weight_decay, 0.0f};
    if (command == DESCRIBE) {
        describe(results);
    } else if (command == LOAD) {
        load(memory);
    } else if (command == STORE) {
        store(memory);
    } else if (command == PROFILE) {
        profile(results);
    } else if ((command == TRAIN || command == PREDICT) && samples >= 0 && samples <= MAX_SAMPLES) {
        run_samples(results, sample_records, samples, optimizer, command == TRAIN);
    }
}
