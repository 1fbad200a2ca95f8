// Engines, tiled: which levels of an instruction's nest a tile runs along, and the walk through the tiles.
#ifndef BTTLAB_PROCESSOR_EMULATION_ENGINE_H
#define BTTLAB_PROCESSOR_EMULATION_ENGINE_H

#include "engine_steps.h"
#include "order.h"
#include "tiles.h"

// Fold the row index into the addresses of operand buffer results. False if rows wrap around.
static bool place_rows(const Nest &nest, Reach &reach) {
    const int level = nest.code->row_level, first = nest.code->row_base, last = first + nest.end[level] - 1;
    if (first < 0 || last >= ROWS) return false;
    reach = nest.operand[BUFFER_OUT];
    const int stride = reach.stride[level] + BUFFER_PITCH;
    reach.start += first * BUFFER_PITCH;
    reach.stride[level] = static_cast<short>(stride);
    return stride == reach.stride[level];
}

// Where results are written, and whether that may happen in another order than the nest's.
struct Results {
    Reach bank, buffer;
    bool to_buffer;
};

static bool may_tile(const Nest &nest, const Tiled &tiled, Results &results, bool reads_stream) {
    const auto &operand = nest.code->operand;
    results.bank = nest.operand[BANK_OUT];
    results.to_buffer = operand[BUFFER_OUT].valid;
    if (!operand[BANK_OUT].valid && !results.to_buffer) return false;  // to a single dummy vector
    if (operand[BANK_OUT].valid) {
        const Reach &to = results.bank;
        if (!is_one_to_one(nest, to, tiled)) return false;
        const auto is_apart = [&](int o) {
            return nest.operand[o].memory != to.memory || are_apart(nest, nest.operand[o], to);
        };
        if (!is_apart(reads_stream ? STREAM : SCALARS_IN)) return false;
        if (!is_not_fed(nest, ADDEND, to)) return false;
    }
    if (results.to_buffer) {
        if (!place_rows(nest, results.buffer) || !is_one_to_one(nest, results.buffer, tiled)) return false;
        const Reach &from = nest.operand[BUFFER_IN], &to = nest.operand[BUFFER_OUT];
        if (from.memory == to.memory && !are_apart(nest, from, to)) return false;
        if (!operand[BANK_OUT].valid) {  // a single destination
            results.bank = results.buffer;
            results.to_buffer = false;
        }
    }
    return true;
}

static inline int steps_along(const Nest &nest, int level) { return level < 0 ? 1 : nest.end[level]; }

static inline int stride_along(const Reach &reach, int level) { return level < 0 ? 0 : reach.stride[level]; }

// Number of steps of a tile's line along a level, after merging the outer levels that continue the line's addresses for every
// operand. Levels from `most` on, and those outside of token offsets, are not merged. A level that is merged leaves the box.
static int extend_line(const Nest &nest, int level, int most, Box &outside) {
    int steps = steps_along(nest, level);
    if (level < 0) return steps;
    const int offset_level = nest.code->offset_level, first = is_any_offset(nest, offset_level) ? offset_level + 1 : 0;
    for (int j = most - 1; j >= first; j--) {
        if (outside.to[j] == 0) continue;
        bool goes_on = j != level;
        for (const Reach &reach : nest.operand) goes_on &= reach.stride[j] == steps * reach.stride[level];
        if (!goes_on) break;
        steps *= nest.end[j];
        outside.to[j] = 0;
    }
    return steps;
}

constexpr int LONG = 6;  // steps along a level that fill a tile

// The level with the longest line of more than one step for which `fits`; -1 if there is none. Of those that fill a tile the
// innermost: vectors of its steps are next to each other.
template <typename Fits>
static inline int longest_level(const Nest &nest, Fits fits, bool merges = false) {
    int longest = -1, most = 2;
    for (int j = 0; j < LEVELS; j++) {
        if (nest.end[j] < 2 || is_any_offset(nest, j) || !fits(j)) continue;
        Box outside = active_box(nest);
        const int line = merges ? extend_line(nest, j, j, outside) : nest.end[j], steps = line < LONG ? line : LONG;
        if (steps < most) continue;
        longest = j;
        most = steps;
    }
    return longest;
}

// The longest level along which one operand moves and the other stays.
static inline int longest_moving(const Nest &nest, int moves, int stays) {
    const auto fits = [&](int j) { return stays_along(nest, stays, j) && !stays_along(nest, moves, j); };
    return longest_level(nest, fits, true);
}

// The steps from 0 on of each level of a box.
struct Outside {
    unsigned short to[LEVELS];

    static Outside of(const Box &box) {
        Outside outside;
        for (int j = 0; j < LEVELS; j++) outside.to[j] = static_cast<unsigned short>(box.to[j]);
        return outside;
    }
    Box box() const {
        Box box;
        for (int j = 0; j < LEVELS; j++) box.from[j] = 0, box.to[j] = to[j];
        return box;
    }
};

// All steps but those along the tiled levels.
static inline Box outside_of(const Nest &nest, const Tiled &tiled) {
    Box box = active_box(nest);
    for (int j = 0; j < LEVELS; j++) {
        if (tiled.has(j)) box.to[j] = 0;
    }
    return box;
}

struct ExpandPlan {
    int buffer_y, scalars_y, addend_y, result_y, buffer_result_y;
    Cut y_cut, x_cut;
    Outside outside;  // of the tiles
    bool to_buffer;
};

// Plans an EXPAND in tiles, and lets its nest say where results are written; false if it cannot be tiled.
static bool plan_expand(Nest &nest, ExpandPlan &plan) {
    if (nest.count < 1) return false;
    Tiled tiled;
    const auto is_line = [&](int j) {
        const auto &code = *nest.code;
        bool all_are = nest.operand[BUFFER_IN].stride[j] == 1 && !(code.operand[BUFFER_OUT].valid && code.row_level == j);
        for (int o = ADDEND; o <= BUFFER_OUT; o++) all_are &= !code.operand[o].valid || nest.operand[o].stride[j] == 1;
        return all_are;
    };
    tiled.x = longest_level(nest, [&](int j) { return stays_along(nest, SCALARS_IN, j) && is_line(j); });
    tiled.y = longest_moving(nest, SCALARS_IN, BUFFER_IN);
    if (tiled.x < 0 && tiled.y < 0) tiled.y = longest_level(nest, [](int) { return true; });
    Results results = {};
    if (!may_tile(nest, tiled, results, false)) return false;
    nest.operand[BANK_OUT] = results.bank;
    if (results.to_buffer) nest.operand[BUFFER_OUT] = results.buffer;
    const Reach *operand = nest.operand;
    plan.buffer_y = stride_along(operand[BUFFER_IN], tiled.y);
    plan.scalars_y = stride_along(operand[SCALARS_IN], tiled.y);
    plan.addend_y = stride_along(operand[ADDEND], tiled.y);
    plan.result_y = stride_along(results.bank, tiled.y);
    plan.buffer_result_y = stride_along(results.buffer, tiled.y);
    plan.to_buffer = results.to_buffer;
    Box outside = outside_of(nest, tiled);
    plan.y_cut = cut_of(extend_line(nest, tiled.y, LEVELS, outside), tiled.x < 0 ? TILE_LINE : TILE_ROWS);
    plan.x_cut = cut_of(extend_line(nest, tiled.x, LEVELS, outside), tiled.y < 0 ? TILE_LINE : TILE_VECTORS);
    plan.outside = Outside::of(outside);
    return true;
}

static void expand_tiles(const Nest &nest, const ExpandPlan &plan, Marks &marks) {
    const Reach *operand = nest.operand;
    const Cut &x_cut = plan.x_cut, &y_cut = plan.y_cut;
    ExpandTile tile = {plan.buffer_y, plan.scalars_y, plan.addend_y, plan.result_y, plan.buffer_result_y, used_rows(nest),
                       nullptr};
    if (nest.code->flags & CHECK) tile.marks = &marks;
    const bool has_addend = nest.code->operand[ADDEND].valid;
    each_step(nest, plan.outside.box(), [&](const Step &step) {
        const auto vector = [&](int o) { return operand[o].memory + step.offset[o]; };
        for (int j = 0, x = 0; j < x_cut.parts; j++) {  // vectors in the outer loop: each is read once
            const int vectors = x_cut.size(j);
            const Vector *buffer = vector(BUFFER_IN) + x, *scalars = vector(SCALARS_IN);
            const Vector *addend = has_addend ? vector(ADDEND) + x : nullptr;
            Vector *result = vector(BANK_OUT) + x, *buffer_result = plan.to_buffer ? vector(BUFFER_OUT) + x : nullptr;
            const auto expand = [&](int times, int rows, long y) {
                if (!times) return;
                expand_sizes(rows, vectors, tile, times, buffer + y * tile.buffer_y, scalars + y * tile.scalars_y,
                             addend ? addend + y * tile.addend_y : nullptr, result + y * tile.result_y,
                             buffer_result ? buffer_result + y * tile.buffer_result_y : nullptr);
            };
            expand(y_cut.longer, y_cut.least + 1, 0);
            expand(y_cut.parts - y_cut.longer, y_cut.least, y_cut.longer * (y_cut.least + 1));
            x += vectors;
        }
    });
}

static inline long first_offset(const Nest &nest, int o) {
    static const int zeros[LEVELS] = {};
    return nest.operand[o].offset(zeros, nest.code->offset_level);
}

constexpr int SEGMENTS = 512;  // of the terms of a sum that one pass takes

constexpr int INFINITE = 0x7f800000;  // the bits of infinity: those of a NaN are greater

// Accumulators must be counted by the inner levels, the depth by the outer levels: splits a nest's box into both. False if
// they are not.
static bool split_depth(const Nest &nest, int accumulator_level, Box &depth, Box &accumulators) {
    depth = accumulators = active_box(nest);
    int last_accumulator = 0;
    for (int j = 0; j < LEVELS; j++) {
        const bool is_depth = nest.code->depth_mask >> j & 1;
        if (nest.n[j] > 1 && is_depth != (j <= accumulator_level)) return false;
        (j <= accumulator_level ? accumulators : depth).to[j] = 0;
        if (j > accumulator_level) last_accumulator += (nest.end[j] - 1) * nest.accumulator_weight[j];
    }
    return last_accumulator < ACCUMULATORS;
}

struct AccumulatePlan {
    int stream_x;  // from one vector of a tile to the next
    int line;      // the level of the tiles of a call if they have one vector each: -1: none
    Cut r_cut, x_cut;
    int inner;                    // the level that terms run along
    Outside depth, accumulators;  // steps of a sum; sums outside of the calls
};

static bool plan_accumulate(const Nest &nest, AccumulatePlan &plan) {
    const Instruction &code = *nest.code;
    const int accumulator_level = code.accumulator_level >= LEVELS ? -1 : code.accumulator_level, k = used_rows(nest);
    Box depth, accumulators;
    if (k == 0 || !split_depth(nest, accumulator_level, depth, accumulators)) return false;
    const int x = longest_level(nest, [&](int j) {
        return j > accumulator_level && nest.accumulator_weight[j] == 1 && stays_along(nest, SCALARS_IN, j);
    });
    plan.r_cut = cut_of(k, TILE_LINE);
    const int most_vectors = TILE_SUMS / plan.r_cut.size(0);
    plan.x_cut = cut_of(steps_along(nest, x), most_vectors < TILE_LINE ? most_vectors : TILE_LINE);
    plan.line = x < 0 ? longest_level(nest, [&](int j) { return j > accumulator_level; }) : -1;
    if (x >= 0) accumulators.to[x] = 0;
    if (plan.line >= 0) accumulators.to[plan.line] = 0;
    plan.stream_x = stride_along(nest.operand[STREAM], x);
    const int inner = plan.inner = innermost(depth);
    if (depth.to[inner] > 0) depth.to[inner] = extend_line(nest, inner, inner, depth) - 1;
    plan.depth = Outside::of(depth), plan.accumulators = Outside::of(accumulators);
    return true;
}

static void accumulate_tiles(const Nest &nest, const AccumulatePlan &plan, const Joined *joined, Marks &moved) {
    const Instruction &code = *nest.code;
    const Reach *operand = nest.operand;
    const int k = used_rows(nest), line = plan.line;
    const Cut &r_cut = plan.r_cut, &x_cut = plan.x_cut;
    const int sums_of_line = line < 0 ? x_cut.longer + x_cut.parts * x_cut.least : nest.end[line];
    const int next_sum = line < 0 ? 1 : nest.accumulator_weight[line];
    const Box accumulators = plan.accumulators.box();
    Vector(*sum)[ACCUMULATORS] = sums[code.unit - ENGINE_0][code.flags & PONG ? 1 : 0];
    const Vector *stream[SEGMENTS], *scalars[SEGMENTS];
    AccumulateTile tile;
    tile.stream = stream;
    tile.scalars = scalars;
    tile.segments = 0;
    tile.stream_x = plan.stream_x;
    tile.next_scalars = stride_along(operand[SCALARS_IN], line);
    tile.goes_on = false;
    tile.joined = nullptr;
    tile.sums = &sum[0][0];
    tile.marks = &moved;
    const long line_stream = line < 0 ? tile.stream_x : operand[STREAM].stride[line];
    const auto add_zeros = [&](const Step &step, long scalars_start) {  // to rows without scalars
        for (int r = k; r < ROWS; r++) {
            for (int i = 0; i < sums_of_line; i++) {
                const long stream_start = step.offset[STREAM] - first_offset(nest, STREAM) + i * line_stream;
                accumulate_tile<1, 1, false>(tile, 1, stream_start, scalars_start, r, &sum[r][step.accumulator + i * next_sum]);
            }
        }
    };
    const auto add_up = [&] {
        each_step(nest, accumulators, [&](const Step &step) {
            // Offsets of the accumulator only: the lists contain those of the depth.
            long stream_start = step.offset[STREAM] - first_offset(nest, STREAM);
            const long scalars_start = step.offset[SCALARS_IN] - first_offset(nest, SCALARS_IN);
            Vector *to = &sum[0][step.accumulator];
            const auto call = [&](int times, int vectors) {
                if (!times) return;
                tile.next_stream = vectors * line_stream;
                tile.next_sum = vectors * next_sum;
                for (int i = 0, row = 0; i < r_cut.parts; row += r_cut.size(i++)) {
                    accumulate_sizes(r_cut.size(i), vectors, tile, times, stream_start, scalars_start, row, to + row * ACCUMULATORS);
                }
                stream_start += times * tile.next_stream;
                to += times * tile.next_sum;
            };
            if (line < 0) {
                call(x_cut.longer, x_cut.least + 1);
                call(x_cut.parts - x_cut.longer, x_cut.least);
            } else {
                call(sums_of_line, 1);
            }
            // Rows without scalars sum to zero unless the stream is not finite; in that case row 0 is not finite either.
            if (k == ROWS || (tile.joined && !tile.joined->keeps_sums)) return;
            Vector *first = &sum[0][step.accumulator];
            Marks marks = {};
            for (int i = 0; i < sums_of_line; i++) mark_overflow(marks, load(first + i * next_sum), INFINITE);
            if (any_mark(marks)) return add_zeros(step, scalars_start);
            for (int i = 0; i < sums_of_line; i++) {
                for (int r = k; r < ROWS; r++) store(first + i * next_sum + r * ACCUMULATORS, splat<Lanes>(0.0f));
            }
        });
        tile.goes_on = true;
        tile.segments = 0;
    };
    each_row(nest, plan.depth.box(), plan.inner, [&](const Step &step, int count, const long *strides) {
        if (tile.segments == SEGMENTS) add_up();
        tile.steps = count;
        tile.stream_step = strides[STREAM], tile.scalars_step = strides[SCALARS_IN];
        stream[tile.segments] = operand[STREAM].memory + step.offset[STREAM];
        scalars[tile.segments] = operand[SCALARS_IN].memory + step.offset[SCALARS_IN];
        tile.segments++;
    });
    tile.joined = joined;
    add_up();
}

// The adder trees over the sums of one point.
static inline Lanes trees_of(const Vector *sums_of_rows) {
    Lanes sum[ROWS];
    UNROLL
    for (int r = 0; r < ROWS; r++) sum[r] = load(&sums_of_rows[r]);
    return trees<ROWS>(sum);
}

// Largest operand (in vectors) for which one call computes whole points: it stays in the first-level cache between points.
constexpr int POINT_VECTORS = PARTS == 1 ? 128 : 0;
typedef std::make_integer_sequence<int, ROWS> AllRows;

// Whether the accumulator index counts exactly the levels inside the depth f, and every accumulator is folded.
static bool folds_all(const Nest &nest, int f) {
    const Instruction &code = *nest.code;
    const int accumulator_level = code.accumulator_level >= LEVELS ? -1 : code.accumulator_level;
    int last_accumulator = 0;
    for (int j = 0; j < LEVELS; j++) {
        if (nest.n[j] > 1 && (j <= f) != (j <= accumulator_level)) return false;
        if (j > f) last_accumulator += (nest.end[j] - 1) * nest.accumulator_weight[j];
    }
    return code.depth_mask == 1 << f && nest.end[f] == nest.n[f] && nest.n[f] > 1 && last_accumulator < ACCUMULATORS;
}

// The nest with addend and results where they are at a level's last step.
static Nest at_last_step(const Nest &nest, int level) {
    Nest last = nest;
    for (int o = ADDEND; o <= BUFFER_OUT; o++) {
        Reach &reach = last.operand[o];
        reach.start += (nest.n[level] - 1) * reach.stride[level];
        reach.stride[level] = 0;
    }
    return last;
}

struct ReducePlan {
    int stream_d, stream_y, buffer_d, addend_y, bank_y, buffer_y;
    ReducePoints *const *points_of;  // null: in tiles, and trees after them
    Cut y_cut, r_cut;
    Outside outside;  // points outside of a line of `steps`
    int steps, depth, accumulators, accumulator_weight;
    bool to_buffer;
};

// Plans a REDUCE in tiles. Its nest then is that of its folds.
static bool plan_reduce(Nest &nest, ReducePlan &plan) {
    const Instruction &code = *nest.code;
    const int f = depth_level(nest), k = used_rows(nest);
    if (k == 0 || !folds_all(nest, f)) return false;
    const Reach *operand = nest.operand;
    if (is_any_offset(nest, f)) return false;
    Tiled tiled = {-1, -1};
    tiled.y = longest_level(nest, [&](int j) {
        return j != f && stays_along(nest, BUFFER_IN, j) && !stays_along(nest, STREAM, j);
    });
    Nest folds = at_last_step(nest, f);
    Results results = {};
    if (code.row_level == f || !may_tile(folds, tiled, results, true)) return false;
    folds.operand[BANK_OUT] = results.bank;
    if (results.to_buffer) folds.operand[BUFFER_OUT] = results.buffer;
    plan.to_buffer = results.to_buffer;
    Box outside = outside_of(nest, tiled);
    outside.to[f] = 0;
    plan.steps = extend_line(folds, tiled.y, f, outside);
    plan.outside = Outside::of(outside);
    plan.y_cut = cut_of(plan.steps, TILE_VECTORS), plan.r_cut = cut_of(k, tiled.y < 0 ? TILE_LINE : TILE_ROWS);
    plan.depth = nest.n[f] - 1;
    plan.stream_d = operand[STREAM].stride[f], plan.stream_y = stride_along(operand[STREAM], tiled.y);
    plan.buffer_d = operand[BUFFER_IN].stride[f];
    plan.addend_y = stride_along(operand[ADDEND], tiled.y);
    plan.bank_y = stride_along(results.bank, tiled.y), plan.buffer_y = stride_along(results.buffer, tiled.y);
    plan.points_of = plan.depth * k <= POINT_VECTORS ? reduce_points_of(k, AllRows{}) : nullptr;
    // After the instruction, accumulators hold the sums of the nest's last iteration: the last steps of a line.
    plan.accumulators = tiled.y > f ? nest.end[tiled.y] : 1;
    plan.accumulator_weight = plan.accumulators > 1 ? nest.accumulator_weight[tiled.y] : 0;
    nest = folds;
    return true;
}

static void reduce_tiles(const Nest &folds, const ReducePlan &plan, Marks &marks) {
    const Instruction &code = *folds.code;
    const Reach *operand = folds.operand;
    const int f = depth_level(folds), k = used_rows(folds);
    const Cut &r_cut = plan.r_cut;
    ReduceTile tile;
    tile.stream_d = plan.stream_d, tile.stream_y = plan.stream_y, tile.buffer_d = plan.buffer_d;
    tile.depth = plan.depth;
    Vector sum[TILE_VECTORS][ROWS];
    for (int y = 0; y < TILE_VECTORS; y++) {
        for (int r = k; r < ROWS; r++) store(&sum[y][r], splat<Lanes>(0.0f));
    }
    const bool has_addend = code.operand[ADDEND].valid;
    Fold fold;
    fold.addend_y = plan.addend_y, fold.bank_y = plan.bank_y, fold.buffer_y = plan.buffer_y;
    fold.used = first_lanes(k);
    fold.one = one_lane(splat<Lanes>(1.0f), code.flags & ONE ? k : LANES);
    fold.marks = code.flags & CHECK ? &marks : nullptr;
    fold.kept = sums[code.unit - ENGINE_0][code.flags & PONG ? 1 : 0];
    fold.accumulator_weight = plan.accumulator_weight;
    each_step(folds, plan.outside.box(), [&](const Step &step) {
        bool is_last_outside = true;
        for (int j = 0; j < f; j++) is_last_outside &= step.index[j] == plan.outside.to[j];
        fold.addend = has_addend ? operand[ADDEND].memory + step.offset[ADDEND] : nullptr;
        fold.bank = operand[BANK_OUT].memory + step.offset[BANK_OUT];
        fold.buffer = plan.to_buffer ? operand[BUFFER_OUT].memory + step.offset[BUFFER_OUT] : nullptr;
        fold.first_kept = is_last_outside ? plan.steps - plan.accumulators : plan.steps;
        fold.accumulator = step.accumulator;
        tile.stream = operand[STREAM].memory + step.offset[STREAM];
        tile.buffer = buffer_row(operand[BUFFER_IN], 0) + step.offset[BUFFER_IN];
        if (plan.points_of) {
            const int pairs = plan.points_of[1] ? plan.steps / 2 : 0;
            if (pairs) plan.points_of[1](tile, fold, 0, pairs);
            plan.points_of[0](tile, fold, 2 * pairs, plan.steps - 2 * pairs);
            return;
        }
        for (int i = 0, y = 0; i < plan.y_cut.parts; i++) {
            const int points = plan.y_cut.size(i);
            ReduceTile part = tile;
            part.stream += y * tile.stream_y;
            if (r_cut.longer) reduce_sizes(points, r_cut.least + 1, part, r_cut.longer, 0, sum);
            reduce_sizes(points, r_cut.least, part, r_cut.parts - r_cut.longer, r_cut.longer * (r_cut.least + 1), sum);
            for (int p = 0; p < points; p++, y++) {
                fold.give(y, trees_of(sum[p]));
                Vector *kept = fold.kept_at(y);
                for (int r = 0; kept && r < k; r++) store(kept + r * ACCUMULATORS, without_negative_zero(load(&sum[p][r])));
            }
        }
    });
}

// How an instruction is executed in tiles.
struct EnginePlan {
    enum { NOT_AT_ALL, IN_STEPS, IN_TILES } how;
    union {
        ExpandPlan expand;
        AccumulatePlan accumulate;
        ReducePlan reduce;
    };
};

static void plan_engine(Nest &nest, EnginePlan &plan) {
    bool is_tiled = false, has_steps = true;
    for (int j = 0; j < LEVELS; j++) has_steps &= nest.end[j] > 0;
    if (has_steps && nest.is_inside) {
        switch (nest.code->operation) {
            case EXPAND: is_tiled = plan_expand(nest, plan.expand); break;
            case ACCUMULATE: is_tiled = plan_accumulate(nest, plan.accumulate); break;
            case REDUCE: is_tiled = plan_reduce(nest, plan.reduce); break;
        }
    }
    plan.how = !has_steps ? EnginePlan::NOT_AT_ALL : is_tiled ? EnginePlan::IN_TILES : EnginePlan::IN_STEPS;
}

// Whether a plan holds for other token offsets, too: they move only what is read, in memories that are not written.
static bool is_lasting(const Nest &nest) {
    const auto &operand = nest.code->operand;
    bool lasts = nest.is_inside;
    for (int o = 0; o < OPERANDS; o++) {
        if (!operand[o].valid || operand[o].offset_table < 0) continue;
        lasts &= o <= SCALARS_IN;
        for (int to : {BANK_OUT, BUFFER_OUT}) lasts &= nest.operand[o].memory != nest.operand[to].memory;
    }
    return lasts;
}

// Resolves the operands with token offsets again, for another sample.
static void place_again(Nest &nest, const Sample &sample) {
    const Box reads = engine_reads(nest);
    nest.is_inside = true;
    for (int o = BUFFER_IN; o <= SCALARS_IN; o++) {
        if (nest.code->operand[o].offset_table >= 0) place_read(nest, o, reads, sample);
    }
}

static void run_engine(const Nest &nest, const EnginePlan &plan, const Joined *joined, Run &run) {
    if (plan.how == EnginePlan::NOT_AT_ALL) return;
    const bool is_tiled = plan.how == EnginePlan::IN_TILES;
    Marks marks = {};
    switch (nest.code->operation) {
        case EXPAND: is_tiled ? expand_tiles(nest, plan.expand, marks) : expand_steps(nest, marks); break;
        case ACCUMULATE: is_tiled ? accumulate_tiles(nest, plan.accumulate, joined, marks) : accumulate_steps(nest); break;
        case REDUCE: is_tiled ? reduce_tiles(nest, plan.reduce, marks) : reduce_steps(nest, marks); break;
    }
    if (joined || nest.code->flags & CHECK) run.overflow |= any_mark(marks);
}

#endif
