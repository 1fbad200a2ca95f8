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

// The address at a port's load. No request: that of word 0, as for one behind the bank's end.
ALWAYS_INLINE Address load_address(int bank, int depth, const Request *requests) {
#pragma HLS INLINE
    Address address = 0;
Requests_Unroll:
    UNROLL
    for (int r = 0; r < READERS; r++) {
        address |= requests[r].valid & (requests[r].bank == bank) ? requests[r].address : 0;
    }
    return address < depth ? address : 0;
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

// What a port's store gets.
ALWAYS_INLINE Write port_store(int bank, int depth, const Write *writes) {
#pragma HLS INLINE
    Write chosen = {{false, bank, 0}, {}};
Writes_Unroll:
    UNROLL
    for (int w = 0; w < WRITERS; w++) {
        const bool hit = writes[w].to.valid & (writes[w].to.bank == bank);
        chosen.to.valid |= hit;
        chosen.to.address |= hit ? writes[w].to.address : 0;
        chosen.word = choose(hit, writes[w].word, chosen.word);
    }
    chosen.to.valid &= chosen.to.address < depth;
    return chosen;
}

#define LOAD_BANK(number, depth, block) \
    loaded[number] = number == OUT_BANK ? Word{} : bank_##number[load_address(number, depth, requests)];

#define STORE_BANK(number, depth, block)                             \
    if (number != IN_BANK) {                                         \
        const Write write = port_store(number, depth, writes);       \
        if (write.to.valid) bank_##number[write.to.address] = write.word; \
    }

#endif
