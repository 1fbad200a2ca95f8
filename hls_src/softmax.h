// Softmax over rows of words, for attention and for the losses, in three passes over all rows.
#ifndef BTTLAB_SOFTMAX_H
#define BTTLAB_SOFTMAX_H

#include "elementwise.h"

constexpr int SOFTMAX_ROWS = larger(HEADS * SEQUENCE_LENGTH, SEQUENCE_LENGTH);

// What softmax finds out about a row of `in`: its largest element and where it first stands, and the sum of exp(x -
// maximum).
struct RowFacts {
    float maximum[SOFTMAX_ROWS];
    int argument[SOFTMAX_ROWS];
    float sum[SOFTMAX_ROWS];
};

// The largest of the first `count` lanes by a balanced tree; of equals the first.
static inline void word_maximum(const Word &word, int count, float &maximum, int &argument) {
#pragma HLS INLINE
    float value[LANES];
    int lane[LANES];
Lanes_Unroll:
    for (int l = 0; l < LANES; l++) {
#pragma HLS UNROLL
        value[l] = word[l];
        lane[l] = l;
    }
Levels_Unroll:
    for (int step = 1; step < LANES; step *= 2) {
#pragma HLS UNROLL
    Pairs_Unroll:
        for (int l = 0; l < LANES; l += 2 * step) {
#pragma HLS UNROLL
            if (l + step < count && value[l + step] > value[l]) {
                value[l] = value[l + step];
                lane[l] = lane[l + step];
            }
        }
    }
    maximum = value[0];
    argument = lane[0];
}

// Rows in a memory: `groups` times `group_rows`, groups group_words and rows row_words apart, `words` of each row in use.
struct Rows {
    int groups, group_words, group_rows, row_words, words;
    int count() const { return groups * group_rows; }
};

// Where a loop over all words of all rows stands: one counter of words for the pipeline, which never drains between rows.
struct Place {
    int row = 0, word = 0, row_of_group = 0, group_offset = 0, row_offset = 0;
    int offset() const { return group_offset + row_offset + word; }
    void next(const Rows &rows) {
        if (++word < rows.words) return;
        word = 0, row++, row_offset += rows.row_words;
        if (++row_of_group < rows.group_rows) return;
        row_of_group = row_offset = 0, group_offset += rows.group_words;
    }
};

// The first `count` elements of each row become exp(factor * (x - maximum)) * weight / sum, the rest of their words 0.
static void softmax(Word *memory, RowFacts &facts, const Rows &rows, int count, float factor, float weight) {
    const int words = rows.count() * rows.words;
    Place at;
    loop(words, 2 * COMPARE, READ + 4 * COMPARE + WRITE + START);  // a row's largest so far is needed for its next word
Maximum_Pipeline:
    for (int i = 0; i < words; i++, at.next(rows)) {
#pragma HLS PIPELINE II=2*COMPARE
        float maximum;
        int argument;
        word_maximum(memory[at.offset()], count - at.word * LANES, maximum, argument);
        if (at.word == 0 || maximum > facts.maximum[at.row]) {
            facts.maximum[at.row] = maximum;
            facts.argument[at.row] = at.word * LANES + argument;
        }
    }
    at = Place();
    loop(words, LANES / FUNCTION_LANES, READ + ADD + MUL + EXPONENTIAL + LANE_TREE + ADD + WRITE + START);
Exponential_Pipeline:
    for (int i = 0; i < words; i++, at.next(rows)) {
#pragma HLS PIPELINE II=LANES/FUNCTION_LANES
        const Word x = memory[at.offset()];
        Word value = each_lane<exponential>((x - Word(facts.maximum[at.row])) * Word(factor));
    Tail_Unroll:
        for (int l = 0; l < LANES; l++) {
#pragma HLS UNROLL
            if (at.word * LANES + l >= count) value[l] = 0.0f;
        }
        memory[at.offset()] = value;
        facts.sum[at.row] = (at.word > 0 ? facts.sum[at.row] : 0.0f) + sum_lanes(value);
    }
    at = Place();
    loop(words, 1, READ + DIV + MUL + WRITE + START);
Scale_Pipeline:
    for (int i = 0; i < words; i++, at.next(rows)) {
#pragma HLS PIPELINE II=1
        memory[at.offset()] *= Word(weight / facts.sum[at.row]);
    }
}

// Cross-entropy of rows of `classes` logits with their labels, added up; the rows become the gradients, (softmax -
// target) * weight, and facts.argument the classes that the logits predict. A target is 1 - smoothing for the label, and
// smoothing / classes more for every class (label smoothing); the cross-entropy is told without it.
static float cross_entropy(Word *logits, RowFacts &facts, int row_count, int classes, const int *labels, float weight,
                           float smoothing) {
    const int row_words = words_for(classes);
    const Rows rows = {1, 0, row_count, row_words, row_words};
    const float label_weight = (1.0f - smoothing) * weight, class_weight = smoothing * weight / classes;
    float margin[SEQUENCE_LENGTH], loss = 0.0f;
    loop(row_count, 1, READ + START);
Margin_Pipeline:
    for (int row = 0; row < row_count; row++) {
#pragma HLS PIPELINE II=1
        margin[row] = element(logits, row * row_words * LANES + labels[row]);
    }
    softmax(logits, facts, rows, classes, 1.0f, weight);
    Place at;
    loop(row_count * row_words, 1, READ + ADD + WRITE + START);
Smoothing_Pipeline:
    for (int i = 0; i < row_count * row_words; i++, at.next(rows)) {
#pragma HLS PIPELINE II=1
        Word gradient = logits[i];
    Classes_Unroll:
        for (int l = 0; l < LANES; l++) {
#pragma HLS UNROLL
            if (at.word * LANES + l < classes) gradient[l] -= class_weight;
        }
        logits[i] = gradient;
    }
    loop(row_count, ACCUMULATE, READ + LOGARITHM + ADD + START);
Loss_Pipeline:
    for (int row = 0; row < row_count; row++) {
#pragma HLS PIPELINE II=ACCUMULATE
        const int label = row * row_words * LANES + labels[row];
        set_element(logits, label, element(logits, label) - label_weight);
        loss += logarithm(facts.sum[row]) - (margin[row] - facts.maximum[row]);
    }
    return loss;
}

#endif
