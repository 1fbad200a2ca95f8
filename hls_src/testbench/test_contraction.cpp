// Both contraction kernels through their ports, against y = x W^T in double precision with W reassembled from its cores;
// gradients by central differences. And each against the other.
#include <functional>
#include <string>

#include "check.h"
#include "contraction.cpp"

constexpr int OPERANDS = CORES_WORDS + SEQUENCE_LENGTH * HIDDEN_WORDS;
constexpr int RECORD = 1 + SHAPE_WORDS + MOST_STEPS;
static Word operands[OPERANDS], results[OPERANDS];
static IntWord record[RECORD];

typedef void (*Kernel)(int, int, const Word *, Word *, IntWord *);

// Where the elements of a half's cores lie in words: each (rank, mode) x rank or rank x far, rows filled to whole words.
template <class H>
static double near_core(const Vec &half, int a, int n, int b) {
    return half[(a * H::NEAR + n) * RANK_WORDS * LANES + b];
}
template <class H>
static double middle_core(const Vec &half, int b, int m, int c) {
    return half[H::MIDDLE_CORE * LANES + (b * H::MIDDLE + m) * RANK_WORDS * LANES + c];
}
template <class H>
static double far_core(const Vec &half, int c, int f) {
    return half[H::FAR_CORE * LANES + c * H::FAR_WORDS * LANES + f];
}

// (near middle far) x rank
template <class H>
static std::vector<Vec> reassemble(const Vec &half) {
    std::vector<Vec> merged;
    for (int n = 0; n < H::NEAR; n++)
        for (int m = 0; m < H::MIDDLE; m++)
            for (int f = 0; f < H::FAR; f++) {
                Vec row(LINEAR_RANK, 0.0), tail(LINEAR_RANK, 0.0);
                for (int b = 0; b < LINEAR_RANK; b++)
                    for (int c = 0; c < LINEAR_RANK; c++)
                        tail[b] += middle_core<H>(half, b, m, c) * far_core<H>(half, c, f);
                for (int a = 0; a < LINEAR_RANK; a++)
                    for (int b = 0; b < LINEAR_RANK; b++) row[a] += near_core<H>(half, a, n, b) * tail[b];
                merged.push_back(row);
            }
    return merged;
}

static Vec part(const Vec &memory, int first_word, int words) {
    return Vec(memory.begin() + first_word * LANES, memory.begin() + (first_word + words) * LANES);
}

// y (tokens, HIDDEN_SIZE) from the operands of FORWARD.
static Vec layer(const Vec &memory, int tokens) {
    const std::vector<Vec> left = reassemble<OutHalf>(part(memory, 0, OutHalf::WORDS));
    const std::vector<Vec> right = reassemble<InHalf>(part(memory, OutHalf::WORDS, InHalf::WORDS));
    Vec y(tokens * HIDDEN_SIZE, 0.0);
    for (int t = 0; t < tokens; t++) {
        Vec z(LINEAR_RANK, 0.0);
        for (int j = 0; j < HIDDEN_SIZE; j++)
            for (int a = 0; a < LINEAR_RANK; a++) z[a] += memory[CORES_WORDS * LANES + t * HIDDEN_SIZE + j] * right[j][a];
        for (int i1 = 0; i1 < OUT_MODE_1; i1++)
            for (int i2 = 0; i2 < OUT_MODE_2; i2++)
                for (int i3 = 0; i3 < OUT_MODE_3; i3++)
                    for (int a = 0; a < LINEAR_RANK; a++)
                        y[t * HIDDEN_SIZE + (i1 * OUT_MODE_2 + i2) * OUT_MODE_3 + i3] +=
                            z[a] * left[(i3 * OUT_MODE_2 + i2) * OUT_MODE_1 + i1][a];
    }
    return y;
}

static void fill_rows(Vec &memory, int rows, int columns, double scale) {
    for (int row = 0; row < rows; row++)
        for (int i = 0; i < words_for(columns) * LANES; i++)
            memory.push_back(i < columns ? static_cast<float>(random_number(scale)) : 0.0);
}

static Vec random_operands(int tokens) {
    Vec memory;
    fill_rows(memory, OutHalf::NEAR_ROWS + OutHalf::MIDDLE_ROWS, LINEAR_RANK, 0.5);
    fill_rows(memory, LINEAR_RANK, OutHalf::FAR, 0.5);
    fill_rows(memory, InHalf::NEAR_ROWS + InHalf::MIDDLE_ROWS, LINEAR_RANK, 0.5);
    fill_rows(memory, LINEAR_RANK, InHalf::FAR, 0.5);
    fill_rows(memory, tokens, HIDDEN_SIZE, 1.0);
    return memory;
}

static void put(const Vec &values) {
    for (size_t i = 0; i < values.size(); i++) set_element(operands, i, static_cast<float>(values[i]));
}

static Vec get(size_t size) {
    Vec values(size);
    for (size_t i = 0; i < size; i++) values[i] = element(results, i);
    return values;
}

static double dot(const Vec &a, const Vec &b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); i++) sum += a[i] * b[i];
    return sum;
}

// The slope of dy . y at some of the operands, and the same elements of what BACKWARD made; gaps must be zero.
static void check_gradients(const std::string &name, const Vec &memory, const Vec &d_y, const Vec &got, int tokens) {
    constexpr int CORES = CORES_WORDS * LANES;
    double gaps = 0;
    for (int i = 0; i < CORES; i++)
        if (memory[i] == 0) gaps = std::fmax(gaps, std::fabs(got[i]));
    check(gaps == 0, (name + ", gradients in the gaps").c_str(), gaps, 0);
    for (const bool of_x : {false, true}) {
        Vec some, want;
        const int first = of_x ? CORES : 0, count = of_x ? tokens * HIDDEN_SIZE : CORES;
        while (some.size() < 60) {
            const int i = first + static_cast<int>((random_number() + 1) / 2 * count);
            if (memory[i] == 0) continue;
            Vec moved = memory;
            moved[i] = memory[i] + 1e-4;
            const double above = dot(d_y, layer(moved, tokens));
            moved[i] = memory[i] - 1e-4;
            some.push_back(got[i]);
            want.push_back((above - dot(d_y, layer(moved, tokens))) / 2e-4);
        }
        check_close((name + (of_x ? ", dx" : ", gradients of the cores")).c_str(), some, want, 2e-6);
    }
}

static int run(Kernel kernel, int command, int tokens) {
    kernel(command, tokens, operands, results, record);
    return record[0][0];
}

static void test_kernel(const char *name, Kernel kernel, int tokens, const Vec &memory, const Vec &d_y, Vec &gradients) {
    const std::string title = std::string(name) + ", " + std::to_string(tokens) + " tokens";
    put(memory);
    check(run(kernel, FORWARD, tokens) == DONE, (title + ", forward ends").c_str(), 0, 0);
    check_close((title + ", y").c_str(), get(d_y.size()), layer(memory, tokens), 1e-6);
#if !defined(__SYNTHESIS__)
    check(record[1 + SHAPE_WORDS][1] > 0, (title + ", cycles of a step").c_str(), record[1 + SHAPE_WORDS][1], 0);
#endif
    put(d_y);
    check(run(kernel, BACKWARD, tokens) == DONE, (title + ", backward ends").c_str(), 0, 0);
    gradients = get(memory.size());
    check_gradients(title, memory, d_y, gradients, tokens);
}

static void test_tokens(int tokens) {
    const Vec memory = random_operands(tokens), d_y = random_vector(tokens * HIDDEN_SIZE);
    Vec right_to_left, bidirectional;
    test_kernel("right to left", contract_right_to_left, tokens, memory, d_y, right_to_left);
    test_kernel("bi-directional", contract_bidirectional, tokens, memory, d_y, bidirectional);
    check_close("both flows, all gradients", right_to_left, bidirectional, 1e-6);
}

static void test_refusals(const char *name, Kernel kernel) {
    const std::string title = name;
    for (Word &word : results) word = Word(1.0f);
    check(run(kernel, BACKWARD, 2) == NO_FORWARD, (title + ", backward first").c_str(), record[0][0], NO_FORWARD);
    check(run(kernel, FORWARD, 0) == BAD_TOKENS, (title + ", no tokens").c_str(), record[0][0], BAD_TOKENS);
    check(run(kernel, FORWARD, SEQUENCE_LENGTH + 1) == BAD_TOKENS, (title + ", too many").c_str(), record[0][0], BAD_TOKENS);
    check(run(kernel, 7, 1) == NOT_REACHED, (title + ", an unknown command").c_str(), record[0][0], NOT_REACHED);
    check(run(kernel, DESCRIBE, 0) == DONE && record[1][0] == HIDDEN_SIZE, (title + ", shape").c_str(), record[1][0], 0);
    double touched = 0;
    for (int i = 0; i < OPERANDS * LANES; i++) touched += element(results, i) != 1.0f;
    check(touched == 0, (title + ", refused: nothing written").c_str(), touched, 0);
    put(random_operands(2));
    run(kernel, FORWARD, 2);
    check(run(kernel, BACKWARD, 3) == NO_FORWARD, (title + ", other tokens").c_str(), record[0][0], NO_FORWARD);
}

int main() {
    test_refusals("right to left", contract_right_to_left);
    test_refusals("bi-directional", contract_bidirectional);
    for (int tokens : {1, 2, 5, SEQUENCE_LENGTH - 1, SEQUENCE_LENGTH}) test_tokens(tokens);
    return finish();
}
