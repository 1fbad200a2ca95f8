// The contractions of engine.h against plain loops in double precision, over sizes around every tile boundary; and what
// synthesis takes (engine_loop.h) against what the emulation takes (emulation/contract.h): the same bits.
#include <cstring>
#include <string>

#include "check.h"
#include "engine.h"

constexpr int SPACE = 1 << 14;
static Word a[SPACE], b[SPACE], c[SPACE], by_loop[SPACE];

static void fill(Word *memory) {
    for (int i = 0; i < SPACE * LANES; i++) set_element(memory, i, static_cast<float>(random_number()));
}

static void fill_all() {
    fill(a), fill(b), fill(c);
    std::memcpy(static_cast<void *>(by_loop), c, sizeof c);
}

// What engine.h counts for a contraction, against the steps that the loop takes; between them is the way through the
// engine.
static void check_steps(long long before, int steps, int depth, bool exactly) {
    const long long counted = *spent_on - before - depth;
    check(exactly ? counted == steps : counted >= steps, "  its steps as counted", counted, steps);
}

// The whole memories, so that a word written where none belongs shows too.
static void check_bits() { check(std::memcmp(c, by_loop, sizeof c) == 0, "  the loop of synthesis: the same bits", 0, 0); }

static Vec rows_of_c(int rows, int words, int row_words) {
    Vec values;
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < words * LANES; i++) values.push_back(element(c, r * row_words * LANES + i));
    return values;
}

static Vec outer_product(int rows, int depth, int words, int a_row, int a_depth, bool adds) {
    Vec want;
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < words * LANES; i++) {
            double sum = adds ? element(c, r * (words + 1) * LANES + i) : 0.0;
            for (int d = 0; d < depth; d++)
                sum += double(element(a, r * a_row + d * a_depth)) * element(b, d * words * LANES + i);
            want.push_back(sum);
        }
    return want;
}

static void test_outer(int rows, int depth, int words, bool transposed) {
    const int a_words = words_for(transposed ? rows : depth);
    const int a_row = transposed ? 1 : a_words * LANES, a_depth = transposed ? a_words * LANES : 1;
    char name[100];
    std::snprintf(name, sizeof name, "%dx%dx%d%s", rows, depth, words, transposed ? " transposed" : "");
    for (bool adds : {false, true}) {
        fill_all();
        const Vec want = outer_product(rows, depth, words, a_row, a_depth, adds);
        const Word *addend = adds ? c : nullptr;
        const long long before = *spent_on;
        expand<0>(c, words + 1, addend, words + 1, a, a_row, a_depth, b, words, rows, depth, words);
        const std::string title = std::string("expand ") + name + (adds ? " added" : "");
        check_close(title.c_str(), rows_of_c(rows, words, words + 1), want, 1e-6);
        addend = adds ? by_loop : nullptr;
        const int steps =
            engine_expand<0>(by_loop, words + 1, addend, words + 1, a, a_row, a_depth, b, words, rows, depth, words);
        check_bits();
        // A last pass of fewer rows is counted as the others.
        check_steps(before, steps, parts(depth, ENGINE_ROWS) * ENGINE_DEPTH, depth <= ENGINE_ROWS);
    }
    fill_all();
    const Vec want = outer_product(rows, depth, words, a_row, a_depth, false);
    const long long before = *spent_on;
    accumulate<0>(c, words + 1, a, a_row, a_depth, b, words, rows, depth, words);
    check_close((std::string("accumulate ") + name).c_str(), rows_of_c(rows, words, words + 1), want, 1e-6);
    const int steps = engine_accumulate<0>(by_loop, words + 1, a, a_row, a_depth, b, words, rows, depth, words, ALONE);
    check_bits();
    check_steps(before, steps, ENGINE_DEPTH, true);
}

template <int ROWS, int WORDS>
static void test_few(int depth, bool transposed) {
    constexpr int PARTIALS = parts(ACCUMULATE, WORDS);
    const int a_words = words_for(transposed ? ROWS : depth);
    const int a_row = transposed ? 1 : a_words * LANES, a_depth = transposed ? a_words * LANES : 1;
    for (bool adds : {false, true}) {
        fill_all();
        Vec want = outer_product(ROWS, depth, WORDS, a_row, a_depth, false);
        for (size_t i = 0; adds && i < want.size(); i++) want[i] += element(c, i);
        const long long before = *spent_on;
        accumulate_few<0, ROWS, WORDS>(c, adds ? c : nullptr, a, a_row, a_depth, b, depth);
        check_close("accumulate, few words", rows_of_c(ROWS, WORDS, WORDS), want, 1e-6);
        const int steps =
            engine_accumulate_few<0, ROWS, WORDS, PARTIALS>(by_loop, adds ? by_loop : nullptr, a, a_row, a_depth, b, depth);
        check_bits();
        check_steps(before, steps, ENGINE_DEPTH, true);
    }
}

static void test_reduce(int rows, int columns, int words, bool adds) {
    fill_all();
    const int c_row = words_for(columns);
    for (int r = 0; r < rows; r++)  // rows of c are filled with zeros to a whole word
        for (int i = columns; i < c_row * LANES; i++) {
            set_element(c, r * c_row * LANES + i, 0.0f);
            set_element(by_loop, r * c_row * LANES + i, 0.0f);
        }
    Vec want;
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < c_row * LANES; n++) {
            double sum = adds ? element(c, r * c_row * LANES + n) : 0.0;
            for (int d = 0; n < columns && d < words * LANES; d++)
                sum += double(element(a, r * words * LANES + d)) * element(b, n * words * LANES + d);
            want.push_back(sum);
        }
    const long long before = *spent_on;
    reduce<0>(c, c_row, adds ? c : nullptr, c_row, a, words, b, words, rows, columns, words);
    char name[100];
    std::snprintf(name, sizeof name, "reduce %dx%dx%d%s", rows, columns, words, adds ? " added" : "");
    check_close(name, rows_of_c(rows, c_row, c_row), want, 1e-6);
    const int steps =
        engine_reduce<0>(by_loop, c_row, adds ? by_loop : nullptr, c_row, a, words, b, words, rows, columns, words, ALONE);
    check_bits();
    check_steps(before, steps, ENGINE_DEPTH + LANE_TREE + ADD, true);
}

// As attention uses them: heads side by side in a row.
static void test_batch(int tokens) {
    const Batch heads = {3, SEQUENCE_LENGTH * SEQUENCE_WORDS, 2, 2};
    fill_all();
    reduce<0>(c, SEQUENCE_WORDS, nullptr, 0, a, 6, b, 6, tokens, tokens, 2, heads);
    engine_reduce<0>(by_loop, SEQUENCE_WORDS, nullptr, 0, a, 6, b, 6, tokens, tokens, 2, heads);
    check_bits();
    const Batch back = {3, 2, SEQUENCE_LENGTH * SEQUENCE_WORDS, 2};
    for (bool transposed : {false, true}) {
        const int a_row = transposed ? 1 : SEQUENCE_WORDS * LANES, a_depth = transposed ? SEQUENCE_WORDS * LANES : 1;
        fill_all();
        accumulate<0>(c, 6, a, a_row, a_depth, b, 6, tokens, tokens, 2, back);
        engine_accumulate<0>(by_loop, 6, a, a_row, a_depth, b, 6, tokens, tokens, 2, back);
        check_bits();
    }
}

int main() {
    const int row_counts[] = {1, 2, 3, 5, 7, 12, 13, 32}, depths[] = {1, 2, 12, 30, MAX_DEPTH};
    const int word_counts[] = {1, 2, 3, 8, 10};
    for (int rows : row_counts)
        for (int depth : depths)
            for (int words : word_counts) test_outer(rows, depth, words, (rows + depth) % 2);
    const int column_counts[] = {1, 2, 4, 12, 15, 16, 17, 33}, lengths[] = {1, 2, HIDDEN_WORDS};
    for (int rows : row_counts)
        for (int columns : column_counts)
            for (int words : lengths) test_reduce(rows, columns, words, (rows + columns) % 2);
    for (int depth : depths)
        for (bool transposed : {false, true}) {
            test_few<3, 1>(depth, transposed);
            test_few<12, 1>(depth, transposed);
            test_few<8, 2>(depth, transposed);
        }
    for (int tokens : {1, 2, 12, 13, SEQUENCE_LENGTH}) test_batch(tokens);
    return finish();
}
