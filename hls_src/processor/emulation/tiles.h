// Register tiles of the engines' contractions. Every sum adds its terms in the engine's order, with one multiplication
// and one addition per term, so the bits are the same; a tile computes many sums
// at a time.
#ifndef BTTLAB_PROCESSOR_EMULATION_TILES_H
#define BTTLAB_PROCESSOR_EMULATION_TILES_H

#include <utility>

#include "nest.h"

// Largest tiles whose sums and shared operands fit the registers: with two dimensions, and with
// one.
#if defined(__AVX512F__)
constexpr int TILE_ROWS = 4, TILE_VECTORS = 6, TILE_LINE = 12;
#else
constexpr int TILE_ROWS = 3, TILE_VECTORS = 2, TILE_LINE = 6;
#endif
constexpr int TILE_SUMS = TILE_ROWS * TILE_VECTORS;

// Divides a length into nearly equal parts of at most `most`: the first `longer` parts have one element more.
struct Cut {
    unsigned short parts, least, longer;
    int size(int i) const { return least + (i < longer); }
};

static inline Cut cut_of(int length, int most) {
    const int parts = (length + most - 1) / most;
    const auto part = [](int value) { return static_cast<unsigned short>(value); };
    return {part(parts), part(length / parts), part(length % parts)};
}

// The vector that is `vectors` after this one. The compiler must not compute the addresses of all rows of a tile in advance: they
// would fill the registers.
template <typename Pointer>
ALWAYS_INLINE Pointer next(Pointer vector, long vectors) {
    vector += vectors;
    __asm__("" : "+r"(vector));
    return vector;
}

// EXPAND: result (y, x) = addend (y, x) + sum over r of scalars (y)[r] x buffer (x)[r]. Vectors are contiguous along x and
// strided along y.
struct ExpandTile {
    long buffer_y, scalars_y, addend_y, result_y, buffer_result_y;
    int rows;
    Marks *marks;  // if the result is checked for overflow
};

// Computes `times` tiles along y in one call, to save call overhead. Addend and buffer result may be null. Their addresses
// are passed in registers: loads from memory would wait for earlier stores. There is a row at least.
// ROWS_IN_USE: 0 if they are not known.
template <int Y, int X, bool SHARED, int ROWS_IN_USE>
static void expand_tile(const ExpandTile &tile, int times, const Vector *buffer, const Vector *scalars, const Vector *addend,
                        Vector *result, Vector *buffer_result) {
    const int rows = ROWS_IN_USE ? ROWS_IN_USE : tile.rows;
    const long buffer_y = tile.buffer_y, scalars_y = tile.scalars_y, addend_y = tile.addend_y, result_y = tile.result_y;
    for (int t = 0; t < times; t++) {
        Lanes sum[Y][X];
        UNROLL
        for (int y = 0; y < Y; y++) {
            UNROLL
            for (int x = 0; x < X; x++) sum[y][x] = addend ? load(addend + x) : splat<Lanes>(0.0f);
            if (addend) addend = next(addend, addend_y);
        }
        const Vector *row = buffer;
        const Element *by[(Y + 2) / 3];  // of every third y: the others are at one and two strides
        UNROLL
        for (int i = 0; i < (Y + 2) / 3; i++) by[i] = i ? next(by[i - 1], 3 * scalars_y * LANES) : scalars_of(scalars);
        int r = 0;
        do {
            Lanes vector[X];
            if (SHARED) {
                UNROLL
                for (int x = 0; x < X; x++) vector[x] = load_once(row + x);
            }
            UNROLL
            for (int y = 0; y < Y; y++) {
                const Element *scalar = by[y / 3] + y % 3 * scalars_y * LANES;
                UNROLL
                for (int x = 0; x < X; x++) {
                    const Lanes value = SHARED ? vector[x] : load(row + y * buffer_y);
                    sum[y][x] = sum[y][x] + times_scalar(value, scalar);
                }
            }
            UNROLL
            for (const Element *&each : by) each++;
            row += BUFFER_PITCH;
        } while (++r < rows);
        UNROLL
        for (int y = 0; y < Y; y++) {
            UNROLL
            for (int x = 0; x < X; x++) store(result + x, sum[y][x]);
            result = next(result, result_y);
        }
        if (buffer_result) {
            UNROLL
            for (int y = 0; y < Y; y++) {
                UNROLL
                for (int x = 0; x < X; x++) store(buffer_result + x, sum[y][x]);
                buffer_result = next(buffer_result, tile.buffer_result_y);
            }
        }
        if (tile.marks) {
            Marks marks = *tile.marks;
            UNROLL
            for (int y = 0; y < Y; y++) {
                UNROLL
                for (int x = 0; x < X; x++) mark_overflow(marks, sum[y][x], STATE_LIMIT);
            }
            *tile.marks = marks;
        }
        buffer += Y * buffer_y;
        scalars += Y * scalars_y;
    }
}

constexpr int MOST_JOINED = 2;  // drains

// Where drains that are executed with their ACCUMULATE move its sums.
struct Joined {
    Vector *row[ROWS];       // the place of a row's first sum; null: the row is not moved
    unsigned short checked;  // a bit for each row that is checked for overflow
    unsigned char count;     // of the drains
    bool keeps_sums;         // an instruction may read the sums after them
    short drain[MOST_JOINED];
};

// ACCUMULATE: sum (r, x) = (before +) sum over steps of stream (x) x scalars[r]. The steps are in segments of equal length, in
// which both operands are evenly spaced.
struct AccumulateTile {
    const Vector *const *stream;  // of the first step of each segment
    const Vector *const *scalars;
    int segments, steps;  // of a segment
    long stream_step, scalars_step;
    long stream_x;
    long next_stream, next_scalars, next_sum;  // from one tile to the next
    bool goes_on;
    const Joined *joined;  // in the last pass, if drains are executed with it
    const Vector *sums;    // the first one
    Marks *marks;          // of what is moved
};

// Moves a tile's sums, which are in registers, to where the joined drains would.
template <int R, int X>
ALWAYS_INLINE void move_sums(const AccumulateTile &tile, int row, long number, const Lanes (&sum)[R][X]) {
    Marks marks = *tile.marks;
    UNROLL
    for (int r = 0; r < R; r++) {
        Vector *to = tile.joined->row[row + r];
        if (to == nullptr) continue;
        UNROLL
        for (int x = 0; x < X; x++) store(to + number + x, sum[r][x]);
        if (!(tile.joined->checked >> (row + r) & 1)) continue;
        UNROLL
        for (int x = 0; x < X; x++) mark_overflow(marks, sum[r][x], STATE_LIMIT);
    }
    *tile.marks = marks;
}

// Computes `times` tiles in one call. Vectors of a row of sums are contiguous, rows are ACCUMULATORS vectors apart. There is a
// step at least.
template <int R, int X, bool HAS_SCALARS>
static void accumulate_tile(const AccumulateTile &tile, int times, long stream_start, long scalars_start, int row, Vector *to) {
    const long stream_step = tile.stream_step, scalars_step = tile.scalars_step, stream_x = tile.stream_x;
    for (int t = 0; t < times; t++) {
        Lanes sum[R][X];
        UNROLL
        for (int r = 0; r < R; r++) {
            UNROLL
            for (int x = 0; x < X; x++) sum[r][x] = tile.goes_on ? load(to + r * ACCUMULATORS + x) : splat<Lanes>(0.0f);
        }
        for (int s = 0; s < tile.segments; s++) {
            const Vector *stream = tile.stream[s] + stream_start;
            const Element *scalars = scalars_of(tile.scalars[s] + scalars_start) + row;
            int n = tile.steps;
            do {
                Lanes vector[X];
                UNROLL
                for (int x = 0; x < X; x++) vector[x] = load_once(stream + x * stream_x);
                UNROLL
                for (int r = 0; r < R; r++) {
                    UNROLL
                    for (int x = 0; x < X; x++) {
                        const Lanes product = HAS_SCALARS ? times_scalar(vector[x], scalars + r)
                                                          : vector[x] * splat<Lanes>(0.0f);
                        sum[r][x] = sum[r][x] + product;
                    }
                }
                stream += stream_step;
                scalars += scalars_step * LANES;
            } while (--n);
        }
        if (!tile.joined || tile.joined->keeps_sums) {
            UNROLL
            for (int r = 0; r < R; r++) {
                UNROLL
                for (int x = 0; x < X; x++) store(to + r * ACCUMULATORS + x, sum[r][x]);
            }
        }
        if (tile.joined) move_sums<R, X>(tile, row, (to - tile.sums) % ACCUMULATORS, sum);
        stream_start += tile.next_stream;
        scalars_start += tile.next_scalars;
        to += tile.next_sum;
    }
}

// REDUCE, before the trees: sum (y, r) = sum over steps d of stream (y, d) x buffer (d)[r].
struct ReduceTile {
    const Vector *stream;  // of the first point
    long stream_d, stream_y;
    const Vector *buffer;  // of the first row
    long buffer_d;
    int depth;
};

// +0 in place of -0.
ALWAYS_INLINE Lanes without_negative_zero(const Lanes &value) { return value + splat<Lanes>(0.0f); }

// Output of a line of points: the tree of each point's sums plus the addend, written to a bank and to an operand buffer row, one lane
// per row in use. The sums of the last points stay in the accumulators.
struct Fold {
    const Vector *addend;  // of the first point; null if there is none
    Vector *bank, *buffer;   // the same
    long addend_y, bank_y, buffer_y;
    Lanes used, one;
    Marks *marks;  // if results are checked for overflow
    Vector (*kept)[ACCUMULATORS];
    int first_kept, accumulator, accumulator_weight;

    void give(int y, Lanes result) const {
        result = without_negative_zero(result);
        if (addend) result = result + load(addend + y * addend_y);
        result = (result & used) | one;
        if (marks) mark_overflow(*marks, result, STATE_LIMIT);
        store(bank + y * bank_y, result);
        if (buffer) store(buffer + y * buffer_y, result);
    }

    // Where the sum of a point's first row stays; rows are ACCUMULATORS vectors apart. Null if the point's sums do not stay.
    Vector *kept_at(int y) const {
        return y < first_kept ? nullptr : &kept[0][accumulator + (y - first_kept) * accumulator_weight];
    }
};

// Computes the sums of Y points and R rows in registers; there is a step at least. They begin with their first products, so they may
// be -0 where the engine's, which begin with zero, are +0.
template <int Y, int R>
ALWAYS_INLINE void sum_rows(const ReduceTile &tile, const Vector *stream, const Vector *buffer, Lanes (&sum)[Y][R]) {
    const auto step = [&](auto add) {
        Lanes vector[Y];
        UNROLL
        for (int y = 0; y < Y; y++) vector[y] = load(stream + y * tile.stream_y);
        UNROLL
        for (int r = 0; r < R; r++) {
            const Lanes row = Y > 1 ? load_once(buffer + r * BUFFER_PITCH) : load(buffer + r * BUFFER_PITCH);
            UNROLL
            for (int y = 0; y < Y; y++) add(sum[y][r], vector[y] * row);
        }
    };
    step([](Lanes &one, const Lanes &product) { one = product; });
    for (int d = 1; d < tile.depth; d++) {
        stream += tile.stream_d, buffer += tile.buffer_d;
        step([](Lanes &one, const Lanes &product) { one = one + product; });
    }
}

// Computes `times` tiles along r in one call, from row `row` on; `to` has all rows of each point.
template <int Y, int R>
static void reduce_tile(const ReduceTile &tile, int times, int row, Vector (*to)[ROWS]) {
    for (int t = 0; t < times; t++, row += R) {
        Lanes sum[Y][R];
        sum_rows<Y, R>(tile, tile.stream, tile.buffer + row * BUFFER_PITCH, sum);
        UNROLL
        for (int y = 0; y < Y; y++) {
            UNROLL
            for (int r = 0; r < R; r++) store(&to[y][row + r], sum[y][r]);
        }
    }
}

// REDUCE for `times` groups of one or two points from `first` on, for small operands: all rows
// and their trees at a time.
template <int Y, int R>
static void reduce_points(const ReduceTile &tile, const Fold &fold, int first, int times) {
    const Vector *stream = tile.stream + first * tile.stream_y;
    for (int t = 0; t < times; t++, stream += Y * tile.stream_y) {
        const int point = first + t * Y;
        Lanes sum[Y][R];
        sum_rows<Y, R>(tile, stream, tile.buffer, sum);
        Lanes result[Y];
        if constexpr (Y == 2 && 2 * R <= TILE_SUMS) {
            trees_of_two(sum, result);
        } else {
            for (int y = 0; y < Y; y++) result[y] = trees<R>(sum[y]);
        }
        UNROLL
        for (int y = 0; y < Y; y++) fold.give(point + y, result[y]);
        UNROLL
        for (int y = 0; y < Y; y++) {
            Vector *kept = fold.kept_at(point + y);
            if (!kept) continue;
            UNROLL
            for (int r = 0; r < R; r++) store(kept + r * ACCUMULATORS, without_negative_zero(sum[y][r]));
        }
    }
}

// Calls the tile compiled for these sizes; sizes that no Cut produces are not compiled.
template <int Y, int X>
struct ExpandSize {
    template <typename... At>
    static void run(const ExpandTile &tile, At... at) {
        constexpr bool is_used = (Y <= TILE_ROWS && X <= TILE_VECTORS) || Y == 1 || X == 1;
        constexpr int Y_USED = is_used ? Y : 1, X_USED = is_used ? X : 1;
        if (X == 1 && Y > 1 && tile.buffer_y) return expand_tile<Y, 1, false, 0>(tile, at...);
        if (tile.rows == 12) return expand_tile<Y_USED, X_USED, true, 12>(tile, at...);  // the paper's rank
        expand_tile<Y_USED, X_USED, true, 0>(tile, at...);
    }
};

template <int R, int X>
struct AccumulateSize {
    template <typename... At>
    static void run(const AccumulateTile &tile, At... at) {
        constexpr bool is_used = R * X <= TILE_SUMS;
        accumulate_tile<is_used ? R : 1, is_used ? X : 1, true>(tile, at...);
    }
};

template <int Y, int R>
struct ReduceSize {
    static void run(const ReduceTile &tile, int times, int row, Vector (*to)[ROWS]) {
        constexpr bool is_used = (Y <= TILE_VECTORS && R <= TILE_ROWS) || Y == 1;
        reduce_tile<is_used ? Y : 1, is_used ? R : 1>(tile, times, row, to);
    }
};

template <typename Tile, typename... At>
struct Sizes {
    void (*run[TILE_LINE][TILE_LINE])(const Tile &, At...);

    void operator()(int a, int b, const Tile &tile, At... at) const { run[a - 1][b - 1](tile, at...); }
};
typedef Sizes<ExpandTile, int, const Vector *, const Vector *, const Vector *, Vector *, Vector *> ExpandSizes;
typedef Sizes<AccumulateTile, int, long, long, int, Vector *> AccumulateSizes;
typedef Sizes<ReduceTile, int, int, Vector (*)[ROWS]> ReduceSizes;

template <typename AllSizes, template <int, int> class Size, int... I>
static constexpr AllSizes sizes_of(std::integer_sequence<int, I...>) {
    return {{Size<I / TILE_LINE + 1, I % TILE_LINE + 1>::run...}};
}

typedef void ReducePoints(const ReduceTile &, const Fold &, int, int);

// The functions for one point and, if their sums fit the registers, for two points at a time.
template <int... R>
static ReducePoints *const *reduce_points_of(int rows, std::integer_sequence<int, R...>) {
    static ReducePoints *const of_rows[][2] = {
        {reduce_points<1, R + 1>, 2 * R + 2 <= TILE_SUMS ? reduce_points<2, R + 1> : nullptr}...};
    return of_rows[rows - 1];
}

typedef std::make_integer_sequence<int, TILE_LINE * TILE_LINE> AllPairs;
static constexpr ExpandSizes expand_sizes = sizes_of<ExpandSizes, ExpandSize>(AllPairs{});
static constexpr AccumulateSizes accumulate_sizes = sizes_of<AccumulateSizes, AccumulateSize>(AllPairs{});
static constexpr ReduceSizes reduce_sizes = sizes_of<ReduceSizes, ReduceSize>(AllPairs{});

#endif
