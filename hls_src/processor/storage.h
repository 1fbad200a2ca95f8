// How the machine's memories are built, and what programs promise of them. `bttlab schedule` reads these pragmas, and looks
// whether the loop's pipeline keeps to them.
#ifndef BTTLAB_PROCESSOR_STORAGE_H
#define BTTLAB_PROCESSOR_STORAGE_H

#include "config.h"

#define HLS(...) HLS_TEXT(HLS __VA_ARGS__)
#define HLS_TEXT(...) _Pragma(#__VA_ARGS__)

#define BLOCK_U uram
#define BLOCK_B bram
#define BANK_STORAGE(number, depth, block) \
    HLS(BIND_STORAGE variable=bank_##number type=ram_2p impl=BLOCK_##block latency=3)
#define BANK_PROMISE(number, depth, block) HLS(DEPENDENCE variable=bank_##number type=inter dependent=false)

// In the function of the loop: dimensions that are memories of their own, and what these are made of. A sum is added to again
// so soon, and an instruction leads so soon to the next one, that their memories answer in the next cycle.
#define MACHINE_STORAGE                                                        \
    BTTLAB_BANKS(BANK_STORAGE)                                                 \
    HLS(ARRAY_PARTITION variable=held complete dim=1)                          \
    HLS(ARRAY_PARTITION variable=held complete dim=2)                          \
    HLS(BIND_STORAGE variable=held type=ram_2p impl=bram latency=3)            \
    HLS(ARRAY_PARTITION variable=sums complete dim=1)                          \
    HLS(ARRAY_PARTITION variable=sums complete dim=2)                          \
    HLS(ARRAY_PARTITION variable=sums complete dim=3)                          \
    HLS(BIND_STORAGE variable=sums type=ram_2p impl=lutram latency=1)          \
    HLS(ARRAY_PARTITION variable=statistic complete dim=1)                     \
    HLS(BIND_STORAGE variable=statistic type=ram_2p impl=bram latency=3)       \
    HLS(ARRAY_PARTITION variable=accumulator complete dim=1)                   \
    HLS(BIND_STORAGE variable=accumulator type=ram_2p impl=lutram latency=1)   \
    HLS(BIND_STORAGE variable=largest type=ram_2p impl=lutram latency=1)       \
    HLS(BIND_STORAGE variable=largest_place type=ram_2p impl=lutram latency=1) \
    HLS(ARRAY_PARTITION variable=columns complete dim=1)                       \
    HLS(BIND_STORAGE variable=columns type=ram_2p impl=lutram latency=1)       \
    HLS(ARRAY_PARTITION variable=shuffle_fields complete dim=1)                \
    HLS(BIND_STORAGE variable=shuffle_fields type=ram_2p impl=bram latency=3)  \
    HLS(ARRAY_PARTITION variable=lane_table complete dim=1)                    \
    HLS(ARRAY_PARTITION variable=lane_table complete dim=2)                    \
    HLS(BIND_STORAGE variable=lane_table type=ram_2p impl=bram latency=3)      \
    HLS(ARRAY_PARTITION variable=instruction_memory complete dim=1)            \
    HLS(BIND_STORAGE variable=instruction_memory type=ram_2p impl=bram latency=1) \
    HLS(ARRAY_PARTITION variable=queue complete dim=1)                         \
    HLS(ARRAY_PARTITION variable=queue complete dim=2)                         \
    HLS(BIND_STORAGE variable=queue type=ram_2p impl=lutram latency=1)         \
    HLS(ARRAY_PARTITION variable=ended_before complete dim=1)                  \
    HLS(BIND_STORAGE variable=ended_before type=ram_2p impl=lutram latency=1)  \
    HLS(ARRAY_PARTITION variable=registers complete dim=1)                     \
    HLS(BIND_STORAGE variable=registers type=ram_2p impl=lutram latency=1)     \
    HLS(ARRAY_PARTITION variable=slices complete dim=1)                        \
    HLS(ARRAY_PARTITION variable=slices complete dim=2)                        \
    HLS(BIND_STORAGE variable=slices type=ram_2p impl=lutram latency=1)        \
    HLS(ARRAY_PARTITION variable=immediates complete dim=1)                    \
    HLS(BIND_STORAGE variable=immediates type=ram_2p impl=lutram latency=1)    \
    HLS(BIND_STORAGE variable=functions type=ram_2p impl=lutram latency=1)     \
    HLS(BIND_STORAGE variable=labels type=ram_2p impl=lutram latency=1)        \
    HLS(BIND_STORAGE variable=loss_sum type=ram_2p impl=lutram latency=1)      \
    HLS(BIND_STORAGE variable=loss_margin type=ram_2p impl=lutram latency=1)   \
    HLS(BIND_STORAGE variable=argument type=ram_2p impl=lutram latency=1)

// In the loop. What a step computes is read LATENCY steps later at the earliest; a sum is added to again after SUM_DISTANCE
// steps; a block goes through the shuffle SHUFFLE_GAP steps before the next comes out; counts of instructions
// that ended come back when the ring of them has turned. A pragma takes no constant.
#define MACHINE_PROMISES                                                                            \
    BTTLAB_BANKS(BANK_PROMISE)                                                                      \
    HLS(DEPENDENCE variable=held type=inter dependent=false)                                        \
    HLS(DEPENDENCE variable=statistic type=inter dependent=false)                                   \
    HLS(DEPENDENCE variable=sums type=inter direction=RAW distance=8 dependent=true)                \
    HLS(DEPENDENCE variable=accumulator type=inter direction=RAW distance=8 dependent=true)         \
    HLS(DEPENDENCE variable=largest type=inter direction=RAW distance=8 dependent=true)             \
    HLS(DEPENDENCE variable=largest_place type=inter direction=RAW distance=8 dependent=true)       \
    HLS(DEPENDENCE variable=columns type=inter direction=RAW distance=16 dependent=true)            \
    HLS(DEPENDENCE variable=ended_before type=inter direction=RAW distance=174 dependent=true)
static_assert(SUM_DISTANCE == 8 && SHUFFLE_GAP == 16 && LATENCY - 2 == 174, "the distances that the pragmas promise");

#endif
