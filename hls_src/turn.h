// Elements that change places within rows: gaps closed and opened, modes reversed. Whole words a cycle; one element at a
// time each of these would take longer than the contractions beside it.
#ifndef BTTLAB_TURN_H
#define BTTLAB_TURN_H

#include "cycles.h"
#include "shape.h"

// out (rows x columns, no gaps) from in (a word a row). The elements that do not fill a word yet wait in `open`.
template <int ROWS, int COLUMNS>
static void pack(Word *out, const Word *in) {
    static_assert(COLUMNS <= LANES && ROWS * COLUMNS % LANES == 0, "a row is a word, and all rows fill whole words");
    float open[2 * LANES] = {};
#pragma HLS ARRAY_PARTITION variable=open complete
    int filled = 0, words = 0;
    loop(ROWS, 1, READ + WRITE + START);
Rows_Pipeline:
    for (int row = 0; row < ROWS; row++) {
#pragma HLS PIPELINE II=1
        const Word value = in[row];
    Append_Unroll:
        for (int i = 0; i < COLUMNS; i++) {
#pragma HLS UNROLL
            open[filled + i] = value[i];
        }
        filled += COLUMNS;
        if (filled < LANES) continue;
        Word full;
    Take_Unroll:
        for (int l = 0; l < LANES; l++) {
#pragma HLS UNROLL
            full[l] = open[l];
            open[l] = open[LANES + l];
        }
        out[words++] = full;
        filled -= LANES;
    }
}

// And back, with zeros in the gaps.
template <int ROWS, int COLUMNS>
static void unpack(Word *out, const Word *in) {
    static_assert(COLUMNS <= LANES && ROWS * COLUMNS % LANES == 0, "a row is a word, and all rows fill whole words");
    float open[2 * LANES] = {};
#pragma HLS ARRAY_PARTITION variable=open complete
    int filled = 0, words = 0;
    loop(ROWS, 1, READ + WRITE + START);
Rows_Pipeline:
    for (int row = 0; row < ROWS; row++) {
#pragma HLS PIPELINE II=1
        if (filled < COLUMNS) {
            const Word next = in[words++];
        Append_Unroll:
            for (int l = 0; l < LANES; l++) {
#pragma HLS UNROLL
                open[filled + l] = next[l];
            }
            filled += LANES;
        }
        Word value(0.0f);
    Take_Unroll:
        for (int i = 0; i < COLUMNS; i++) {
#pragma HLS UNROLL
            value[i] = open[i];
        }
    Shift_Unroll:
        for (int l = 0; l + COLUMNS < 2 * LANES; l++) {
#pragma HLS UNROLL
            open[l] = open[l + COLUMNS];
        }
        filled -= COLUMNS;
        out[row] = value;
    }
}

// Where element (i1 i2 i3) of a row with the output modes lies in the buffer between its two orders: LANES banks, so
// skewed that the LANES elements of any word, in either order, lie in different ones. In the order i3 i2 i1 a word's
// elements have one i3 and follow each other in (i2 i1); in the order i1 i2 i3 they are OUT_MODE_3 of i3 with LANES /
// OUT_MODE_3 of i2.
constexpr int bank_of(int i1, int i2, int i3) { return (i2 * OUT_MODE_1 + i1 + i3 + i3 / 4 * 4) % LANES; }

// Indices of element e of a row in either order.
struct Indices {
    int i1, i2, i3;
};
template <bool REVERSED>
static inline Indices indices_of(int e) {
#pragma HLS INLINE
    if (REVERSED) return {e % OUT_MODE_1, e / OUT_MODE_1 % OUT_MODE_2, e / (OUT_MODE_1 * OUT_MODE_2)};
    return {e / (OUT_MODE_2 * OUT_MODE_3), e / OUT_MODE_3 % OUT_MODE_2, e % OUT_MODE_3};
}

// Rows of HIDDEN_SIZE from the order i3 i2 i1 to i1 i2 i3 (FROM_REVERSED), or back: a row is written to the buffer while
// the one before is read from it, each bank at one address a cycle.
template <bool FROM_REVERSED>
static void turn_banked(Word *out, const Word *in, int rows) {
    static float buffer[2][LANES][HIDDEN_WORDS];
#pragma HLS ARRAY_PARTITION variable=buffer dim=1 complete
#pragma HLS ARRAY_PARTITION variable=buffer dim=2 complete
Words_Pipeline:
    for (int step = 0, row = 0, w = 0; step < (rows + 1) * HIDDEN_WORDS; step++) {
#pragma HLS PIPELINE II=1
#pragma HLS DEPENDENCE variable=buffer type=inter dependent=false
        const Word incoming = row < rows ? in[row * HIDDEN_WORDS + w] : Word(0.0f);
        int bank_in[LANES], bank_out[LANES], write_at[LANES] = {}, read_at[LANES] = {};
        float to_bank[LANES] = {}, from_bank[LANES];
    Lanes_Unroll:
        for (int l = 0; l < LANES; l++) {
#pragma HLS UNROLL
            const Indices from = indices_of<FROM_REVERSED>(w * LANES + l), to = indices_of<!FROM_REVERSED>(w * LANES + l);
            bank_in[l] = bank_of(from.i1, from.i2, from.i3);
            bank_out[l] = bank_of(to.i1, to.i2, to.i3);
        Banks_Unroll:
            for (int b = 0; b < LANES; b++) {
#pragma HLS UNROLL
                // A bank's address: the word, in the order i3 i2 i1, that its element lies in.
                if (bank_in[l] == b) {
                    write_at[b] = ((from.i3 * OUT_MODE_2 + from.i2) * OUT_MODE_1 + from.i1) / LANES;
                    to_bank[b] = incoming[l];
                }
                if (bank_out[l] == b) read_at[b] = ((to.i3 * OUT_MODE_2 + to.i2) * OUT_MODE_1 + to.i1) / LANES;
            }
        }
    Access_Unroll:
        for (int b = 0; b < LANES; b++) {
#pragma HLS UNROLL
            from_bank[b] = buffer[(row + 1) % 2][b][read_at[b]];
            if (row < rows) buffer[row % 2][b][write_at[b]] = to_bank[b];
        }
        Word outgoing;
    Outgoing_Unroll:
        for (int l = 0; l < LANES; l++) {
#pragma HLS UNROLL
            outgoing[l] = from_bank[bank_out[l]];
        }
        if (row > 0) out[(row - 1) * HIDDEN_WORDS + w] = outgoing;
        if (++w == HIDDEN_WORDS) w = 0, row++;
    }
}

// The same for a native compiler.
template <bool FROM_REVERSED>
static void turn_by_element(Word *out, const Word *in, int rows) {
    constexpr int N1 = FROM_REVERSED ? OUT_MODE_1 : OUT_MODE_3, N2 = OUT_MODE_2;
    constexpr int N3 = FROM_REVERSED ? OUT_MODE_3 : OUT_MODE_1;
    for (int row = 0; row < rows; row++) {
        for (int i2 = 0; i2 < N2; i2++) {
            for (int i3 = 0; i3 < N3; i3++) {
                for (int i1 = 0; i1 < N1; i1++) {
                    set_element(out, row * HIDDEN_SIZE + (i1 * N2 + i2) * N3 + i3,
                                element(in, row * HIDDEN_SIZE + (i3 * N2 + i2) * N1 + i1));
                }
            }
        }
    }
}

template <bool FROM_REVERSED>
static void turn(Word *out, const Word *in, int rows) {
#pragma HLS INLINE off
    loop((rows + 1) * HIDDEN_WORDS, 1, READ + READ + WRITE + START);
#if defined(__SYNTHESIS__)
    turn_banked<FROM_REVERSED>(out, in, rows);
#else
    turn_by_element<FROM_REVERSED>(out, in, rows);
#endif
}

#endif
