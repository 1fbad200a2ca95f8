// The units beside the engine: what is computed element by element or row by row. A matrix of activations is
// (tokens, HIDDEN_SIZE), HIDDEN_WORDS words a row; only real tokens are visited.
#ifndef BTTLAB_ELEMENTWISE_H
#define BTTLAB_ELEMENTWISE_H

#include "cycles.h"
#include "functions.h"
#include "shape.h"

static void clear(Word *out, int words) {
    loop(words, 1, START);
Clear_Pipeline:
    for (int i = 0; i < words; i++) {
#pragma HLS PIPELINE II=1
        out[i] = Word(0.0f);
    }
}

static void copy(Word *out, const Word *in, int words) {
    loop(words, 1, READ + START);
Copy_Pipeline:
    for (int i = 0; i < words; i++) {
#pragma HLS PIPELINE II=1
        out[i] = in[i];
    }
}

// out += in
static void add(Word *out, const Word *in, int words) {
    loop(words, 1, READ + ADD + START);
Add_Pipeline:
    for (int i = 0; i < words; i++) {
#pragma HLS PIPELINE II=1
        out[i] += in[i];
    }
}

// Every row of out (rows x row_words) becomes the bias (row_words).
static void bias_forward(Word *out, const Word *bias, int rows, int row_words) {
    loop(rows * row_words, 1, READ + START);
Rows:
    for (int row = 0; row < rows; row++) {
    Bias_Pipeline:
        for (int w = 0; w < row_words; w++) {
#pragma HLS PIPELINE II=1
            out[row * row_words + w] = bias[w];
        }
    }
}

// d_bias (row_words) = sum of the rows of d_out (rows x row_words)
static void bias_backward(Word *d_bias, const Word *d_out, int rows, int row_words) {
    spend(row_words * (rows * ACCUMULATE + READ + START));
Words:
    for (int w = 0; w < row_words; w++) {
        Word sum(0.0f);
    Bias_Pipeline:
        for (int row = 0; row < rows; row++) {
#pragma HLS PIPELINE
            sum += d_out[row * row_words + w];
        }
        d_bias[w] = sum;
    }
}

// out (tokens, HIDDEN_SIZE) = in * Phi(in)
static void gelu_forward(Word *out, const Word *in, int words) {
    const Meter meter(FP, GELU);
    loop(words, 1, READ + DISTRIBUTION + MUL + START);
Gelu_Pipeline:
    for (int i = 0; i < words; i++) {
#pragma HLS PIPELINE II=1
        out[i] = in[i] * each_lane<normal_distribution>(in[i]);
    }
}

// d_in = d_out * (Phi(in) + in phi(in)), written over d_out
static void gelu_backward(Word *d_in, const Word *in, int words) {
    const Meter meter(BP, GELU);
    loop(words, 1, READ + DISTRIBUTION + ADD + MUL + START);
Gelu_Pipeline:
    for (int i = 0; i < words; i++) {
#pragma HLS PIPELINE II=1
        d_in[i] *= each_lane<normal_distribution>(in[i]) + in[i] * each_lane<normal_density>(in[i]);
    }
}

static void tanh_forward(Word *out, int words) {
    loop(words, 1, READ + TANGENT + START);
Tanh_Pipeline:
    for (int i = 0; i < words; i++) {
#pragma HLS PIPELINE II=1
        out[i] = each_lane<hyperbolic_tangent>(out[i]);
    }
}

// d_in = d_out * (1 - out^2), written over d_out
static void tanh_backward(Word *d_in, const Word *out, int words) {
    loop(words, 1, READ + MUL + ADD + MUL + START);
Tanh_Pipeline:
    for (int i = 0; i < words; i++) {
#pragma HLS PIPELINE II=1
        d_in[i] *= Word(1.0f) - out[i] * out[i];
    }
}

// out = normalized * scale + shift with normalized = (in - mean) * inverse_std, mean and std over each token's features.
static void layer_norm_forward(Word *out, Word *normalized, float *inverse_std, const Word *in, const Word *norm,
                               int tokens) {
    const Meter meter(FP, NORM);
    const Word *scale = norm, *shift = norm + HIDDEN_WORDS;
    spend(tokens * (HIDDEN_WORDS * ACCUMULATE + READ + START + LANE_TREE + DIV));  // Mean
    spend(tokens * (HIDDEN_WORDS * ACCUMULATE + READ + ADD + MUL + START + LANE_TREE + DIV + ADD + ROOT + DIV));  // Variance
    spend(tokens * (HIDDEN_WORDS + READ + 2 * ADD + 2 * MUL + START));  // Scale
Tokens:
    for (int t = 0; t < tokens; t++) {
        const Word *row = in + t * HIDDEN_WORDS;
        Word sum(0.0f);
    Mean_Pipeline:
        for (int w = 0; w < HIDDEN_WORDS; w++) {
#pragma HLS PIPELINE
            sum += row[w];
        }
        const Word mean(sum_lanes(sum) / HIDDEN_SIZE);
        Word squares(0.0f);
    Variance_Pipeline:
        for (int w = 0; w < HIDDEN_WORDS; w++) {
#pragma HLS PIPELINE
            const Word centred = row[w] - mean;
            squares += centred * centred;
        }
        inverse_std[t] = 1.0f / std::sqrt(sum_lanes(squares) / HIDDEN_SIZE + 1e-5f);
        const Word factor(inverse_std[t]);
    Scale_Pipeline:
        for (int w = 0; w < HIDDEN_WORDS; w++) {
#pragma HLS PIPELINE II=1
            const Word value = (row[w] - mean) * factor;
            normalized[t * HIDDEN_WORDS + w] = value;
            out[t * HIDDEN_WORDS + w] = value * scale[w] + shift[w];
        }
    }
}

// With d = d_out * scale: d_in = (d - mean(d) - normalized * mean(d * normalized)) * inverse_std, written over d_out;
// d_scale = sum over tokens of d_out * normalized, d_shift = sum over tokens of d_out.
static void layer_norm_backward(Word *d_in, Word *d_norm, const Word *normalized, const float *inverse_std,
                                const Word *norm, int tokens) {
    const Word *scale = norm;
    Word *d_scale = d_norm, *d_shift = d_norm + HIDDEN_WORDS;
    const Meter meter(BP, NORM);
    clear(d_norm, 2 * HIDDEN_WORDS);
    spend(tokens * (HIDDEN_WORDS * ACCUMULATE + READ + 2 * MUL + START + LANE_TREE + DIV));  // Sums
    spend(tokens * (HIDDEN_WORDS + READ + MUL + 2 * ADD + MUL + START));  // Scale
Tokens:
    for (int t = 0; t < tokens; t++) {
        Word *row = d_in + t * HIDDEN_WORDS;
        const Word *unit = normalized + t * HIDDEN_WORDS;
        Word sum(0.0f), projection(0.0f);
    Sums_Pipeline:
        for (int w = 0; w < HIDDEN_WORDS; w++) {
#pragma HLS PIPELINE
            d_scale[w] += row[w] * unit[w];
            d_shift[w] += row[w];
            row[w] *= scale[w];
            sum += row[w];
            projection += row[w] * unit[w];
        }
        const Word mean(sum_lanes(sum) / HIDDEN_SIZE), slope(sum_lanes(projection) / HIDDEN_SIZE);
        const Word factor(inverse_std[t]);
    Scale_Pipeline:
        for (int w = 0; w < HIDDEN_WORDS; w++) {
#pragma HLS PIPELINE II=1
            row[w] = (row[w] - mean - unit[w] * slope) * factor;
        }
    }
}

// The largest of the first `count` elements of a row of words.
static float row_maximum(const Word *row, int count) {
    loop(count - 1, COMPARE, READ + START);
    float maximum = row[0][0];
Maximum_Pipeline:
    for (int i = 1; i < count; i++) {
#pragma HLS PIPELINE II=1
        const float value = element(row, i);
        maximum = value > maximum ? value : maximum;
    }
    return maximum;
}

// The first `count` elements of the row become exp(factor * (x - maximum)), the rest of its words 0; returns their sum.
static float row_exponential(Word *row, int count, float factor, float maximum) {
    Word sum(0.0f);
    loop(words_for(count), ACCUMULATE, READ + ADD + MUL + EXPONENTIAL + START + LANE_TREE);
Words:
    for (int w = 0; w < words_for(count); w++) {
        Word value = each_lane<exponential>((row[w] - Word(maximum)) * Word(factor));
    Tail_Unroll:
        for (int l = 0; l < LANES; l++) {
#pragma HLS UNROLL
            if (w * LANES + l >= count) value[l] = 0.0f;
        }
        row[w] = value;
        sum += value;
    }
    return sum_lanes(sum);
}

static void scale_row(Word *row, int words, float factor) {
    loop(words, 1, READ + MUL + START);
Scale_Pipeline:
    for (int w = 0; w < words; w++) {
#pragma HLS PIPELINE II=1
        row[w] *= Word(factor);
    }
}

// Cross-entropy of a row of `classes` logits with its label; the row becomes the gradient, (softmax - one-hot) * weight.
static float cross_entropy(Word *row, int classes, int label, float weight) {
    spend(DIV + LOGARITHM + ADD);
    const float maximum = row_maximum(row, classes);
    const float margin = element(row, label) - maximum;
    const float sum = row_exponential(row, classes, 1.0f, maximum);
    scale_row(row, words_for(classes), weight / sum);
    set_element(row, label, element(row, label) - weight);
    return logarithm(sum) - margin;
}

// Index of the largest of the first `count` elements, the first of equals.
static int row_argument_maximum(const Word *row, int count) {
    loop(count - 1, READ + COMPARE, START);
    int best = 0;
Argmax_Pipeline:
    for (int i = 1; i < count; i++) {
#pragma HLS PIPELINE II=1
        if (element(row, i) > element(row, best)) best = i;
    }
    return best;
}

#endif
