// A vector in the host's registers: one AVX-512 or two AVX registers. Arithmetic is element by element, so the bits do not
// depend on the register width. The plain Vector of vector.h would be kept in memory by compilers where registers are
// narrower.
#ifndef BTTLAB_PROCESSOR_EMULATION_LANES_H
#define BTTLAB_PROCESSOR_EMULATION_LANES_H

#include <immintrin.h>

#include "../vector.h"

#if defined(__AVX512F__)
constexpr int REGISTER_BYTES = 64;
#else
constexpr int REGISTER_BYTES = 32;
#endif
constexpr bool HAS_PERMUTES = REGISTER_BYTES == 64;  // of two vectors
constexpr int PARTS = 4 * LANES / REGISTER_BYTES;

typedef float Part __attribute__((vector_size(REGISTER_BYTES), may_alias));
typedef int IntPart __attribute__((vector_size(REGISTER_BYTES), may_alias));
typedef unsigned UnsignedPart __attribute__((vector_size(REGISTER_BYTES), may_alias));

struct Lanes {
    Part part[PARTS];
};

#define LANE_BY_LANE(name, expression)                             \
    static inline Lanes name(const Lanes &a, const Lanes &b) {     \
        Lanes result;                                              \
        UNROLL                                                     \
        for (int i = 0; i < PARTS; i++) result.part[i] = expression; \
        return result;                                             \
    }
LANE_BY_LANE(operator+, a.part[i] + b.part[i])
LANE_BY_LANE(operator-, a.part[i] - b.part[i])
LANE_BY_LANE(operator*, a.part[i] * b.part[i])
LANE_BY_LANE(operator/, a.part[i] / b.part[i])
LANE_BY_LANE(operator&, (Part)((IntPart)a.part[i] & (IntPart)b.part[i]))
LANE_BY_LANE(operator|, (Part)((IntPart)a.part[i] | (IntPart)b.part[i]))

static inline Lanes load(const Vector *vector) {
    Lanes result;
    UNROLL
    for (int i = 0; i < PARTS; i++) result.part[i] = reinterpret_cast<const Part *>(vector)[i];
    return result;
}

// Loads a vector that is used several times, and stops the compiler from reloading it for each use.
static inline Lanes load_once(const Vector *vector) {
    Lanes result = load(vector);
#if defined(__AVX512F__)
    __asm__("" : "+v"(result.part[0]));
#endif
    return result;
}

static inline void store(Vector *vector, const Lanes &value) {
    UNROLL
    for (int i = 0; i < PARTS; i++) reinterpret_cast<Part *>(vector)[i] = value.part[i];
}

template <>
inline Lanes splat<Lanes>(float value) {
    Lanes result;
    UNROLL
    for (int i = 0; i < PARTS; i++) result.part[i] = splat<Part>(value);
    return result;
}

ALWAYS_INLINE Lanes choose(bool first, const Lanes &one, const Lanes &other) {
    Lanes chosen;
    UNROLL
    for (int i = 0; i < PARTS; i++) chosen.part[i] = first ? one.part[i] : other.part[i];
    return chosen;
}

// Joins two halves of eight lanes.
static inline Lanes join(__m256 low, __m256 high) {
    Lanes result;
#if defined(__AVX512F__)
    result.part[0] = _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
#else
    result.part[0] = low;
    result.part[1] = high;
#endif
    return result;
}

// Joins four elements from each address.
static inline __m256 join(const float *low, const float *high) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high), 1);
}

static inline Lanes join(const float *first, const float *second, const float *third, const float *fourth) {
#if defined(__AVX512F__)
    const __m512 three = _mm512_insertf32x4(_mm512_castps256_ps512(join(first, second)), _mm_loadu_ps(third), 2);
    return {{_mm512_insertf32x4(three, _mm_loadu_ps(fourth), 3)}};
#else
    return {{join(first, second), join(third, fourth)}};
#endif
}

// Transposes blocks of 4 x 4 elements: each quarter of four rows.
static inline void transpose(const __m256 *row, __m256 *column) {
    const __m256 front = _mm256_unpacklo_ps(row[0], row[1]), back = _mm256_unpacklo_ps(row[2], row[3]);
    const __m256 third = _mm256_unpackhi_ps(row[0], row[1]), fourth = _mm256_unpackhi_ps(row[2], row[3]);
    column[0] = _mm256_shuffle_ps(front, back, 0x44);
    column[1] = _mm256_shuffle_ps(front, back, 0xee);
    column[2] = _mm256_shuffle_ps(third, fourth, 0x44);
    column[3] = _mm256_shuffle_ps(third, fourth, 0xee);
}

static inline void transpose(const Lanes *row, Lanes *column) {
#if defined(__AVX512F__)
    const auto low = [&](int i) { return _mm512_maskz_unpacklo_ps(0xffff, row[i].part[0], row[i + 1].part[0]); };
    const auto high = [&](int i) { return _mm512_maskz_unpackhi_ps(0xffff, row[i].part[0], row[i + 1].part[0]); };
    const __m512 front = low(0), back = low(2), third = high(0), fourth = high(2);
    column[0] = {{_mm512_maskz_shuffle_ps(0xffff, front, back, 0x44)}};
    column[1] = {{_mm512_maskz_shuffle_ps(0xffff, front, back, 0xee)}};
    column[2] = {{_mm512_maskz_shuffle_ps(0xffff, third, fourth, 0x44)}};
    column[3] = {{_mm512_maskz_shuffle_ps(0xffff, third, fourth, 0xee)}};
#else
    UNROLL
    for (int i = 0; i < PARTS; i++) {
        const __m256 own[4] = {row[0].part[i], row[1].part[i], row[2].part[i], row[3].part[i]};
        __m256 of[4];
        transpose(own, of);
        UNROLL
        for (int c = 0; c < 4; c++) column[c].part[i] = of[c];
    }
#endif
}

#if defined(__AVX512F__)
// Selects lanes of two vectors: LANES + l is lane l of the second one. Zero where a bit of `is_some` is not set.
static inline Lanes permute(const Lanes &a, const Lanes &b, __m512i lanes, int is_some = 0xffff) {
    return {{_mm512_maskz_permutex2var_ps(static_cast<__mmask16>(is_some), a.part[0], lanes, b.part[0])}};
}
#endif

typedef float Element __attribute__((may_alias));

static inline const Element *scalars_of(const Vector *vector) { return reinterpret_cast<const Element *>(vector); }

static inline float scalar_of(const Vector *vector, int l) { return scalars_of(vector)[l]; }

alignas(REGISTER_BYTES) static const int LANE_NUMBERS[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// A vector times a scalar in memory. The multiplication itself broadcasts the scalar: a broadcast that serves several of them,
// which compilers prefer, takes the time of another operation on AMD Zen 4.
ALWAYS_INLINE Lanes times_scalar(const Lanes &value, const Element *scalar) {
#if defined(__AVX512F__)
    Lanes product;
    __asm__("vmulps %2%{1to16%}, %1, %0" : "=v"(product.part[0]) : "v"(value.part[0]), "m"(*scalar));
    return product;
#else
    return value * splat<Lanes>(*scalar);
#endif
}

// A mask of the first `count` lanes, for &.
static inline Lanes first_lanes(int count) {
    Lanes mask;
    UNROLL
    for (int i = 0; i < PARTS; i++) mask.part[i] = (Part)(reinterpret_cast<const IntPart *>(LANE_NUMBERS)[i] < count);
    return mask;
}

// A mask of the lanes whose bits are set, for &.
static inline Lanes some_lanes(int bits) {
    Lanes mask;
    UNROLL
    for (int i = 0; i < PARTS; i++) {
        const IntPart own = 1 << reinterpret_cast<const IntPart *>(LANE_NUMBERS)[i];
        mask.part[i] = (Part)((own & bits) == own);
    }
    return mask;
}

// The vector with zeros in all lanes but one, which may be out of range.
static inline Lanes one_lane(const Lanes &value, int lane) {
    Lanes mask;
    UNROLL
    for (int i = 0; i < PARTS; i++) mask.part[i] = (Part)(reinterpret_cast<const IntPart *>(LANE_NUMBERS)[i] == lane);
    return value & mask;
}

// Overflow marks, accumulated over vectors: set in lanes whose magnitude reached that of `limit`'s bits, or that were NaN.
struct Marks {
    IntPart lane;
};

static inline void mark_overflow(Marks &marks, const Lanes &value, int limit) {
    UNROLL
    for (int i = 0; i < PARTS; i++) marks.lane |= ((IntPart)value.part[i] & 0x7fffffff) >= limit;
}

static inline bool any_mark(const Marks &marks) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)marks.lane, (__m512i)marks.lane);
#else
    return !_mm256_testz_si256((__m256i)marks.lane, (__m256i)marks.lane);
#endif
}

// The largest lane; no lane is NaN.
static inline float largest_value(const Lanes &value) {
    typedef float Half __attribute__((vector_size(32), may_alias));
    const Half *half = reinterpret_cast<const Half *>(&value);
    const __m256 eight = _mm256_max_ps(half[0], half[1]);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

// A bit for each lane that equals a number.
static inline int lanes_equal(const Lanes &value, float number) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask(value.part[0], splat<Part>(number), _CMP_EQ_OQ);
#else
    const auto bits = [&](int i) { return _mm256_movemask_ps(_mm256_cmp_ps(value.part[i], splat<Part>(number), _CMP_EQ_OQ)); };
    return bits(0) | bits(1) << 8;
#endif
}

// Combines lane l with lane l + 8, then l + 4, l + 2, l + 1.
static inline float tree_of(const Lanes &value) {
    typedef float Half __attribute__((vector_size(32), may_alias));
    typedef float Quarter __attribute__((vector_size(16), may_alias));
    const Half *half = reinterpret_cast<const Half *>(&value);
    const Half eight = half[0] + half[1];
    const Quarter *quarter = reinterpret_cast<const Quarter *>(&eight);
    const Quarter four = quarter[0] + quarter[1];
    return (four[0] + four[2]) + (four[1] + four[3]);
}

// The adder trees of USED vectors, whose lanes come first: as many as fit share a register, so that every addition uses all lanes.
#if defined(__AVX512F__)
// Adds lane pairs of two registers at a time: one term of each sum comes from a blend, the other from a shuffle.
static inline __m512 add_halves(__m512 a, __m512 b) {  // to a half of a, a half of b
    return _mm512_mask_blend_ps(0xff00, a, b) + _mm512_maskz_shuffle_f32x4(0xffff, a, b, 0x4e);
}

static inline __m512 add_quarters(__m512 a, __m512 b) {  // to quarters of a, b, a, b
    const __m512i other = _mm512_setr_epi32(4, 5, 6, 7, 16, 17, 18, 19, 12, 13, 14, 15, 24, 25, 26, 27);
    return _mm512_mask_blend_ps(0xf0f0, a, b) + _mm512_permutex2var_ps(a, other, b);
}

static inline __m512 add_pairs(__m512 a, __m512 b) {  // in each quarter, to a pair of a, a pair of b
    return _mm512_mask_blend_ps(0xcccc, a, b) + _mm512_maskz_shuffle_ps(0xffff, a, b, 0x4e);
}

static inline __m512 add_lanes(__m512 a, __m512 b) {  // in each quarter, to two lanes of a, two of b
    return _mm512_maskz_shuffle_ps(0xffff, a, b, 0x88) + _mm512_maskz_shuffle_ps(0xffff, a, b, 0xdd);
}

static inline __m512 add_own_halves(__m512 a) { return a + _mm512_maskz_shuffle_f32x4(0xffff, a, a, 0x4e); }

template <int USED>
static inline Lanes trees(const Lanes *vectors) {
    const auto row = [&](int r) { return vectors[r < USED ? r : 0].part[0]; };
    __m512 four[4];  // of rows g, g + 4, g + 8, g + 12: a quarter of a register each
    UNROLL
    for (int g = 0; g < 4; g++) {
        const auto half = [&](int r) { return r + 8 < USED ? add_halves(row(r), row(r + 8)) : add_own_halves(row(r)); };
        four[g] = add_quarters(half(g), half(g + 4));
    }
    return {{add_lanes(add_pairs(four[0], four[1]), add_pairs(four[2], four[3]))}};
}

// Of eight vectors: those of 0, 4, 2, 6, 1, 5, 3, 7 are lanes 0, 1, 4, 5, 8, 9, 12, 13.
static inline __m512 trees_of_eight(const Lanes *vectors) {
    __m512 half[4];
    UNROLL
    for (int i = 0; i < 4; i++) half[i] = add_halves(vectors[2 * i].part[0], vectors[2 * i + 1].part[0]);
    const __m512 pairs = add_pairs(add_quarters(half[0], half[1]), add_quarters(half[2], half[3]));
    return add_lanes(pairs, pairs);
}

// The adder trees of two points with USED vectors each: those of the second point fill the registers of the first.
template <int USED>
static inline void trees_of_two(const Lanes (&vectors)[2][USED], Lanes (&result)[2]) {
    constexpr int LEFT = 2 * USED > LANES ? 2 * USED - LANES : 0;  // of the second point
    static_assert(USED <= LANES && LEFT <= LANES / 2, "they fit a register and a half");
    Lanes all[LANES], rest[LANES / 2];
    UNROLL
    for (int i = 0; i < LANES; i++) all[i] = i < 2 * USED ? vectors[i / USED][i % USED] : Lanes{};
    UNROLL
    for (int i = 0; i < LANES / 2; i++) rest[i] = vectors[1][i < LEFT ? USED - LEFT + i : 0];
    result[0] = trees<2 * USED < LANES ? 2 * USED : LANES>(all);
    static constexpr int LANE_OF_EIGHT[LANES / 2] = {0, 8, 4, 12, 1, 9, 5, 13};
    alignas(REGISTER_BYTES) static constexpr auto lane = [] {
        struct Table {
            int of[LANES];
        } table = {};
        for (int l = 0; l < USED; l++) table.of[l] = l < USED - LEFT ? USED + l : LANES + LANE_OF_EIGHT[(l - (USED - LEFT)) % 8];
        return table;
    }();
    const Lanes second = LEFT ? Lanes{{trees_of_eight(rest)}} : result[0];
    result[1] = permute(result[0], second, _mm512_load_si512(lane.of));
}
#else
typedef float Eight __attribute__((vector_size(32), may_alias));

// Selects lanes of a (0 to 7) and b (8 to 15).
template <int... LANE>
static inline Eight pick(const Eight &a, const Eight &b) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, LANE...);
#else  // g++ has that from version 12 only
    typedef int Choice __attribute__((vector_size(32)));
    return __builtin_shuffle(a, b, Choice{LANE...});
#endif
}

template <int USED>
static inline Lanes trees(const Lanes *vectors) {
    Eight half[LANES], sum[2];
    UNROLL
    for (int i = 0; i < LANES; i++) half[i] = vectors[i < USED ? i : 0].part[0] + vectors[i < USED ? i : 0].part[1];
    UNROLL
    for (int group = 0; group < 2; group++) {
        Eight quarter[4], pair[2];
        UNROLL
        for (int i = 0; i < 4; i++) {
            const Eight a = half[8 * group + i], b = half[8 * group + i + 4];
            quarter[i] = pick<0, 1, 2, 3, 8, 9, 10, 11>(a, b) + pick<4, 5, 6, 7, 12, 13, 14, 15>(a, b);
        }
        UNROLL
        for (int i = 0; i < 2; i++) {
            const Eight a = quarter[2 * i], b = quarter[2 * i + 1];
            pair[i] = pick<0, 1, 8, 9, 4, 5, 12, 13>(a, b) + pick<2, 3, 10, 11, 6, 7, 14, 15>(a, b);
        }
        sum[group] = pick<0, 2, 8, 10, 4, 6, 12, 14>(pair[0], pair[1]) +
                     pick<1, 3, 9, 11, 5, 7, 13, 15>(pair[0], pair[1]);
    }
    return join(sum[0], sum[1]);
}

template <int USED>
static inline void trees_of_two(const Lanes (&vectors)[2][USED], Lanes (&result)[2]) {
    UNROLL
    for (int i = 0; i < 2; i++) result[i] = trees<USED>(vectors[i]);
}
#endif

#endif
