// How long operators and memories take, in cycles at the kernel's clock: what the depth and the initiation interval (II)
// of every loop are argued from. A loop of n iterations takes n x II + depth.
//
// FP32 operators as Vitis HLS instantiates them from the floating-point operator of PG060, full or maximum DSP usage, on
// UltraScale+ speed grade -2 at 200 MHz. The core is pipelined as deep as the clock asks: an adder takes 4 cycles where
// the clock is slow, 7 at 300 MHz and 11 at its fastest; BIND_OP can pin what stands here.
#ifndef BTTLAB_TIMING_H
#define BTTLAB_TIMING_H

constexpr int ADD = 5;       // addition, subtraction
constexpr int MUL = 4;       // multiplication
constexpr int DIV = 16;      // division, in logic (28 at its fastest)
constexpr int ROOT = 16;     // square root, in logic (28 at its fastest)
constexpr int POWER = 12;    // multiplication in double precision
constexpr int COMPARE = 2;   // comparison and selection
constexpr int READ = 3;      // UltraRAM or block RAM: address, array, output register
constexpr int WRITE = 1;     // a value written is there for the next read
constexpr int HBM = 120;     // from an AXI read request to its first word, through the HBM switch
constexpr int START = 4;     // of a function or of a loop nest that is not flattened: the state machine's steps in and out

// A sum of one value a cycle into one place must wait for the adder; into SLOTS places in turn it need not.
constexpr int ACCUMULATE = ADD + WRITE;
static_assert(ACCUMULATE == 6, "the DEPENDENCE pragmas of loops that add up say 6, and a pragma takes no constant there");

// Chains of operators, as functions.h writes them.
constexpr int LANE_TREE = 4 * ADD;
constexpr int EXPONENTIAL = COMPARE + (MUL + ADD) + ADD + (MUL + ADD) + ADD + 7 * (MUL + ADD) + MUL;
constexpr int LOGARITHM = ADD + DIV + MUL + 4 * (MUL + ADD) + MUL + ADD;
constexpr int TANGENT = MUL + EXPONENTIAL + ADD + DIV + COMPARE;
constexpr int DISTRIBUTION = COMPARE + 8 * (MUL + ADD) + MUL + EXPONENTIAL + MUL + ADD + COMPARE;
constexpr int DENSITY = 2 * MUL + EXPONENTIAL + MUL;

#endif
