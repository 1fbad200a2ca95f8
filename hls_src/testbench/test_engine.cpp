// The contractions of engine.h against plain loops in double precision, over sizes around every tile boundary.
#include "check.h"
#include "engine.h"

constexpr int SPACE = 1 << 14;
static Word a[SPACE], b[SPACE], c[SPACE];

static void fill(Word *memory) {
    for (int i = 0; i < SPACE * LANES; i++) set_element(memory, i, static_cast<float>(random_number()));
}

static void test_outer(int rows, int depth, int words, bool transposed, bool adds) {
    const int a_words = words_for(transposed ? rows : depth);
    const int a_row = transposed ? 1 : a_words * LANES, a_depth = transposed ? a_words * LANES : 1;
    fill(a), fill(b), fill(c);
    Vec want;
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < words * LANES; i++) {
            double sum = adds ? element(c, r * (words + 1) * LANES + i) : 0.0;
            for (int d = 0; d < depth; d++)
                sum += double(element(a, r * a_row + d * a_depth)) * element(b, d * words * LANES + i);
            want.push_back(sum);
        }
    const float beyond = element(c, (rows * (words + 1)) * LANES), gap = element(c, words * LANES);
    if (rows > depth) {
        expand<0>(c, words + 1, adds ? c : nullptr, words + 1, a, a_row, a_depth, b, words, rows, depth, words);
    } else {
        accumulate<0>(c, words + 1, adds ? c : nullptr, words + 1, a, a_row, a_depth, b, words, rows, depth, words);
    }
    Vec got;
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < words * LANES; i++) got.push_back(element(c, r * (words + 1) * LANES + i));
    char name[100];
    std::snprintf(name, sizeof name, "outer %dx%dx%d%s%s", rows, depth, words, transposed ? " transposed" : "",
                  adds ? " added" : "");
    check_close(name, got, want, 1e-6);
    check(element(c, rows * (words + 1) * LANES) == beyond && element(c, words * LANES) == gap, "  nothing else is written",
          0, 0);
}

static void test_inner(int rows, int columns, int depth_words, bool adds) {
    fill(a), fill(b), fill(c);
    const int c_row = words_for(columns);
    for (int r = 0; r < rows; r++)  // rows of c are filled with zeros to a whole word
        for (int i = columns; i < c_row * LANES; i++) set_element(c, r * c_row * LANES + i, 0.0f);
    Vec want;
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < c_row * LANES; n++) {
            double sum = adds ? element(c, r * c_row * LANES + n) : 0.0;
            for (int d = 0; n < columns && d < depth_words * LANES; d++)
                sum += double(element(a, r * depth_words * LANES + d)) * element(b, n * depth_words * LANES + d);
            want.push_back(sum);
        }
    const float beyond = element(c, rows * c_row * LANES);
    reduce<0>(c, c_row, adds ? c : nullptr, c_row, a, depth_words, b, depth_words, rows, columns, depth_words);
    Vec got;
    for (int i = 0; i < rows * c_row * LANES; i++) got.push_back(element(c, i));
    char name[100];
    std::snprintf(name, sizeof name, "inner %dx%dx%d%s", rows, columns, depth_words, adds ? " added" : "");
    check_close(name, got, want, 1e-6);
    check(element(c, rows * c_row * LANES) == beyond, "  nothing else is written", 0, 0);
}

int main() {
    const int row_counts[] = {1, 2, 3, 4, 5, 7, 13, 32}, depths[] = {1, 2, 12, 30, MAX_DEPTH}, word_counts[] = {1, 2, 3, 8};
    for (int rows : row_counts)
        for (int depth : depths)
            for (int words : word_counts) test_outer(rows, depth, words, (rows + depth) % 2, (depth + words) % 2);
    const int column_counts[] = {1, 2, 3, 4, 12, 15, 16, 17, 33}, depth_words[] = {1, 2, HIDDEN_WORDS};
    for (int rows : row_counts)
        for (int columns : column_counts)
            for (int depth : depth_words) test_inner(rows, columns, depth, (rows + columns) % 2);
    test_outer(3, 0, 2, false, false);  // an empty contraction clears its result
    return finish();
}
