// The pragmas that bind the loop's memories to memory types.
#ifndef BTTLAB_PROCESSOR_MEMORIES_H
#define BTTLAB_PROCESSOR_MEMORIES_H

#include "ports.h"

// Block RAM and UltraRAM for banks, operand buffers and tables, LUT RAM for small arrays.
// Each row, lane, unit and copy is a separate memory.
#define BIND_ENGINE_MEMORIES \
    HLS_PRAGMA(HLS ARRAY_PARTITION variable=operand_buffer dim=1 complete) \
    HLS_PRAGMA(HLS ARRAY_PARTITION variable=operand_buffer dim=2 complete) \
    HLS_PRAGMA(HLS BIND_STORAGE variable=operand_buffer type=ram_s2p impl=bram latency=3) \
    HLS_PRAGMA(HLS ARRAY_PARTITION variable=sums dim=1 complete) \
    HLS_PRAGMA(HLS ARRAY_PARTITION variable=sums dim=2 complete) \
    HLS_PRAGMA(HLS ARRAY_PARTITION variable=sums dim=3 complete) \
    HLS_PRAGMA(HLS BIND_STORAGE variable=sums type=ram_s2p impl=lutram latency=1)
#define BIND_VECTOR_MEMORIES \
    HLS_PRAGMA(HLS ARRAY_PARTITION variable=statistic dim=1 complete) \
    HLS_PRAGMA(HLS BIND_STORAGE variable=statistic type=ram_s2p impl=bram latency=3) \
    HLS_PRAGMA(HLS ARRAY_PARTITION variable=accumulator dim=1 complete) \
    HLS_PRAGMA(HLS BIND_STORAGE variable=accumulator type=ram_s2p impl=lutram latency=1) \
    HLS_PRAGMA(HLS BIND_STORAGE variable=largest type=ram_s2p impl=lutram latency=1) \
    HLS_PRAGMA(HLS BIND_STORAGE variable=largest_place type=ram_s2p impl=lutram latency=1) \
    HLS_PRAGMA(HLS ARRAY_PARTITION variable=lane_table dim=1 complete) \
    HLS_PRAGMA(HLS ARRAY_PARTITION variable=lane_table dim=2 complete) \
    HLS_PRAGMA(HLS BIND_STORAGE variable=lane_table type=ram_s2p impl=bram latency=3) \
    HLS_PRAGMA(HLS ARRAY_PARTITION variable=immediates dim=1 complete) \
    HLS_PRAGMA(HLS BIND_STORAGE variable=immediates type=ram_s2p impl=lutram latency=1) \
    HLS_PRAGMA(HLS BIND_STORAGE variable=functions type=ram_s2p impl=lutram latency=1) \
    HLS_PRAGMA(HLS BIND_STORAGE variable=labels type=ram_s2p impl=lutram latency=1) \
    HLS_PRAGMA(HLS BIND_STORAGE variable=loss_sum type=ram_s2p impl=lutram latency=1) \
    HLS_PRAGMA(HLS BIND_STORAGE variable=loss_margin type=ram_s2p impl=lutram latency=1) \
    HLS_PRAGMA(HLS BIND_STORAGE variable=argument type=ram_s2p impl=lutram latency=1)
#define BIND_SHUFFLE_MEMORIES \
    HLS_PRAGMA(HLS ARRAY_PARTITION variable=shuffle_fields dim=1 complete) \
    HLS_PRAGMA(HLS BIND_STORAGE variable=shuffle_fields type=ram_s2p impl=bram latency=3) \
    HLS_PRAGMA(HLS ARRAY_PARTITION variable=columns dim=1 complete) \
    HLS_PRAGMA(HLS BIND_STORAGE variable=columns type=ram_s2p impl=lutram latency=1)
// The instruction memory is on the dependence cycle from one instruction to the next, which has FETCH cycles in all.
#define BIND_ISSUE_MEMORIES \
    HLS_PRAGMA(HLS ARRAY_PARTITION variable=instruction_memory dim=1 complete) \
    HLS_PRAGMA(HLS BIND_STORAGE variable=instruction_memory type=ram_s2p impl=bram latency=1) \
    HLS_PRAGMA(HLS ARRAY_PARTITION variable=queue dim=1 complete) \
    HLS_PRAGMA(HLS ARRAY_PARTITION variable=queue dim=2 complete) \
    HLS_PRAGMA(HLS BIND_STORAGE variable=queue type=ram_s2p impl=lutram latency=1) \
    HLS_PRAGMA(HLS ARRAY_PARTITION variable=ended_before dim=1 complete) \
    HLS_PRAGMA(HLS BIND_STORAGE variable=ended_before type=ram_s2p impl=lutram latency=1) \
    HLS_PRAGMA(HLS ARRAY_PARTITION variable=begun_before dim=1 complete) \
    HLS_PRAGMA(HLS BIND_STORAGE variable=begun_before type=ram_s2p impl=lutram latency=1) \
    HLS_PRAGMA(HLS ARRAY_PARTITION variable=registers dim=1 complete) \
    HLS_PRAGMA(HLS BIND_STORAGE variable=registers type=ram_s2p impl=lutram latency=1) \
    HLS_PRAGMA(HLS ARRAY_PARTITION variable=token_offsets dim=1 complete) \
    HLS_PRAGMA(HLS ARRAY_PARTITION variable=token_offsets dim=2 complete) \
    HLS_PRAGMA(HLS BIND_STORAGE variable=token_offsets type=ram_s2p impl=lutram latency=1)

#define BIND_MEMORIES          \
    BTTLAB_BANKS(BIND_BANK)    \
    BIND_ENGINE_MEMORIES       \
    BIND_VECTOR_MEMORIES       \
    BIND_SHUFFLE_MEMORIES      \
    BIND_ISSUE_MEMORIES

#endif
