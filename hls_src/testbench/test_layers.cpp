// Each layer, forward and backward, then a whole step of each optimizer, against the double-precision reference.
#include "reference.h"
#include "train_transformer.cpp"

static const int TOKENS = SEQUENCE_LENGTH - 3;

static void put(Word *memory, const Vec &values) {
    for (size_t i = 0; i < values.size(); i++) set_element(memory, i, static_cast<float>(values[i]));
}

static Vec get(const Word *memory, size_t size) {
    Vec values(size);
    for (size_t i = 0; i < size; i++) values[i] = element(memory, i);
    return values;
}

static double dot(const Vec &a, const Vec &b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); i++) sum += a[i] * b[i];
    return sum;
}

// Fills `rows` rows of `columns` elements with random numbers, the rest of each row's last word with zeros.
static int fill_rows(int offset, int rows, int columns, double scale, double centre = 0) {
    for (int row = 0; row < rows; row++)
        for (int i = 0; i < words_for(columns) * LANES; i++)
            set_element(flat(parameters) + offset, row * words_for(columns) * LANES + i,
                        i < columns ? static_cast<float>(centre + random_number(scale)) : 0.0f);
    return offset + rows * words_for(columns);
}

template <class H>
static int fill_half(int offset) {
    // So that W's elements, sums of rank^5 products of six, have the variance 1 / HIDDEN_SIZE.
    const double scale = std::sqrt(3.0) * std::pow(HIDDEN_SIZE * std::pow(LINEAR_RANK, 5), -1.0 / 12);
    offset = fill_rows(offset, H::NEAR_ROWS, LINEAR_RANK, scale);
    offset = fill_rows(offset, H::MIDDLE_ROWS, LINEAR_RANK, scale);
    return fill_rows(offset, LINEAR_RANK, H::FAR, scale);
}

static void fill_norm(int offset) { fill_rows(fill_rows(offset, 1, HIDDEN_SIZE, 0.5, 1), 1, HIDDEN_SIZE, 0.5); }

static void fill_parameters() {
    for (int linear = 0; linear < LINEARS; linear++) {
        fill_half<OutHalf>(out_cores_at(linear));
        fill_half<InHalf>(in_cores_at(linear));
        fill_rows(bias_at(linear), 1, HIDDEN_SIZE, 0.3);
    }
    fill_rows(START_OF(word_1), ROW_MODE_1 * COLUMN_MODE_1, EMBEDDING_RANK, 0.5);
    fill_rows(START_OF(word_2), ROW_MODE_2 * EMBEDDING_RANK * COLUMN_MODE_2, EMBEDDING_RANK, 0.5);
    fill_rows(START_OF(word_3), ROW_MODE_3 * COLUMN_MODE_3, EMBEDDING_RANK, 0.5);
    const int rest = START_OF(rest);
    fill_rows(fill_rows(rest + INTENT_HEAD, INTENTS, HIDDEN_SIZE, 0.2), 1, INTENTS, 0.2);
    fill_rows(fill_rows(rest + SLOT_HEAD, SLOTS, HIDDEN_SIZE, 0.2), 1, SLOTS, 0.2);
    fill_rows(rest + POSITION, SEQUENCE_LENGTH, HIDDEN_SIZE, 0.5);
    fill_norm(rest + EMBEDDING_NORM);
    for (int e = 0; e < ENCODERS; e++) {
        fill_norm(rest + attention_norm(e));
        fill_norm(rest + feed_forward_norm(e));
    }
}

// Up to `count` different indices in [first, last) whose parameter is not a gap at the end of a row.
static std::vector<int> some_indices(int first, int last, int count, const Vec &memory) {
    std::vector<int> indices;
    for (int i = 0; i < 4 * count && static_cast<int>(indices.size()) < count; i++) {
        const int index = first + static_cast<int>((random_number() + 1) / 2 * (last - first));
        if (memory[index] != 0.0) indices.push_back(index);
    }
    return indices;
}

static Vec pick(const Vec &values, const std::vector<int> &indices) {
    Vec picked;
    for (int i : indices) picked.push_back(values[i]);
    return picked;
}

static void check_gaps(const char *name, int first, int last) {
    double largest = 0;
    for (int i = first * LANES; i < last * LANES; i++)
        if (element(flat(parameters), i) == 0.0f) largest = std::fmax(largest, std::fabs(element(flat(gradients), i)));
    check(largest == 0, name, largest, 0);
}

static void test_tt_linear() {
    static Word x[TOKENS_WORDS], y[TOKENS_WORDS], d_x[TOKENS_WORDS], d_y[TOKENS_WORDS], d_sum[TOKENS_WORDS];
    const Vec memory = get(flat(parameters), PARAMETER_WORDS * LANES);
    const Vec x0 = random_vector(TOKENS * HIDDEN_SIZE), weight = random_vector(TOKENS * HIDDEN_SIZE);
    const int linear = FIRST, out = out_cores_at(linear), in = in_cores_at(linear), bias = bias_at(linear);
    put(x, x0), put(d_y, weight);
    tt_linear_prepare(linear);
    tt_linear_forward(y, x, TOKENS, linear);
    check_close("TT linear, forward", get(y, x0.size()), reference::linear(memory, linear, x0, TOKENS), 1e-6);
    tt_linear_backward(d_x, nullptr, d_y, x, TOKENS, linear);
    std::vector<int> cores = some_indices(out * LANES, (out + OutHalf::WORDS) * LANES, 140, memory);
    for (int i : some_indices(in * LANES, (in + InHalf::WORDS) * LANES, 140, memory)) cores.push_back(i);
    for (int i : some_indices(bias * LANES, (bias + HIDDEN_WORDS) * LANES, 40, memory)) cores.push_back(i);
    const std::vector<int> inputs = some_indices(0, x0.size(), 100, x0);
    check_close("TT linear, gradients of cores and bias", pick(get(flat(gradients), PARAMETER_WORDS * LANES), cores),
                reference::gradient([&](const Vec &m) { return dot(weight, reference::linear(m, linear, x0, TOKENS)); },
                                    memory, cores),
                1e-6);
    check_close("TT linear, gradient of the input", pick(get(d_x, x0.size()), inputs),
                reference::gradient([&](const Vec &v) { return dot(weight, reference::linear(memory, linear, v, TOKENS)); },
                                    x0, inputs),
                1e-6);
    check_gaps("TT linear, no gradient in the gaps of the output half", out, out + OutHalf::WORDS);
    check_gaps("TT linear, no gradient in the gaps of the input half", in, in + InHalf::WORDS);
    Vec doubled = get(d_x, x0.size());
    for (double &value : doubled) value *= 2;
    tt_linear_backward(d_sum, d_x, d_y, x, TOKENS, linear);
    check_close("TT linear, gradient of the input added", get(d_sum, x0.size()), doubled, 1e-6);
}

// What synthesis takes for `turn` against what the emulation takes, where the skew suits the modes; there and back.
static void test_turn() {
    static Word rows[LINEAR_RANK * HIDDEN_WORDS], turned[LINEAR_RANK * HIDDEN_WORDS], back[LINEAR_RANK * HIDDEN_WORDS];
    const Vec values = random_vector(LINEAR_RANK * HIDDEN_SIZE);
    put(rows, values);
    turn<true>(turned, rows, LINEAR_RANK), turn<false>(back, turned, LINEAR_RANK);
    check(get(back, values.size()) == values, "modes reversed and back", 0, 0);
    if (OUT_MODE_3 != 8) return;
    turn_banked<true>(back, rows, LINEAR_RANK);
    check(get(back, values.size()) == get(turned, values.size()), "modes reversed by words", 0, 0);
    turn_banked<false>(back, turned, LINEAR_RANK);
    check(get(back, values.size()) == values, "and back by words", 0, 0);
}

static void test_attention() {
    static Word q[TOKENS_WORDS], k[TOKENS_WORDS], v[TOKENS_WORDS], out[TOKENS_WORDS];
    static Word d_q[TOKENS_WORDS], d_k[TOKENS_WORDS], d_v[TOKENS_WORDS], d_out[TOKENS_WORDS];
    const size_t size = TOKENS * HIDDEN_SIZE;
    const Vec q0 = random_vector(size), k0 = random_vector(size), v0 = random_vector(size), weight = random_vector(size);
    put(q, q0), put(k, k0), put(v, v0), put(d_out, weight);
    attention_forward(out, attention[0], q, k, v, TOKENS);
    check_close("attention, forward", get(out, size), reference::attention(q0, k0, v0, TOKENS), 1e-6);
    attention_backward(d_q, d_k, d_v, d_out, attention[0], q, k, v, TOKENS);
    const std::vector<int> indices = some_indices(0, size, 150, q0);
    auto slope = [&](std::function<Vec(const Vec &)> forward, const Vec &point) {
        return reference::gradient([&](const Vec &p) { return dot(weight, forward(p)); }, point, indices);
    };
    check_close("attention, gradient of q", pick(get(d_q, size), indices),
                slope([&](const Vec &p) { return reference::attention(p, k0, v0, TOKENS); }, q0), 2e-6);
    check_close("attention, gradient of k", pick(get(d_k, size), indices),
                slope([&](const Vec &p) { return reference::attention(q0, p, v0, TOKENS); }, k0), 2e-6);
    check_close("attention, gradient of v", pick(get(d_v, size), indices),
                slope([&](const Vec &p) { return reference::attention(q0, k0, p, TOKENS); }, v0), 2e-6);
}

static void test_elementwise() {
    static Word x[TOKENS_WORDS], y[TOKENS_WORDS], d[TOKENS_WORDS], unit[TOKENS_WORDS], residual[TOKENS_WORDS];
    static float inverse_std[SEQUENCE_LENGTH];
    const size_t size = TOKENS * HIDDEN_SIZE;
    const Vec x0 = random_vector(size, 3), weight = random_vector(size);
    const Vec memory = get(flat(parameters), PARAMETER_WORDS * LANES);
    const std::vector<int> indices = some_indices(0, size, 200, x0);
    put(x, x0);

    put(d, weight);
    gelu_forward(y, unit, x, TOKENS * HIDDEN_WORDS);
    check_close("GELU, forward", get(y, size), reference::gelu(x0), 1e-6);
    gelu_backward(d, unit, TOKENS * HIDDEN_WORDS);
    check_close("GELU, backward", pick(get(d, size), indices),
                reference::gradient([&](const Vec &v) { return dot(weight, reference::gelu(v)); }, x0, indices), 1e-6);

    put(d, weight);
    const int norm = START_OF(rest) + EMBEDDING_NORM;
    const Vec half = random_vector(size, 3);  // the norm's input is a sum of two
    Vec rest = x0;
    for (size_t i = 0; i < size; i++) rest[i] -= half[i];
    put(x, half), put(residual, rest);
    layer_norm_forward(y, unit, inverse_std, x, residual, flat(parameters) + norm, TOKENS);
    check_close("LayerNorm, forward", get(y, size), reference::layer_norm(memory, norm, x0, TOKENS), 1e-6);
    static Word again[TOKENS_WORDS];
    layer_norm_backward(d, flat(gradients) + norm, unit, inverse_std, flat(parameters) + norm, TOKENS, again, unit,
                        flat(parameters) + norm);
    check(get(again, size) == get(y, size), "LayerNorm, its output made anew", 0, 0);
    auto by_input = [&](const Vec &v) { return dot(weight, reference::layer_norm(memory, norm, v, TOKENS)); };
    check_close("LayerNorm, gradient of the input", pick(get(d, size), indices),
                reference::gradient(by_input, x0, indices), 2e-6);
    const std::vector<int> norms = some_indices(norm * LANES, (norm + NORM_WORDS) * LANES, 150, memory);
    auto by_parameter = [&](const Vec &m) { return dot(weight, reference::layer_norm(m, norm, x0, TOKENS)); };
    check_close("LayerNorm, gradients of scale and shift", pick(get(flat(gradients), PARAMETER_WORDS * LANES), norms),
                reference::gradient(by_parameter, memory, norms), 1e-6);

    Vec logits = random_vector(SLOTS, 4);
    std::vector<int> every;
    for (int i = 0; i < SLOTS; i++) every.push_back(i);
    static RowFacts facts;
    const int label = 5;
    for (const float smoothing : {0.0f, 0.3f}) {
        put(x, logits);
        const double loss = ::cross_entropy(x, facts, 1, SLOTS, &label, 0.25f, smoothing);
        check_close("cross-entropy", Vec{loss}, Vec{reference::cross_entropy(logits, label, 0)}, 1e-6);
        auto smoothed = [&](const Vec &v) { return 0.25 * reference::cross_entropy(v, label, smoothing); };
        check_close("cross-entropy, gradient", get(x, SLOTS), reference::gradient(smoothed, logits, every), 1e-6);
        const Vec row = get(x, SLOT_WORDS * LANES);
        check_close("cross-entropy, no gradient beyond the classes", Vec(row.begin() + SLOTS, row.end()),
                    Vec(SLOT_WORDS * LANES - SLOTS), 0);
    }
}

static Sample a_sample(int tokens) {
    Sample sample = {};
    sample.tokens = tokens;
    sample.intent = INTENTS - 2;
    sample.label_smoothing = 0.1f;
    for (int t = 0; t < tokens; t++) {
        sample.token_ids[t] = (t * 37 + 5) % VOCABULARY_SIZE;
        sample.slots[t] = (t * 11 + 1) % SLOTS;
    }
    return sample;
}

static void test_whole_model(int tokens) {
    const Vec memory = get(flat(parameters), PARAMETER_WORDS * LANES);
    const Sample sample = a_sample(tokens);
    Result result = {};
    auto loss = [&](const Vec &m) {
        return reference::loss(m, sample.token_ids, sample.slots, sample.intent, sample.tokens, sample.label_smoothing);
    };
    forward(sample);
    loss_forward(result, sample);
    check_close("whole model, loss", Vec{result.loss},
                Vec{reference::loss(memory, sample.token_ids, sample.slots, sample.intent, sample.tokens, 0)}, 2e-6);
    backward(sample);
    const Vec got = get(flat(gradients), PARAMETER_WORDS * LANES);
    const struct {
        const char *name;
        int first, last;
    } parts[] = {{"whole model, gradients of the output halves", START_OF(out_cores), START_OF(in_cores)},
                 {"whole model, gradients of the input halves", START_OF(in_cores), START_OF(word_1)},
                 {"whole model, gradients of the word embedding", START_OF(word_1), START_OF(rest)},
                 {"whole model, gradients of the heads", START_OF(rest), START_OF(rest) + POSITION},
                 {"whole model, gradients of the position embedding", START_OF(rest) + POSITION,
                  START_OF(rest) + EMBEDDING_NORM},
                 {"whole model, gradients of norms and biases", START_OF(rest) + EMBEDDING_NORM, PARAMETER_WORDS}};
    for (const auto &part : parts) {
        const std::vector<int> indices = some_indices(part.first * LANES, part.last * LANES, 60, memory);
        check_close(part.name, pick(got, indices), reference::gradient(loss, memory, indices), 2e-5);
    }
    check_gaps("whole model, no gradient in the gaps", 0, PARAMETER_WORDS);
}

static void test_update() {
    const Vec p0 = get(flat(parameters), PARAMETER_WORDS * LANES), g = get(flat(gradients), PARAMETER_WORDS * LANES);
    const double rate = 0.01, beta1 = 0.9, beta2 = 0.99, epsilon = 1e-3, decay = 0.1;
    const char *names[] = {"SGD, two updates", "SGD with momentum, two updates", "AdamW, two updates"};
    for (int name = SGD; name <= ADAMW; name++) {
        put(flat(parameters), p0);
        clear(flat(first_moment), PARAMETER_WORDS), clear(flat(second_moment), PARAMETER_WORDS);
        step_count = 0;
        Vec want = p0;
        for (size_t i = 0; i < want.size(); i++) {
            double first = 0, second = 0;
            for (int step = 1; step <= 2; step++) {
                if (name == SGD) want[i] -= rate * g[i];
                if (name == MOMENTUM) want[i] -= rate * (first = beta1 * first + g[i]);
                if (name != ADAMW) continue;
                first = beta1 * first + (1 - beta1) * g[i];
                second = beta2 * second + (1 - beta2) * g[i] * g[i];
                want[i] -= rate * decay * want[i];
                want[i] -= rate * first / (1 - std::pow(beta1, step)) /
                           (std::sqrt(second / (1 - std::pow(beta2, step))) + epsilon);
            }
        }
        const Optimizer optimizer = {name, float(beta1), float(beta2), float(epsilon), float(decay), float(rate)};
        update(optimizer), update(optimizer);
        check_close(names[name], get(flat(parameters), want.size()), want, 1e-6);
    }
}

// What a host must never be able to do: reach an array with a bad index, or leave half an update behind.
static void test_faults() {
    static IntWord records[RECORD_WORDS], results[RESULT_WORDS];
    const struct {
        const char *name;
        int word, lane, value, status;
    } faults[] = {{"no tokens", 0, 0, 0, BAD_LENGTH},
                  {"too many tokens", 0, 0, SEQUENCE_LENGTH + 1, BAD_LENGTH},
                  {"negative intent", 0, 1, -1, BAD_INTENT},
                  {"intent out of range", 0, 1, INTENTS, BAD_INTENT},
                  {"negative learning rate", 0, 2, bits_of(-1.0f), BAD_LEARNING_RATE},
                  {"infinite learning rate", 0, 2, 0x7f800000, BAD_LEARNING_RATE},
                  {"learning rate NaN", 0, 2, 0x7fc00000, BAD_LEARNING_RATE},
                  {"token out of range", 1, 1, VOCABULARY_SIZE, BAD_TOKEN},
                  {"negative token", 1, 2, -7, BAD_TOKEN},
                  {"slot out of range", 1 + SEQUENCE_WORDS, 1, SLOTS, BAD_SLOT}};
    const Vec before = get(flat(parameters), PARAMETER_WORDS * LANES);
    for (const auto &fault : faults) {
        for (IntWord &word : records) word = IntWord(0);
        records[0][0] = 4;
        records[fault.word][fault.lane] = fault.value;
        train_transformer(TRAIN, 1, SGD, 0, 0, 0, 0, records, results, nullptr);
        check(results[0][0] == fault.status, fault.name, results[0][0], fault.status);
    }
    for (IntWord &word : records) word = IntWord(0);
    records[0][0] = 4;
    set_element(parameters.rest + SLOT_HEAD + SLOTS * HIDDEN_WORDS, 0, float_of(0x7f800000));
    const Vec broken = get(flat(parameters), PARAMETER_WORDS * LANES);
    train_transformer(TRAIN, 1, SGD, 0, 0, 0, 0, records, results, nullptr);
    check(results[0][0] == LOSS_NOT_FINITE, "an infinite bias makes the loss not finite", results[0][0], LOSS_NOT_FINITE);
    check(get(flat(parameters), broken.size()) == broken, "parameters stay as before that sample", 0, 0);
    put(flat(parameters), before);
    const float not_a_number = float_of(0x7fc00000), far = 8.5070592e37f;  // 2^126
    const struct {
        const char *name;
        int optimizer;
        float beta1, epsilon, weight_decay, rate;
        Word *memory;
        float value;
        int status;
    } states[] = {{"unknown optimizer", 3, 0, 0, 0, 0, nullptr, 0, BAD_OPTIMIZER},
                  {"beta of one", MOMENTUM, 1, 0, 0, 0, nullptr, 0, BAD_OPTIMIZER},
                  {"beta NaN", ADAMW, not_a_number, 1, 0, 0, nullptr, 0, BAD_OPTIMIZER},
                  {"parameter NaN that the sample does not use", SGD, 0, 0, 0, 0,
                   parameters.word_2 + (ROW_MODE_2 - 1) * SLICE_2_WORDS, not_a_number, STATE_NOT_FINITE},
                  {"parameter too large", SGD, 0, 0, 0, 0, parameters.word_2, 9.3e18f, STATE_NOT_FINITE},
                  {"velocity NaN", MOMENTUM, 0, 0, 0, 0, first_moment.rest, not_a_number, STATE_NOT_FINITE},
                  {"second moment too large", ADAMW, 0, 1, 0, 0, second_moment.cores, 2 * far, STATE_NOT_FINITE},
                  {"learning rate too high", SGD, 0, 0, 0, RATE_LIMIT, nullptr, 0, UPDATE_NOT_FINITE},
                  {"AdamW without epsilon", ADAMW, 0, 0, 0, 1e-3f, nullptr, 0, UPDATE_NOT_FINITE},
                  {"AdamW's decay too fast", ADAMW, 0, 1, far, 1.0f, nullptr, 0, UPDATE_NOT_FINITE}};
    records[0][0] = 4;
    for (const auto &fault : states) {
        Vec kept;
        if (fault.memory) {
            kept = get(fault.memory, LANES);
            fault.memory[0][0] = fault.value;
        }
        records[0][2] = bits_of(fault.rate);
        train_transformer(TRAIN, 1, fault.optimizer, fault.beta1, 0, fault.epsilon, fault.weight_decay, records, results,
                          nullptr);
        check(results[0][0] == fault.status, fault.name, results[0][0], fault.status);
        if (fault.memory) put(fault.memory, kept);
    }
    check_close("refused samples change nothing", get(flat(parameters), before.size()), before, 0);
    records[0][2] = 0;
    train_transformer(TRAIN, MAX_SAMPLES + 1, SGD, 0, 0, 0, 0, nullptr, nullptr, nullptr);  // refused, touches nothing
    train_transformer(99, 1, SGD, 0, 0, 0, 0, nullptr, nullptr, nullptr);
    check_close("calls that are no calls change nothing", get(flat(parameters), before.size()), before, 0);
}

int main() {
    fill_parameters();
    test_tt_linear();
    test_turn();
    test_attention();
    test_elementwise();
    test_whole_model(TOKENS);
    test_whole_model(2);
    test_update();
    test_faults();
    return finish();
}
