// Kernels of one TT linear layer, HIDDEN_SIZE x HIDDEN_SIZE: each contracts it in a flow of its own, forward and backward,
// on the engines of the training kernel. So flows can be run side by side and compared, in results and in cycles.
#include "contract_bidirectional.h"
#include "contract_right_to_left.h"

extern "C" __attribute__((visibility("default"))) void contract_right_to_left(int command, int tokens, const Word *operands,
                                                                               Word *results, IntWord *record) {
#pragma HLS INTERFACE s_axilite port=command
#pragma HLS INTERFACE s_axilite port=tokens
#pragma HLS INTERFACE m_axi port=operands bundle=gmem0 offset=slave
#pragma HLS INTERFACE m_axi port=results bundle=gmem1 offset=slave
#pragma HLS INTERFACE m_axi port=record bundle=gmem2 offset=slave
#pragma HLS INTERFACE s_axilite port=return
// An engine's tokens lie in memories of its own; x, whose rows of a far mode straddle words, in an even and an odd bank.
#pragma HLS ARRAY_PARTITION variable=right_to_left::x dim=1 complete
#pragma HLS ARRAY_PARTITION variable=right_to_left::x dim=2 cyclic factor=2
#pragma HLS ARRAY_PARTITION variable=right_to_left::d_x dim=1 complete
#pragma HLS ARRAY_PARTITION variable=right_to_left::kept dim=1 complete
#pragma HLS ARRAY_PARTITION variable=right_to_left::d_kept dim=1 complete
#pragma HLS ARRAY_PARTITION variable=right_to_left::d_cores dim=1 complete
#pragma HLS ARRAY_PARTITION variable=right_to_left::padded dim=1 complete
#pragma HLS ARRAY_PARTITION variable=right_to_left::reversed dim=1 complete
#pragma HLS ARRAY_PARTITION variable=right_to_left::reversed dim=2 cyclic factor=2
#pragma HLS BIND_STORAGE variable=right_to_left::x type=ram_t2p impl=bram
#pragma HLS BIND_STORAGE variable=right_to_left::d_x type=ram_2p impl=bram
#pragma HLS BIND_STORAGE variable=right_to_left::kept type=ram_t2p impl=uram
#pragma HLS BIND_STORAGE variable=right_to_left::d_kept type=ram_t2p impl=uram
#pragma HLS BIND_STORAGE variable=right_to_left::padded type=ram_2p impl=uram
#pragma HLS BIND_STORAGE variable=right_to_left::reversed type=ram_t2p impl=bram
#pragma HLS BIND_STORAGE variable=right_to_left::cores type=ram_t2p impl=bram
    static int kept = 0;  // tokens of the forward pass that is on chip
    const int status = check_call(command, tokens, kept);
    clear_notes();
    if (status == DONE && command == FORWARD) {
        right_to_left::forward(results, operands, tokens);
        kept = tokens;
    } else if (status == DONE && command == BACKWARD) {
        right_to_left::backward(results, operands, tokens);
    }
    write_record(record, status);
}

extern "C" __attribute__((visibility("default"))) void contract_bidirectional(int command, int tokens, const Word *operands,
                                                                               Word *results, IntWord *record) {
#pragma HLS INTERFACE s_axilite port=command
#pragma HLS INTERFACE s_axilite port=tokens
#pragma HLS INTERFACE m_axi port=operands bundle=gmem0 offset=slave
#pragma HLS INTERFACE m_axi port=results bundle=gmem1 offset=slave
#pragma HLS INTERFACE m_axi port=record bundle=gmem2 offset=slave
#pragma HLS INTERFACE s_axilite port=return
// An engine's tokens lie in memories of its own; merged halves serve both engines, so both their ports read.
#pragma HLS ARRAY_PARTITION variable=bidirectional::x dim=1 complete
#pragma HLS ARRAY_PARTITION variable=bidirectional::z dim=1 complete
#pragma HLS BIND_STORAGE variable=bidirectional::x type=ram_2p impl=bram
#pragma HLS BIND_STORAGE variable=bidirectional::z type=ram_2p impl=bram
#pragma HLS BIND_STORAGE variable=bidirectional::merged_out type=ram_t2p impl=bram
#pragma HLS BIND_STORAGE variable=bidirectional::merged_in type=ram_t2p impl=bram
#pragma HLS BIND_STORAGE variable=bidirectional::tail_out type=ram_2p impl=bram
#pragma HLS BIND_STORAGE variable=bidirectional::tail_in type=ram_2p impl=bram
#pragma HLS BIND_STORAGE variable=bidirectional::reversed type=ram_2p impl=bram
#pragma HLS BIND_STORAGE variable=bidirectional::cores type=ram_t2p impl=bram
    static int kept = 0;  // tokens of the forward pass that is on chip
    const int status = check_call(command, tokens, kept);
    clear_notes();
    if (status == DONE && command == FORWARD) {
        bidirectional::forward(results, operands, tokens);
        kept = tokens;
    } else if (status == DONE && command == BACKWARD) {
        bidirectional::backward(results, operands, tokens);
    }
    write_record(record, status);
}
