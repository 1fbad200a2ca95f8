// The model in double precision, written from the definitions: matrices are reassembled from their cores, nothing is
// merged, tiled or reused. Parameters are a vector of doubles in the layout of memory.h; gradients come from central
// differences, so that they depend on nothing but these forward formulas.
#ifndef BTTLAB_TESTBENCH_REFERENCE_H
#define BTTLAB_TESTBENCH_REFERENCE_H

#include <functional>

#include <cstddef>

#include "check.h"
#include "memory.h"

// All of a Tensors or Moments as one memory, and where the parts of the first start in it.
template <class Memories>
static Word *flat(Memories &memories) {
    return reinterpret_cast<Word *>(&memories);
}
#define START_OF(name) static_cast<int>(offsetof(Tensors, name) / sizeof(Word))
static int out_cores_at(int linear) { return START_OF(out_cores) + linear * OutHalf::WORDS; }
static int in_cores_at(int linear) { return START_OF(in_cores) + linear * InHalf::WORDS; }
static int bias_at(int linear) { return START_OF(rest) + bias_of(linear); }

namespace reference {

typedef std::vector<Vec> Matrix;

// Element of row `row` of a block of rows of `columns` elements that starts at word `offset`.
static double at(const Vec &memory, int offset, int row, int columns, int column) {
    return memory[(offset + row * words_for(columns)) * LANES + column];
}

// One end of a tensor train, (near middle far) x rank: the product of the three cores' matrices at each index.
template <class H>
static Matrix reassemble_half(const Vec &memory, int cores) {
    Matrix half(H::NEAR * H::MIDDLE * H::FAR, Vec(LINEAR_RANK, 0.0));
    for (int n = 0; n < H::NEAR; n++)
        for (int m = 0; m < H::MIDDLE; m++)
            for (int f = 0; f < H::FAR; f++)
                for (int a = 0; a < LINEAR_RANK; a++)
                    for (int b = 0; b < LINEAR_RANK; b++)
                        for (int c = 0; c < LINEAR_RANK; c++)
                            half[(n * H::MIDDLE + m) * H::FAR + f][a] +=
                                at(memory, cores, a * H::NEAR + n, LINEAR_RANK, b) *
                                at(memory, cores + H::MIDDLE_CORE, b * H::MIDDLE + m, LINEAR_RANK, c) *
                                at(memory, cores + H::FAR_CORE, c, H::FAR, f);
    return half;
}

// W (HIDDEN_SIZE x HIDDEN_SIZE) of a TT linear layer.
static Matrix tt_matrix(const Vec &memory, int linear) {
    const Matrix out = reassemble_half<OutHalf>(memory, out_cores_at(linear));
    const Matrix in = reassemble_half<InHalf>(memory, in_cores_at(linear));
    Matrix w(HIDDEN_SIZE, Vec(HIDDEN_SIZE, 0.0));
    for (int i1 = 0; i1 < OUT_MODE_1; i1++)
        for (int i2 = 0; i2 < OUT_MODE_2; i2++)
            for (int i3 = 0; i3 < OUT_MODE_3; i3++) {
                const Vec &left = out[(i3 * OUT_MODE_2 + i2) * OUT_MODE_1 + i1];
                Vec &row = w[(i1 * OUT_MODE_2 + i2) * OUT_MODE_3 + i3];
                for (int j = 0; j < HIDDEN_SIZE; j++)
                    for (int a = 0; a < LINEAR_RANK; a++) row[j] += left[a] * in[j][a];
            }
    return w;
}

static Vec linear(const Vec &memory, int number, const Vec &x, int tokens) {
    const Matrix w = tt_matrix(memory, number);
    Vec y(tokens * HIDDEN_SIZE);
    for (int t = 0; t < tokens; t++)
        for (int i = 0; i < HIDDEN_SIZE; i++) {
            double sum = at(memory, bias_at(number), 0, HIDDEN_SIZE, i);
            for (int j = 0; j < HIDDEN_SIZE; j++) sum += w[i][j] * x[t * HIDDEN_SIZE + j];
            y[t * HIDDEN_SIZE + i] = sum;
        }
    return y;
}

static Vec layer_norm(const Vec &memory, int norm, const Vec &x, int tokens) {
    Vec y(x.size());
    for (int t = 0; t < tokens; t++) {
        double mean = 0, variance = 0;
        for (int i = 0; i < HIDDEN_SIZE; i++) mean += x[t * HIDDEN_SIZE + i] / HIDDEN_SIZE;
        for (int i = 0; i < HIDDEN_SIZE; i++) variance += std::pow(x[t * HIDDEN_SIZE + i] - mean, 2) / HIDDEN_SIZE;
        for (int i = 0; i < HIDDEN_SIZE; i++)
            y[t * HIDDEN_SIZE + i] = (x[t * HIDDEN_SIZE + i] - mean) / std::sqrt(variance + 1e-5) *
                                         at(memory, norm + NORM_SCALE, 0, HIDDEN_SIZE, i) +
                                     at(memory, norm + NORM_SHIFT, 0, HIDDEN_SIZE, i);
    }
    return y;
}

static Vec gelu(Vec x) {
    for (double &value : x) value *= 0.5 * std::erfc(-value / std::sqrt(2.0));
    return x;
}

static Vec attention(const Vec &q, const Vec &k, const Vec &v, int tokens) {
    Vec out(q.size(), 0.0);
    for (int head = 0; head < HEADS; head++)
        for (int t = 0; t < tokens; t++) {
            Vec p(tokens);
            double sum = 0;
            for (int s = 0; s < tokens; s++) {
                double score = 0;
                for (int i = head * HEAD_SIZE; i < (head + 1) * HEAD_SIZE; i++)
                    score += q[t * HIDDEN_SIZE + i] * k[s * HIDDEN_SIZE + i];
                sum += p[s] = std::exp(score / std::sqrt(double(HEAD_SIZE)));
            }
            for (int s = 0; s < tokens; s++)
                for (int i = head * HEAD_SIZE; i < (head + 1) * HEAD_SIZE; i++)
                    out[t * HIDDEN_SIZE + i] += p[s] / sum * v[s * HIDDEN_SIZE + i];
        }
    return out;
}

static Vec plus(Vec a, const Vec &b) {
    for (size_t i = 0; i < a.size(); i++) a[i] += b[i];
    return a;
}

static Vec encoder(const Vec &memory, int e, const Vec &x, int tokens) {
    const int first_linear = LINEARS_PER_ENCODER * e;
    const Vec context =
        attention(linear(memory, first_linear + QUERY, x, tokens), linear(memory, first_linear + KEY, x, tokens),
                  linear(memory, first_linear + VALUE, x, tokens), tokens);
    const Vec h = layer_norm(memory, START_OF(rest) + attention_norm(e),
                             plus(x, linear(memory, first_linear + OUTPUT, context, tokens)),
                             tokens);
    const Vec inner = gelu(linear(memory, first_linear + FIRST, h, tokens));
    return layer_norm(memory, START_OF(rest) + feed_forward_norm(e),
                      plus(h, linear(memory, first_linear + SECOND, inner, tokens)),
                      tokens);
}

static Vec embedding(const Vec &memory, const int *token_ids, int tokens) {
    Vec sum(tokens * HIDDEN_SIZE, 0.0);
    for (int t = 0; t < tokens; t++) {
        const int i1 = token_ids[t] / (ROW_MODE_2 * ROW_MODE_3), i2 = token_ids[t] / ROW_MODE_3 % ROW_MODE_2,
                  i3 = token_ids[t] % ROW_MODE_3;
        for (int j1 = 0; j1 < COLUMN_MODE_1; j1++)
            for (int j2 = 0; j2 < COLUMN_MODE_2; j2++)
                for (int j3 = 0; j3 < COLUMN_MODE_3; j3++) {
                    const int column = (j1 * COLUMN_MODE_2 + j2) * COLUMN_MODE_3 + j3;
                    double &value = sum[t * HIDDEN_SIZE + column];
                    value = at(memory, START_OF(rest) + POSITION, t, HIDDEN_SIZE, column);
                    for (int a = 0; a < EMBEDDING_RANK; a++)
                        for (int b = 0; b < EMBEDDING_RANK; b++)
                            value += at(memory, START_OF(word_1), i1 * COLUMN_MODE_1 + j1, EMBEDDING_RANK, a) *
                                     at(memory, START_OF(word_2), (i2 * EMBEDDING_RANK + a) * COLUMN_MODE_2 + j2,
                                        EMBEDDING_RANK, b) *
                                     at(memory, START_OF(word_3), i3 * COLUMN_MODE_3 + j3, EMBEDDING_RANK, b);
                }
    }
    return layer_norm(memory, START_OF(rest) + EMBEDDING_NORM, sum, tokens);
}

// With label smoothing: (1 - smoothing) times that with the label, and smoothing times the mean of that with every class.
static double cross_entropy(const Vec &logits, int label, double smoothing) {
    double sum = 0, mean = 0;
    for (double logit : logits) sum += std::exp(logit), mean += logit / logits.size();
    return std::log(sum) - (1 - smoothing) * logits[label] - smoothing * mean;
}

// Logits of one row x (HIDDEN_SIZE) through a pooler and a dense head.
static Vec head(const Vec &memory, const Vec &x, int pooler, int offset, int classes) {
    const Vec pooled = linear(memory, pooler, x, 1);
    Vec logits(classes);
    for (int c = 0; c < classes; c++) {
        logits[c] = at(memory, offset + classes * HIDDEN_WORDS, 0, classes, c);
        for (int i = 0; i < HIDDEN_SIZE; i++) logits[c] += at(memory, offset, c, HIDDEN_SIZE, i) * std::tanh(pooled[i]);
    }
    return logits;
}

// Loss of a sample through the whole model.
static double loss(const Vec &memory, const int *token_ids, const int *slots, int intent, int tokens,
                   double smoothing) {
    Vec x = embedding(memory, token_ids, tokens);
    for (int e = 0; e < ENCODERS; e++) x = encoder(memory, e, x, tokens);
    double total = cross_entropy(
        head(memory, Vec(x.begin(), x.begin() + HIDDEN_SIZE), INTENT_POOLER, START_OF(rest) + INTENT_HEAD, INTENTS),
        intent, smoothing);
    for (int t = 1; t < tokens; t++)
        total += cross_entropy(head(memory, Vec(x.begin() + t * HIDDEN_SIZE, x.begin() + (t + 1) * HIDDEN_SIZE),
                                    SLOT_POOLER, START_OF(rest) + SLOT_HEAD, SLOTS),
                               slots[t], smoothing) /
                 (tokens - 1);
    return total;
}

// Gradient of a scalar function at the given indices, by central differences.
static Vec gradient(const std::function<double(const Vec &)> &function, Vec at_point, const std::vector<int> &indices) {
    Vec slope;
    for (int i : indices) {
        const double centre = at_point[i], step = 1e-5;
        at_point[i] = centre + step;
        const double above = function(at_point);
        at_point[i] = centre - step;
        slope.push_back((above - function(at_point)) / (2 * step));
        at_point[i] = centre;
    }
    return slope;
}

}  // namespace reference

#endif
