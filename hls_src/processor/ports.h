// The ports of the banks: one load and one store each. A request's address is switched to the port of its bank before the
// access, the vector after it. The program must not send two requests to one port in a cycle, nor a request to a bank
// that the unit does not reach.
#ifndef BTTLAB_PROCESSOR_PORTS_H
#define BTTLAB_PROCESSOR_PORTS_H

#include "engine.h"
#include "nest.h"
#include "reach.h"

struct Request {
    bool valid;
    int bank;
    Address address;
};

// The vector that a code names, of those whose bit is in the mask: a tree of switches of two, a level for each bit of the code.
// Two levels of it are a LUT a bit, and where there is no vector, there is no switch.
ALWAYS_INLINE Vector vector_at(int code, const Vector *vectors, int mask) {
#pragma HLS INLINE
    Vector tree[32];
#pragma HLS ARRAY_PARTITION variable=tree complete
    UNROLL
    for (int i = 0; i < 32; i++) {
        if (mask >> i & 1) tree[i] = vectors[i];
    }
Levels_Unroll:
    UNROLL
    for (int level = 0; level < 5; level++) {
        const int span = 1 << level, half = (1 << span) - 1;
    Pairs_Unroll:
        UNROLL
        for (int i = 0; i < 32; i += 2 * span) {
            const bool one = mask >> i & half, other = mask >> (i + span) & half;
            if (one & other) tree[i] = choose(code >> level & 1, tree[i + span], tree[i]);
            if (!one & other) tree[i] = tree[i + span];
        }
    }
    return tree[0];
}

// Returned by reference to keep its fields apart: a small struct that is returned by value is packed into 64-bit integers.
ALWAYS_INLINE void request(Request &to, int u, int o, const Nest &nest, bool active) {
    to.valid = active & nest.operand[o].valid;
    to.bank = nest.operand[o].where;
    to.address = address_of(u, o, nest);
}

// A request to a port. An address outside its bank reads vector 0, stores nothing, and sets `outside`.
struct LoadPort {
    bool outside;
    Address address;
};

ALWAYS_INLINE void load_port(LoadPort &port, int bank, int depth, const Request *requests) {
#pragma HLS INLINE
    Address address = 0;
Requests_Unroll:
    UNROLL
    for (int r = 0; r < READERS; r++) {
        if (read_by(r) >> bank & 1) {
            address |= requests[r].valid & (requests[r].bank == bank) ? requests[r].address : 0;
        }
    }
    port.outside = address >= depth;
    port.address = choose(port.outside, 0, address);
}

// Readers that use their vector only if their request is valid. All others read zeros without a valid request.
constexpr bool needs_no_zeros(int reader) {
    return reader == VECTOR_B || reader == SHUFFLE_SOURCE || (reader >= UPDATE_P && reader <= UPDATE_V);
}

// The vector for a reader's request.
ALWAYS_INLINE Vector loaded_vector(int reader, const Request &request, const Vector *loaded) {
#pragma HLS INLINE
    const Vector vector = vector_at(request.bank, loaded, read_by(reader));
    return needs_no_zeros(reader) ? vector : choose(request.valid, vector, Vector{});
}

struct StorePort {
    bool valid, outside;
    int writer;
    Address address;
};

ALWAYS_INLINE void store_port(StorePort &port, int bank, int depth, const Request *requests) {
#pragma HLS INLINE
    bool valid = false;
    Address address = 0;
    int writer = 0;
Writes_Unroll:
    UNROLL
    for (int w = 0; w < WRITERS; w++) {
        if (written_by(w) >> bank & 1) {
            const bool hit = requests[w].valid & (requests[w].bank == bank);
            valid |= hit;
            address |= hit ? requests[w].address : 0;
            writer |= hit ? w : 0;
        }
    }
    port.outside = address >= depth;
    port.valid = valid & !port.outside;
    port.writer = writer;
    port.address = address;
}

// The writers of a bank, one bit each.
constexpr int writers_of(int bank, int writer = 0) {
    return writer == WRITERS ? 0 : (written_by(writer) >> bank & 1) << writer | writers_of(bank, writer + 1);
}

// The one load of a bank, and its one store.
#define LOAD_BANK(number, depth, block)                                               \
    {                                                                                 \
        LoadPort port;                                                                \
        load_port(port, number, depth, requests);                                     \
        loaded[number] = number == OUT_BANK ? Vector{} : bank_##number[port.address];   \
        outside |= port.outside;                                                      \
    }

#define STORE_BANK(number, depth, block)                                                    \
    if (number != IN_BANK) {                                                                \
        constexpr int writers = writers_of(number);                                         \
        StorePort port;                                                                     \
        store_port(port, number, depth, to);                                                \
        const bool by_engine = writers & (1 << ENGINE_OUT_0 | 1 << ENGINE_OUT_1);           \
        const int writer = by_engine ? delay<ENGINE_CYCLES>(port.writer) : port.writer;  \
        if (port.valid) bank_##number[port.address] = vector_at(writer, vectors, writers);      \
        outside |= port.outside;                                                            \
    }

// Pragmas of a bank: its memory type, and that a vector is read LATENCY cycles or more after it was written; the check
// of a program proves that.
#define HLS_PRAGMA(text) _Pragma(#text)
#define IMPLEMENTATION_U uram
#define IMPLEMENTATION_B bram
#define BIND_BANK_TO(number, implementation) \
    HLS_PRAGMA(HLS BIND_STORAGE variable=bank_##number type=ram_s2p impl=implementation latency=3)
#define BIND_BANK(number, depth, block) BIND_BANK_TO(number, IMPLEMENTATION_##block)
#define BANK_DISTANCE(number, depth, block) \
    HLS_PRAGMA(HLS DEPENDENCE variable=bank_##number type=inter direction=RAW distance=LATENCY dependent=true)

#endif
