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
    embedding_forward(hidden, sample.token_ids, sample.tokens);
    tt_linear_prepare(QUERY);
Encoders_Forward:
    for (int e = 0; e < ENCODERS; e++) encoder_forward(e, sample.tokens);
    heads_forward(hidden, sample.tokens);
}

// Cross-entropy of the intent plus the mean over the words of that of the slots; the logits become their gradients. Also
// the predictions: the largest logits.
static void loss_forward(Result &result, const Sample &sample) {
    const Meter meter(FP, LOSS);
    static RowFacts facts;
    const int words = sample.tokens - 1;
    result.intent_loss = cross_entropy(intent_logits, facts, 1, INTENTS, &sample.intent, 1.0f, sample.label_smoothing);
    result.intent = facts.argument[0];
    const float slot_loss =
        cross_entropy(slot_logits, facts, words, SLOTS, sample.slots + 1, 1.0f / words, sample.label_smoothing);
    result.slot_loss = words > 0 ? slot_loss / words : 0.0f;
    result.loss = result.intent_loss + result.slot_loss;
    loop(SEQUENCE_WORDS * LANES, 1, READ + START);
    result.slots[0] = 0;
Slots_Pipeline:
    for (int t = 1; t < SEQUENCE_WORDS * LANES; t++) {
#pragma HLS PIPELINE II=1
        result.slots[t] = t < sample.tokens ? facts.argument[t - 1] : 0;
    }
}

// Backward pass: every gradient of this sample.
static void backward(const Sample &sample) {
    static Word d_hidden[TOKENS_WORDS];
    heads_backward(d_hidden, hidden, sample.tokens);
Encoders_Backward:
    for (int e = ENCODERS - 1; e >= 0; e--) encoder_backward(d_hidden, e, sample.tokens);
    embedding_backward(d_hidden, sample.token_ids, sample.tokens);
}

// One step on one sample. Nothing is updated unless all that goes into the update is finite, and what comes out will be.
static void run_sample(Result &result, const Sample &sample, Optimizer &optimizer, bool train) {
    result.status = check_sample(sample);
    if (result.status == DONE && train && !is_known(optimizer)) result.status = BAD_OPTIMIZER;
    if (result.status != DONE) return;
    forward(sample);
    loss_forward(result, sample);
    if (!train) return;
    if (!is_finite(result.loss)) {
        result.status = LOSS_NOT_FINITE;
        return;
    }
    backward(sample);
    const Beyond beyond = find_beyond(optimizer);
    if (beyond.gradient || beyond.state) {
        result.status = beyond.state ? STATE_NOT_FINITE : GRADIENT_NOT_FINITE;
        return;
    }
    optimizer.learning_rate = sample.learning_rate;
    if (!update(optimizer)) result.status = UPDATE_NOT_FINITE;
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

// In HBM: one word {updates so far, as an integer}, then parameters, first and second moment, each in the order of Tensors.
static const Word *load_words(Word *words, const Word *memory, int count) {
    spend(HBM);
    copy(words, memory, count);
    return memory + count;
}

static Word *store_words(Word *memory, const Word *words, int count) {
    spend(HBM);
    copy(memory, words, count);
    return memory + count;
}

static const Word *load_tensors(Tensors &tensors, const Word *memory) {
    memory = load_words(tensors.out_cores, memory, OUT_CORES_WORDS);
    memory = load_words(tensors.in_cores, memory, IN_CORES_WORDS);
    memory = load_words(tensors.word_1, memory, WORD_1_WORDS);
    memory = load_words(tensors.word_2, memory, WORD_2_WORDS);
    memory = load_words(tensors.word_3, memory, WORD_3_WORDS);
    return load_words(tensors.rest, memory, REST_WORDS);
}

static Word *store_tensors(Word *memory, const Tensors &tensors) {
    memory = store_words(memory, tensors.out_cores, OUT_CORES_WORDS);
    memory = store_words(memory, tensors.in_cores, IN_CORES_WORDS);
    memory = store_words(memory, tensors.word_1, WORD_1_WORDS);
    memory = store_words(memory, tensors.word_2, WORD_2_WORDS);
    memory = store_words(memory, tensors.word_3, WORD_3_WORDS);
    return store_words(memory, tensors.rest, REST_WORDS);
}

static const Word *load_moments(Moments &moments, const Word *memory) {
    memory = load_words(moments.cores + Moments::OUT_CORES, memory, OUT_CORES_WORDS);
    memory = load_words(moments.cores + Moments::IN_CORES, memory, IN_CORES_WORDS);
    memory = load_words(moments.rest + Moments::WORD_1, memory, WORD_1_WORDS);
    memory = load_words(moments.cores + Moments::WORD_2, memory, WORD_2_WORDS);
    memory = load_words(moments.rest + Moments::WORD_3, memory, WORD_3_WORDS);
    return load_words(moments.rest + Moments::REST, memory, REST_WORDS);
}

static Word *store_moments(Word *memory, const Moments &moments) {
    memory = store_words(memory, moments.cores + Moments::OUT_CORES, OUT_CORES_WORDS);
    memory = store_words(memory, moments.cores + Moments::IN_CORES, IN_CORES_WORDS);
    memory = store_words(memory, moments.rest + Moments::WORD_1, WORD_1_WORDS);
    memory = store_words(memory, moments.cores + Moments::WORD_2, WORD_2_WORDS);
    memory = store_words(memory, moments.rest + Moments::WORD_3, WORD_3_WORDS);
    return store_words(memory, moments.rest + Moments::REST, REST_WORDS);
}

static void load(const Word *memory) {
    spend(HBM);
    step_count = bits_of(memory[0][0]);
    memory = load_tensors(parameters, memory + 1);
    memory = load_moments(first_moment, memory);
    load_moments(second_moment, memory);
}

static void store(Word *memory) {
    spend(HBM);
    Word state(0.0f);
    state[0] = float_of(step_count);
    memory[0] = state;
    memory = store_tensors(memory + 1, parameters);
    memory = store_moments(memory, first_moment);
    store_moments(memory, second_moment);
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
// Parameters and what is kept of each layer: UltraRAM. A port of its own for each engine, since both read at once.
#pragma HLS BIND_STORAGE variable=parameters.out_cores type=ram_t2p impl=uram
#pragma HLS BIND_STORAGE variable=parameters.in_cores type=ram_t2p impl=uram
#pragma HLS BIND_STORAGE variable=parameters.rest type=ram_t2p impl=uram
#pragma HLS BIND_STORAGE variable=gradients.out_cores type=ram_2p impl=uram
#pragma HLS BIND_STORAGE variable=gradients.in_cores type=ram_2p impl=uram
#pragma HLS BIND_STORAGE variable=gradients.rest type=ram_2p impl=uram
#pragma HLS BIND_STORAGE variable=first_moment.cores type=ram_2p impl=uram
#pragma HLS BIND_STORAGE variable=first_moment.rest type=ram_2p impl=uram
#pragma HLS BIND_STORAGE variable=second_moment.cores type=ram_2p impl=uram
#pragma HLS BIND_STORAGE variable=second_moment.rest type=ram_2p impl=uram
#if ENCODERS > 4  // UltraRAM alone would be too full; block RAM has room
#pragma HLS BIND_STORAGE variable=parameters.word_2 type=ram_t2p impl=bram
#pragma HLS BIND_STORAGE variable=gradients.word_2 type=ram_2p impl=bram
#else
#pragma HLS BIND_STORAGE variable=parameters.word_2 type=ram_t2p impl=uram
#pragma HLS BIND_STORAGE variable=gradients.word_2 type=ram_2p impl=uram
#endif
#pragma HLS BIND_STORAGE variable=merged_out type=ram_2p impl=uram
#pragma HLS BIND_STORAGE variable=merged_in type=ram_2p impl=uram
#pragma HLS BIND_STORAGE variable=attention_kept type=ram_t2p impl=uram
#pragma HLS BIND_STORAGE variable=feed_forward_kept type=ram_t2p impl=uram
#pragma HLS ARRAY_PARTITION variable=embedding_tail dim=1 complete
#pragma HLS BIND_STORAGE variable=embedding_tail type=ram_t2p impl=uram
// What is small: block RAM.
#pragma HLS BIND_STORAGE variable=parameters.word_1 type=ram_2p impl=bram
#pragma HLS BIND_STORAGE variable=parameters.word_3 type=ram_2p impl=bram
#pragma HLS BIND_STORAGE variable=gradients.word_1 type=ram_2p impl=bram
#pragma HLS BIND_STORAGE variable=gradients.word_3 type=ram_2p impl=bram
#pragma HLS BIND_STORAGE variable=attention type=ram_t2p impl=bram
#pragma HLS BIND_STORAGE variable=tail_out type=ram_2p impl=bram
#pragma HLS BIND_STORAGE variable=tail_in type=ram_2p impl=bram
#pragma HLS BIND_STORAGE variable=bottleneck type=ram_t2p impl=bram
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

#if !defined(__SYNTHESIS__)
// How many bytes a call reaches behind each pointer: the emulated card does not start it on shorter buffers.
extern "C" __attribute__((visibility("default"))) void train_transformer_reach(int command, int samples, int, float, float,
                                                                               float, float, const IntWord *, IntWord *,
                                                                               Word *, long long *bytes) {
    const bool runs = (command == TRAIN || command == PREDICT) && samples >= 0 && samples <= MAX_SAMPLES;
    const int described = command == DESCRIBE ? 2 : command == PROFILE ? parts(PROFILE_COUNTERS, LANES) : 0;
    bytes[0] = sizeof(IntWord) * (runs ? samples * RECORD_WORDS : 0);
    bytes[1] = sizeof(IntWord) * (runs ? samples * RESULT_WORDS : described);
    bytes[2] = sizeof(Word) * (command == LOAD || command == STORE ? 1 + 3 * PARAMETER_WORDS : 0);
}
#endif
