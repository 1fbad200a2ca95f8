// How wide the hardware is. Every parallelism and tile constant of the accelerator stands here.
#ifndef BTTLAB_CONFIG_H
#define BTTLAB_CONFIG_H

// Lanes of a word: FP32 values that every on-chip memory and HBM port moves in one cycle (16 x 32 = 512 bits, the width
// of an HBM AXI port after the U50's data-width converter).
constexpr int LANES = 16;

constexpr int CLOCK_MHZ = 200;

// The contraction engine's tile of results (engine.h): 12 rows x 16 lanes = 192 multiply-accumulates a cycle, and 8 words
// visited in turn, so that an accumulator is needed again only 8 cycles later: no less than the latency of a FP32 adder at
// 300 MHz, which is what lets the loop start a step every cycle.
constexpr int ENGINE_ROWS = 12, ENGINE_SLOTS = 8;

// The emulation takes tiles that fit the host's vector registers; the order in which each result is summed does not depend
// on the tile.
#if defined(__SYNTHESIS__)
constexpr int OUTER_ROWS = ENGINE_ROWS, OUTER_WORDS = ENGINE_SLOTS;
constexpr int INNER_ROWS = ENGINE_ROWS, INNER_COLUMNS = ENGINE_SLOTS;
#elif defined(__AVX512F__)
constexpr int OUTER_ROWS = 4, OUTER_WORDS = 2;
constexpr int INNER_ROWS = 4, INNER_COLUMNS = 4;
#else
constexpr int OUTER_ROWS = 4, OUTER_WORDS = 1;
constexpr int INNER_ROWS = 4, INNER_COLUMNS = 1;
#endif

static_assert(LANES == 16, "the trees of word.h and emulation/hls_vector.h are written for 16 lanes");
static_assert(LANES % INNER_COLUMNS == 0, "a tile of contract_inner must divide a word of results");

#endif
