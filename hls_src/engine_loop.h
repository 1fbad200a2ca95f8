// What synthesis takes for the contractions of engine.h: one pipelined loop that runs every contraction, so that an
// engine has one array of multipliers and adders. Operands come to it through two switches:
//
//               left operand     right operand    a row adds to
//   EXPAND      its scalar       its held word    the sum of the row above (the first row: the addend)
//   ACCUMULATE  streamed word    its scalar       its own sum of this slot
//   REDUCE      streamed word    its held word    its own sum of this slot; at the end the lanes are added up
//
// Work is cut into tiles. While one streams past, the loop fetches what the next one holds and stores the sums of the one
// before, a word a cycle each: what is held and the sums are double, so nothing waits. Row r is ADD cycles behind row r -
// 1 in all three modes, and a slot comes round after ACCUMULATE steps at the earliest: hence an interval of 1.
#ifndef BTTLAB_ENGINE_LOOP_H
#define BTTLAB_ENGINE_LOOP_H

enum EngineMode { BY_EXPANDING, BY_ACCUMULATING, BY_REDUCING };

constexpr int SCALAR_WORDS = larger(parts(SEQUENCE_LENGTH, ENGINE_ROWS), 3) * words_for(MAX_DEPTH);

// What a run of the loop does. Tiles: batch x passes x groups x chunks of the words, the last fastest.
struct Run {
    int mode, batch, passes, groups, words;
    int rows;           // that go on the engine's rows, ENGINE_ROWS a pass
    int together;       // passes that share the slots of a tile
    int streamed;       // scalars or rows that stream past
    int partials;       // sums of every partials-th of them
    bool held_scalars;  // a row's scalars lie along the lanes and are held; else those of a step do
    bool lines;         // of REDUCE: a row of the engine is a row of c; else a step of the stream is one, in one word
    int held_row, stream_row, c_row, addend_row;             // words from row to row
    int first_scalar, scalar_row, scalar_step;               // elements: the first, from a row and from a step to the next
    int held_batch, stream_batch, c_batch, scalar_batch;     // words to the next of a batch
};

// The counters of a stage.
struct Counters {
    int outer = 0, middle = 0, inner = 0;
    void next(int inner_bound, int middle_bound) {
        if (++inner < inner_bound) return;
        inner = 0;
        if (++middle < middle_bound) return;
        middle = 0, outer++;
    }
};

struct Tile {
    int batch = 0, pass = 0, group = 0, chunk = 0;
    void next(const Run &run) {
        if (++chunk < parts(run.words, ENGINE_CHUNK)) return;
        chunk = 0;
        if (++group < run.groups) return;
        group = 0;
        if ((pass += run.together) < run.passes) return;
        pass = 0, batch++;
    }
    int word() const { return chunk * ENGINE_CHUNK; }
    int words(const Run &run) const { return smaller(ENGINE_CHUNK, run.words - word()); }
    int row(int sub) const { return (pass + sub) * ENGINE_ROWS; }
    int rows(const Run &run, int sub) const { return smaller(ENGINE_ROWS, run.rows - row(sub)); }
    bool ends_group(const Run &run) const { return chunk + 1 == parts(run.words, ENGINE_CHUNK); }
};

// Words of c that are complete, one a row, and how many of them are not yet written.
struct FullLines {
    int batch, row, word, left;
};

// ENGINE_ROWS elements side by side, from the one or two words that they lie in.
static inline void read_scalars(float *scalar, const Word *memory, int first, int count) {
#pragma HLS INLINE
    const Word low = memory[first / LANES];
    const Word high = first % LANES + count > LANES ? memory[first / LANES + 1] : low;
Rows_Unroll:
    for (int r = 0; r < ENGINE_ROWS; r++) {
#pragma HLS UNROLL
        const int lane = first % LANES + r;
        scalar[r] = r >= count ? 0.0f : lane < LANES ? low[lane] : high[lane - LANES];
    }
}

// Returns its steps, for the testbench: engine.h counts them without running it.
template <int ENGINE>
static int engine(Word *c, const Word *addend, const Word *scalars, const Word *held, const Word *streamed,
                  const Run &run) {
#pragma HLS INLINE off
    static Word held_rows[2][ENGINE_ROWS][ENGINE_CHUNK], sums[2][ENGINE_ROWS][ENGINE_SLOTS];
    static Word scalar_rows[2][ENGINE_ROWS][SCALAR_WORDS];
    Word folded[ENGINE_ROWS * ENGINE_CHUNK], lines[ENGINE_ROWS], full_lines[2][ENGINE_ROWS], line(0.0f);
#pragma HLS ARRAY_PARTITION variable=held_rows dim=1 complete
#pragma HLS ARRAY_PARTITION variable=held_rows dim=2 complete
#pragma HLS ARRAY_PARTITION variable=sums dim=1 complete
#pragma HLS ARRAY_PARTITION variable=sums dim=2 complete
#pragma HLS ARRAY_PARTITION variable=scalar_rows dim=1 complete
#pragma HLS ARRAY_PARTITION variable=scalar_rows dim=2 complete
#pragma HLS ARRAY_PARTITION variable=lines complete
#pragma HLS ARRAY_PARTITION variable=full_lines dim=2 complete
#pragma HLS BIND_STORAGE variable=held_rows type=ram_2p impl=lutram
#pragma HLS BIND_STORAGE variable=sums type=ram_2p impl=lutram
#pragma HLS BIND_STORAGE variable=scalar_rows type=ram_2p impl=lutram
#pragma HLS BIND_STORAGE variable=folded type=ram_2p impl=lutram
    const bool expanding = run.mode == BY_EXPANDING, reducing = run.mode == BY_REDUCING;
    const bool accumulating = run.mode == BY_ACCUMULATING;
    const int chunk = smaller(run.words, ENGINE_CHUNK), most_rows = smaller(run.rows, ENGINE_ROWS);
    const int unit_count = run.together * run.partials;  // units of `chunk` slots: passes or partial sums
    const int turns = expanding ? 1 : larger(unit_count, parts(ACCUMULATE, chunk));  // units and idle turns
    const int slots = reducing ? larger(ACCUMULATE, smaller(run.streamed, ENGINE_SLOTS)) : turns * chunk;
    const int scalar_words = words_for(run.streamed);
    // Steps of each of a tile's three stages.
    const int hold = run.held_scalars ? run.together * most_rows * scalar_words : 0;
    const int fetch = accumulating ? hold : most_rows * chunk;
    const int stream = reducing    ? chunk * slots
                       : expanding ? run.streamed * chunk
                                   : parts(run.streamed, run.partials) * slots;
    const int store = expanding ? 0 : reducing ? slots * parts(most_rows, LANE_TREES) : most_rows * unit_count * chunk;
    const int pace = larger(larger(fetch, stream), store);
    const int tiles = run.batch * parts(run.passes, run.together) * run.groups * parts(run.words, ENGINE_CHUNK);
    const int first = expanding ? hold + fetch : fetch, last = reducing && run.lines ? store + 2 * most_rows : store;

    Tile fetched, now, stored;
    Counters fetching, streaming, storing;
    int side = 0, sum_side = 0, tile = first > 0 ? -1 : 0, position = 0, steps = first > 0 ? first : pace;
    FullLines full[2];  // two: the last, short word of a row soon follows the one before
    int writes = 0, fills = 0;
    bool storing_now = false;
    if (first == 0) fetched.next(run);  // nothing to fetch before the first tile
    const int all_steps = first + tiles * pace + last;
Steps_Pipeline:
    for (int step = 0; step < all_steps; step++) {
#pragma HLS PIPELINE II=1
#pragma HLS DEPENDENCE variable=sums type=inter direction=RAW distance=6 dependent=true
#pragma HLS DEPENDENCE variable=folded type=inter direction=RAW distance=6 dependent=true
#pragma HLS DEPENDENCE variable=c type=inter dependent=false
        // Fetch for the next tile: a row's scalars (those of `expand` serve all tiles), then its held words.
        if (tile + 1 < tiles && position < hold && (accumulating || tile < 0)) {
            const int sub = fetching.outer, r = fetching.middle, j = fetching.inner;
            const int element = run.first_scalar + (fetched.row(sub) + r) * run.scalar_row;
            if (r < fetched.rows(run, sub)) {
                scalar_rows[expanding ? 0 : 1 - side][r][sub * scalar_words + j] =
                    scalars[fetched.batch * run.scalar_batch + element / LANES + j];
            }
            fetching.next(scalar_words, most_rows);
            if (position + 1 == hold) fetching = Counters();
        } else if (tile + 1 < tiles && !accumulating && fetching.outer == 0) {
            const int r = fetching.middle, w = fetching.inner;
            if (r < fetched.rows(run, 0) && w < fetched.words(run)) {
                held_rows[1 - side][r][w] =
                    held[fetched.batch * run.held_batch + (fetched.row(0) + r) * run.held_row + fetched.word() + w];
            }
            fetching.next(chunk, most_rows);
        }

        // Stream past the rows.
        if (tile >= 0 && tile < tiles && position < stream) {
            // reduce: word by word, slot by slot; else one of the stream after the other, of it unit by unit, word by word.
            const int unit = reducing ? 0 : streaming.middle, w = reducing ? streaming.outer : streaming.inner;
            const int slot = reducing ? streaming.inner : unit * chunk + w, word = now.word() + w;
            const int sub = run.partials == 1 ? unit : 0, part = run.partials == 1 ? 0 : unit;
            const int index = reducing ? now.group * ENGINE_SLOTS + slot : streaming.outer * run.partials + part;
            const bool busy = reducing || unit < unit_count;
            if (busy && index < run.streamed && w < now.words(run) && now.row(sub) < run.rows) {
                float scalar[ENGINE_ROWS] = {};
                if (run.held_scalars) {
                Held_Unroll:
                    for (int r = 0; r < ENGINE_ROWS; r++) {
#pragma HLS UNROLL
                        scalar[r] = scalar_rows[expanding ? 0 : side][r][sub * scalar_words + index / LANES][index % LANES];
                    }
                } else if (!reducing) {
                    read_scalars(scalar, scalars + now.batch * run.scalar_batch,
                                 run.first_scalar + now.row(sub) * run.scalar_row + index * run.scalar_step,
                                 now.rows(run, sub));
                }
                const Word x =
                    expanding ? Word(0.0f) : streamed[now.batch * run.stream_batch + index * run.stream_row + word];
                Word sum = expanding && addend ? addend[index * run.addend_row + word] : Word(0.0f);
                const bool starts = reducing ? word == 0 : streaming.outer == 0;
            Rows_Unroll:
                for (int r = 0; r < ENGINE_ROWS; r++) {
#pragma HLS UNROLL
                    const Word left = expanding ? Word(scalar[r]) : x;
                    const Word right = accumulating ? Word(scalar[r]) : held_rows[side][r][w];
                    const Word before = expanding ? sum : starts ? Word(0.0f) : sums[sum_side][r][slot];
                    const Word after = before + left * right;
                    if (expanding && r < now.rows(run, 0)) sum = after;
                    if (!expanding) sums[sum_side][r][slot] = after;
                }
                if (expanding) c[index * run.c_row + word] = sum;
            }
            streaming.next(reducing ? slots : chunk, reducing ? 1 : turns);
        }

        // Store the sums of the last tile.
        if (storing_now && accumulating && position < store) {
            const int unit = storing.outer, r = storing.middle, w = storing.inner;
            const int sub = run.partials == 1 ? unit : 0, part = run.partials == 1 ? 0 : unit;
            Word sum = part < run.streamed ? sums[1 - sum_side][r][unit * chunk + w] : Word(0.0f);
            if (part > 0) sum = folded[r * chunk + w] + sum;
            if (run.partials > 1) folded[r * chunk + w] = sum;
            if (part + 1 == run.partials && r < stored.rows(run, sub) && w < stored.words(run)) {
                const int row = stored.row(sub) + r, word = stored.word() + w;
                if (addend) sum = addend[row * run.addend_row + word] + sum;
                c[stored.batch * run.c_batch + row * run.c_row + word] = sum;
            }
            storing.next(chunk, most_rows);
        } else if (storing_now && reducing && position < store) {
            const int slot = storing.outer, part = storing.inner, index = stored.group * ENGINE_SLOTS + slot;
            const bool row_ends = index % LANES + 1 == LANES || index + 1 == run.streamed;
        Trees_Unroll:
            for (int t = 0; t < LANE_TREES; t++) {
#pragma HLS UNROLL
                const int r = part * LANE_TREES + t;
                if (r >= ENGINE_ROWS) continue;
                const float value = sum_lanes(sums[1 - sum_side][r][slot]);
                line[r] = value;
                if (index % LANES == 0) lines[r] = Word(0.0f);
                lines[r][index % LANES] = value;
            }
            if (index < run.streamed && part + 1 == parts(most_rows, LANE_TREES)) {
                if (run.lines && row_ends) {
                Lines_Unroll:
                    for (int r = 0; r < ENGINE_ROWS; r++) {
#pragma HLS UNROLL
                        full_lines[fills % 2][r] = lines[r];
                    }
                    full[fills++ % 2] = {stored.batch, stored.row(0), index / LANES, stored.rows(run, 0)};
                } else if (!run.lines) {
                Tail_Unroll:
                    for (int l = 0; l < LANES; l++) {
#pragma HLS UNROLL
                        if (l >= run.rows) line[l] = 0.0f;
                    }
                    const Word before = addend ? addend[index * run.addend_row] + line : line;
                    c[stored.batch * run.c_batch + index * run.c_row] = before;
                }
            }
            storing.next(parts(most_rows, LANE_TREES), 1);
        }
        if (writes != fills) {
            FullLines &oldest = full[writes % 2];
            const int r = --oldest.left, row = oldest.row + r;
            const Word sum = full_lines[writes % 2][r];
            c[oldest.batch * run.c_batch + row * run.c_row + oldest.word] =
                addend ? addend[row * run.addend_row + oldest.word] + sum : sum;
            if (r == 0) writes++;
        }

        // On to the next tile.
        if (++position == steps) {
            if (tile >= 0 && tile < tiles) {
                stored = now;
                storing_now = accumulating || (reducing && now.ends_group(run));
                if (storing_now) sum_side = 1 - sum_side;
                now.next(run);
            }
            if (tile + 1 < tiles) fetched.next(run);
            side = 1 - side;
            fetching = streaming = storing = Counters();
            tile++;
            position = 0;
            steps = tile < tiles ? pace : last;
        }
    }
    return all_steps;
}

// The contractions as runs of the loop; parameters as in engine.h. Each returns its steps.
template <int ENGINE>
static int engine_expand(Word *c, int c_row, const Word *addend, int addend_row, const Word *a, int a_row, int a_depth,
                          const Word *b, int b_row, int rows, int depth, int words) {
    Run run = {};
    run.mode = BY_EXPANDING, run.batch = run.passes = run.groups = run.together = run.partials = 1;
    run.words = words, run.streamed = rows, run.held_scalars = a_depth != 1;
    run.held_row = b_row, run.c_row = c_row, run.scalar_row = a_depth, run.scalar_step = a_row;
    int steps = 0;
Passes:
    for (int d = 0; d < depth; d += ENGINE_ROWS) {
        run.rows = smaller(ENGINE_ROWS, depth - d);
        run.first_scalar = d * a_depth;
        run.addend_row = d > 0 ? c_row : addend_row;
        steps += engine<ENGINE>(c, d > 0 ? c : addend, a, b + d * b_row, b, run);
    }
    return steps;
}

template <int ENGINE>
static int engine_accumulate(Word *c, int c_row, const Word *a, int a_row, int a_depth, const Word *b, int b_row, int rows,
                              int depth, int words, const Batch &batch) {
    Run run = {};
    run.mode = BY_ACCUMULATING, run.batch = batch.count, run.groups = run.partials = 1;
    run.passes = parts(rows, ENGINE_ROWS), run.rows = rows;
    run.together = words < ACCUMULATE ? smaller(run.passes, ENGINE_SLOTS / words) : 1;
    run.words = words, run.streamed = depth, run.held_scalars = a_row != 1;
    run.stream_row = b_row, run.c_row = c_row, run.scalar_row = a_row, run.scalar_step = a_depth;
    run.c_batch = batch.c, run.scalar_batch = batch.a, run.stream_batch = batch.b;
    return engine<ENGINE>(c, nullptr, a, b, b, run);
}

template <int ENGINE, int ROWS, int WORDS, int PARTIALS>
static int engine_accumulate_few(Word *c, const Word *addend, const Word *a, int a_row, int a_depth, const Word *b,
                                  int depth) {
    static_assert(ROWS <= ENGINE_ROWS || PARTIALS == 1, "partial sums are of one pass");
    Run run = {};
    run.mode = BY_ACCUMULATING, run.batch = run.groups = run.passes = run.together = 1, run.partials = PARTIALS;
    run.rows = ROWS, run.words = WORDS, run.streamed = depth, run.held_scalars = a_row != 1;
    run.stream_row = run.c_row = run.addend_row = WORDS, run.scalar_row = a_row, run.scalar_step = a_depth;
    return engine<ENGINE>(c, addend, a, b, b, run);
}

template <int ENGINE>
static int engine_reduce(Word *c, int c_row, const Word *addend, int addend_row, const Word *a, int a_row, const Word *b,
                          int b_row, int rows, int columns, int words, const Batch &batch) {
    Run run = {};
    run.lines = columns > ENGINE_ROWS;
    run.mode = BY_REDUCING, run.batch = batch.count, run.together = run.partials = 1, run.words = words;
    run.rows = run.lines ? rows : columns, run.streamed = run.lines ? columns : rows;
    run.passes = parts(run.rows, ENGINE_ROWS), run.groups = parts(run.streamed, ENGINE_SLOTS);
    run.held_row = run.lines ? a_row : b_row, run.stream_row = run.lines ? b_row : a_row;
    run.held_batch = run.lines ? batch.a : batch.b, run.stream_batch = run.lines ? batch.b : batch.a;
    run.c_row = c_row, run.addend_row = addend_row, run.c_batch = batch.c;
    return engine<ENGINE>(c, addend, a, run.lines ? a : b, run.lines ? b : a, run);
}

#endif
