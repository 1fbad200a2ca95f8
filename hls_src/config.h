// How wide the hardware is. Every parallelism and tile constant of the accelerator stands here; Python reads them from
// this file (lib/bttlab/u50/hardware.py).
#ifndef BTTLAB_CONFIG_H
#define BTTLAB_CONFIG_H

constexpr int CLOCK_MHZ = 200;

// Lanes of a word: FP32 values that every on-chip memory and HBM port moves in one cycle (16 x 32 = 512 bits, the width
// of an HBM AXI port after the U50's data-width converter).
constexpr int LANES = 16;

// Contraction engines (engine.h): one for each end of a tensor train.
constexpr int ENGINES = 2;

// An engine: ENGINE_ROWS rows x LANES lanes of one multiplier and one adder. 12 rows: the rank of the linear layers, so
// that a contraction with a rank fills them whatever the number of tokens.
constexpr int ENGINE_ROWS = 12;
// Words of a row that are worked on while the next ones are fetched, and the sums of words that a row keeps.
constexpr int ENGINE_CHUNK = 8, ENGINE_SLOTS = 32;
// Words whose lanes an engine sums up each cycle.
constexpr int LANE_TREES = 4;

// Linear layers whose merged halves are kept at once: those of two encoders and the poolers. The backward pass merges the
// halves of an encoder again if they were not among the last, beside the LayerNorms of the encoder after it (encoder.h).
constexpr int MERGED_LAYERS = 14;

// Lanes of GELU, tanh and softmax: they are the dearest units by far, and few words need them.
constexpr int FUNCTION_LANES = 2;

// Units of the update, each a word a cycle; AdamW, with its roots and divisions, UPDATE_LANES of it.
constexpr int UPDATE_UNITS = 2;
constexpr int UPDATE_LANES = 8;

static_assert(LANES == 16, "the trees of word.h and emulation/hls_vector.h are written for 16 lanes");
static_assert(LANES % FUNCTION_LANES == 0 && LANES % UPDATE_LANES == 0, "the lanes of a unit must divide a word");
static_assert(ENGINE_ROWS <= LANES, "the scalars of a step come in one word");

#endif
