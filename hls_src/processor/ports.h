// The ports of the banks: one load and one store each. A request's address is switched to the port of its bank before it,
// the word after it. That no two requests of a cycle ask for the same port is the program's duty.
#ifndef BTTLAB_PROCESSOR_PORTS_H
#define BTTLAB_PROCESSOR_PORTS_H

#include "nest.h"

// Who reads and who writes.
enum Reader {
    STREAM_0, SCALARS_0, ADDEND_0, STREAM_1, SCALARS_1, ADDEND_1,
    VECTOR_A, VECTOR_B, VECTOR_C,
    SHUFFLE_SOURCE,
    UPDATE_P, UPDATE_G, UPDATE_M, UPDATE_V,
    READERS
};
enum Writer {
    RESULT_0, RESULT_1, MOVED_0, MOVED_1,
    VECTOR_R0, VECTOR_R1,
    SHUFFLED,
    UPDATED_P, CLEARED_G, UPDATED_M, UPDATED_V,
    WRITERS
};

struct Request {
    bool valid;
    int bank;
    Address address;
};

struct Write {
    Request to;
    Word word;
};

ALWAYS_INLINE Request request(int u, int o, const Nest &nest, bool acts) {
    const bool valid = acts & nest.operand[o].valid;
    return {valid, nest.operand[o].where, address_of(u, o, nest)};
}

// What a port is asked for. An address behind the end of its bank counts as word 0, and is no store; it is `outside`.
struct Port {
    bool valid, outside;
    Address address;
};

ALWAYS_INLINE Port load_port(int bank, int depth, const Request *requests) {
#pragma HLS INLINE
    Address address = 0;
Requests_Unroll:
    UNROLL
    for (int r = 0; r < READERS; r++) {
        address |= requests[r].valid & (requests[r].bank == bank) ? requests[r].address : 0;
    }
    const bool outside = address >= depth;
    return {true, outside, static_cast<Address>(choose(outside, 0, address))};
}

// The word that a request asked for; zeros if it is not valid.
ALWAYS_INLINE Word loaded_word(const Request &request, const Word *loaded) {
#pragma HLS INLINE
    Word word = {};
    if (request.valid) {
    Banks_Unroll:
        UNROLL
        for (int b = 0; b < BANKS; b++) word = choose(request.bank == b, loaded[b], word);
    }
    return word;
}

ALWAYS_INLINE Port store_port(int bank, int depth, const Write *writes) {
#pragma HLS INLINE
    bool valid = false;
    Address address = 0;
Writes_Unroll:
    UNROLL
    for (int w = 0; w < WRITERS; w++) {
        const bool hit = writes[w].to.valid & (writes[w].to.bank == bank);
        valid |= hit;
        address |= hit ? writes[w].to.address : 0;
    }
    const bool outside = address >= depth, stores = valid & !outside;
    return {stores, outside, address};
}

ALWAYS_INLINE Word stored_word(int bank, const Write *writes) {
#pragma HLS INLINE
    Word word = {};
Writes_Unroll:
    UNROLL
    for (int w = 0; w < WRITERS; w++) {
        word = choose(writes[w].to.valid & (writes[w].to.bank == bank), writes[w].word, word);
    }
    return word;
}

// The one load of a bank, and its one store.
#define LOAD_BANK(number, depth, block)                                               \
    {                                                                                 \
        const Port port = load_port(number, depth, requests);                         \
        loaded[number] = number == OUT_BANK ? Word{} : bank_##number[port.address];   \
        outside |= port.outside;                                                      \
    }

#define STORE_BANK(number, depth, block)                                              \
    if (number != IN_BANK) {                                                          \
        const Port port = store_port(number, depth, writes);                          \
        if (port.valid) bank_##number[port.address] = stored_word(number, writes);    \
        outside |= port.outside;                                                      \
    }

// What HLS is told of a bank: its block, and that a word is read LATENCY cycles after it was written, if not later; the
// check of a program shows it.
#define HLS_PRAGMA(text) _Pragma(#text)
#define IMPLEMENTATION_U uram
#define IMPLEMENTATION_B bram
#define BIND_BANK_TO(number, implementation) HLS_PRAGMA(HLS BIND_STORAGE variable=bank_##number type=ram_s2p impl=implementation)
#define BIND_BANK(number, depth, block) BIND_BANK_TO(number, IMPLEMENTATION_##block)
#define BANK_DISTANCE(number, depth, block) \
    HLS_PRAGMA(HLS DEPENDENCE variable=bank_##number type=inter direction=RAW distance=LATENCY dependent=true)

#endif
