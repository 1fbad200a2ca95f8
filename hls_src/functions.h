// Transcendental functions, in the source so that every host and the card compute the same bits. FP32, no branches; each
// names its error against the exact function, measured by testbench/test_functions.cpp.
#ifndef BTTLAB_FUNCTIONS_H
#define BTTLAB_FUNCTIONS_H

#include <cmath>

#include "word.h"

static inline int bits_of(float value) {
    union {
        float value;
        int bits;
    } view = {value};
    return view.bits;
}

static inline float float_of(int bits) {
    union {
        int bits;
        float value;
    } view = {bits};
    return view.value;
}

static inline bool is_finite(float value) { return (bits_of(value) & 0x7f800000) != 0x7f800000; }

static inline float clamp(float x, float low, float high) {
    x = x < low ? low : x;
    return x > high ? high : x;
}

// e^x for x in [-87, 88], clamped outside; relative error below 2e-7.
static inline float exponential(float x) {
    x = clamp(x, -87.0f, 88.0f);
    // x = n ln 2 + r: adding 1.5 * 2^23 leaves round(x / ln 2) in the low bits; ln 2 in two parts keeps r exact.
    const float shifted = x * 1.442695041f + 12582912.0f;
    const float n = shifted - 12582912.0f;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float series = 1.0f / 5040.0f;  // Taylor: |r| < 0.347
    series = series * r + 1.0f / 720.0f;
    series = series * r + 1.0f / 120.0f;
    series = series * r + 1.0f / 24.0f;
    series = series * r + 1.0f / 6.0f;
    series = series * r + 0.5f;
    series = series * r + 1.0f;
    series = series * r + 1.0f;
    const unsigned power = (static_cast<unsigned>(bits_of(shifted)) << 23) + 0x3f800000u;  // the bits of 2^n
    return series * float_of(static_cast<int>(power));
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

// tanh x; absolute error below 2e-7.
static inline float hyperbolic_tangent(float x) {
    const float decay = exponential(-2.0f * std::fabs(x));
    const float magnitude = (1.0f - decay) / (1.0f + decay);
    return x < 0.0f ? -magnitude : magnitude;
}

// Phi(x), the standard normal distribution: GELU(x) = x Phi(x). Absolute error below 1e-7.
static inline float normal_distribution(float x) {
    // Phi(-a) = exp(q(a)) / 2; q fits ln(2 Phi(-a)) on [0, 6], where Phi(-6) is 1e-9 already.
    const float a = clamp(std::fabs(x), 0.0f, 6.0f);
    float q = 1.6722686e-07f;
    q = q * a - 3.877098e-06f;
    q = q * a + 3.5876437e-05f;
    q = q * a - 1.4841388e-04f;
    q = q * a - 7.160468e-05f;
    q = q * a + 4.881415e-03f;
    q = q * a - 3.6383417e-02f;
    q = q * a - 3.182992e-01f;
    q = q * a - 7.9788536e-01f;
    const float tail = 0.5f * exponential(q * a);
    return x < 0.0f ? tail : 1.0f - tail;
}

// phi(x), the standard normal density: GELU'(x) = Phi(x) + x phi(x).
static inline float normal_density(float x) { return 0.39894228f * exponential(-0.5f * x * x); }

// The same for every lane of a word.
template <float FUNCTION(float)>
static inline Word each_lane(const Word &x) {
#pragma HLS INLINE
    float value[LANES];
#pragma HLS ARRAY_PARTITION variable=value complete
Read_Unroll:
    for (int l = 0; l < LANES; l++) {
#pragma HLS UNROLL
        value[l] = x[l];
    }
Function_Unroll:
    for (int l = 0; l < LANES; l++) {
#pragma HLS UNROLL
        value[l] = FUNCTION(value[l]);
    }
    Word y;
Write_Unroll:
    for (int l = 0; l < LANES; l++) {
#pragma HLS UNROLL
        y[l] = value[l];
    }
    return y;
}

#endif
