// The kernel: its ports, and the commands around the machine's loop. docs/processor.md defines programs.
//
//   DESCRIBE      writes the machine's widths to results
//   LOAD_PROGRAM  takes a program; `samples` counts the vectors of its image
//   LOAD, STORE   parameters and moments from HBM into the chip, and back
//   TRAIN         for each sample: forward and backward pass; its update beside the forward pass of the next, or alone
//   PREDICT       for each sample: forward pass only; loss against the labels of the record
//
// All state stays on chip between calls.
#if defined(BTTLAB_FAST)
#include "emulation/run.h"
#else
#include "machine.h"
#endif
#include "load_program.h"
#include "samples.h"

// Limits that keep parameters and moments finite, in addition to those of vector.h (derived in docs/accelerator.md).
constexpr float RATE_LIMIT = 1073741824.0f;             // 2^30
constexpr float FACTOR_LIMIT = 1152921504606846976.0f;  // 2^60

struct Optimizer {
    int name;
    float beta1, beta2, epsilon;
};

// Returns true if torch.optim accepts this optimizer and its constants.
static bool is_known(const Optimizer &optimizer) {
    return optimizer.name >= SGD && optimizer.name <= ADAMW && optimizer.beta1 >= 0.0f && optimizer.beta1 < 1.0f &&
           optimizer.beta2 >= 0.0f && optimizer.beta2 < 1.0f && optimizer.epsilon >= 0.0f;
}

// Returns true if the result of a sample's update is finite.
static bool stays_finite(const Sample &sample, const Optimizer &optimizer) {
    if (!(sample.scalar[RATE] < RATE_LIMIT)) return false;
    const float step = sample.scalar[STEP], root = sample.scalar[ROOT], keep = sample.scalar[KEEP];
    return optimizer.name != ADAMW || (step >= 0.0f && step < FACTOR_LIMIT * optimizer.epsilon && root >= 0.0f &&
                                       is_finite(root) && keep > -FACTOR_LIMIT && keep < FACTOR_LIMIT);
}

static_assert(IN_BANK == 0 && OUT_BANK == 1, "copy_in and copy_out name these banks");

// Copies vectors [first, first + count) of HBM into IN_BANK and sets the overflow flag of what exceeds its limit. The first
// third of all vectors are parameters, the second first moments, the last second moments.
static void copy_in(const Vector *memory, int first, int count, int all, bool *state_overflow) {
    count_vectors(FROM_HBM, count);
    bool p_overflow = state_overflow[0], m_overflow = state_overflow[1], v_overflow = state_overflow[2];
Copy_In:
    for (int i = 0; i < count; i++) {
#pragma HLS PIPELINE II=1
        const Vector vector = memory[first + i];
        const int thrice = 3 * (first + i);
        const bool is_p = thrice < all, is_v = thrice >= 2 * all, overflow = overflows(vector, STATE_LIMIT);
        bank_0[i] = vector;
        p_overflow |= is_p && overflow;
        m_overflow |= !is_p && !is_v && overflow;
        v_overflow |= is_v && overflows(vector, SQUARE_LIMIT);
    }
    state_overflow[0] = p_overflow, state_overflow[1] = m_overflow, state_overflow[2] = v_overflow;
}

// Copies the rows of a sample's tokens from its record into IN_BANK. They are parameters that never change: one beyond their
// limit sets the flag of parameters.
static void copy_rows(const IntVector *rows, int count, bool *state_overflow) {
    count_vectors(FROM_HBM, count);
    bool p_overflow = state_overflow[0];
Copy_Rows:
    for (int i = 0; i < count; i++) {
#pragma HLS PIPELINE II=1
        const IntVector bits = rows[i];
        Vector vector = {};
        UNROLL
        for (int l = 0; l < LANES; l++) vector[l] = float_of(bits[l]);
        bank_0[i] = vector;
        p_overflow |= overflows(vector, STATE_LIMIT);
    }
    state_overflow[0] = p_overflow;
}

static void copy_out(Vector *memory, int count) {
    count_vectors(TO_HBM, count);
Copy_Out:
    for (int i = 0; i < count; i++) {
#pragma HLS PIPELINE II=1
        memory[i] = bank_1[i];
    }
}

// Sticky flags since LOAD: a parameter, a first moment, a second moment exceeded its limit.
static bool state_overflow[3];

static int status_of(const Run &run, const Result &result, const Sample &sample, const Optimizer &optimizer) {
    if (run.stuck) return PROGRAM_STUCK;
    if (!is_finite(result.loss)) return LOSS_NOT_FINITE;
    const bool m_overflow = optimizer.name != SGD && run.state_overflow[1];
    const bool v_overflow = optimizer.name == ADAMW && run.state_overflow[2];
    if (run.state_overflow[0] || m_overflow || v_overflow) return STATE_NOT_FINITE;
    if (run.overflow) return GRADIENT_NOT_FINITE;
    return stays_finite(sample, optimizer) ? DONE : UPDATE_NOT_FINITE;
}

// Executes a call as a sequence of runs of the machine's loop. LOAD: the CLEAR section, then one run per transfer. STORE: one
// run per transfer. TRAIN and PREDICT: one run per sample; in TRAIN one of FLUSH follows the last sample, and each whose record
// asks for it. The loop is called in one place, so that HLS builds it once.
static void work(int command, int samples, const Optimizer &optimizer, const IntVector *records, IntVector *results,
                 Vector *memory) {
    const Range load_section = program.section[LOAD_SECTION], store_section = program.section[STORE_SECTION];
    const int all = command == LOAD ? transfer_vectors(load_section) : 0;
    const bool takes_samples = command == TRAIN || command == PREDICT;
    int end = takes_samples ? samples : command == LOAD ? 1 + load_section.count : store_section.count;
    static Sample sample;
    int pending = NOTHING, moved = 0, i = 0;
    bool is_flush = false;
    float rate = 0.0f, step = 0.0f, root = 0.0f, keep = 0.0f, same_update = 0.0f;  // of the update that is pending
Runs:
    while (i < end || is_flush) {  // i: of the sample or the transfer; in FLUSH one more than that of the sample before it
        const bool is_sample = takes_samples && !is_flush;
        const bool is_clear = command == LOAD && i == 0;
        Result result = {};
        result.status = DONE;
        Range range = {0, 0};
        int vectors = 0;
        if (is_sample) {
            const IntVector *record = records + i * record_distance();
            read_sample(sample, record);
            result.status = check_sample(sample, command == TRAIN ? 2 : 1);  // the losses of a sample without words have no gradient
            if (result.status == DONE && command == TRAIN && !is_known(optimizer)) result.status = BAD_OPTIMIZER;
            if (result.status != DONE) sample.tokens = sample.intent = 0;  // FLUSH may run with it
            copy_rows(record + RECORD_VECTORS, sample.tokens * program.token_vectors, state_overflow);
            range = program.section[FORWARD];
            if (command == TRAIN) range.count += program.section[BACKWARD].count;
        } else if (is_flush || is_clear) {
            range = program.section[is_flush ? FLUSH : CLEAR_SECTION];
        } else {
            range = {command == LOAD ? load_section.first + i - 1 : store_section.first + i, 1};
            vectors = transfer_size[range.first];
        }
        if (is_clear) state_overflow[0] = state_overflow[1] = state_overflow[2] = false;
        if (command == LOAD) copy_in(memory, moved, vectors, all, state_overflow);

        Run section = {};
        section.first = range.first;
        section.count = range.count;
        section.optimizer = optimizer.name;
        section.beta1 = same_update != 0.0f ? 1.0f : optimizer.beta1;
        section.beta2 = same_update != 0.0f ? 1.0f : optimizer.beta2;
        section.rest1 = 1.0f - optimizer.beta1;
        section.rest2 = 1.0f - optimizer.beta2;
        section.epsilon = optimizer.epsilon;
        section.pending = pending;
        section.rate = rate;
        section.step = step;
        section.root = root;
        section.keep = keep;
        UNROLL
        for (int f = 0; f < 3; f++) section.state_overflow[f] = state_overflow[f];
        const bool valid = result.status == DONE;
        if (valid) {
            result.cycles = run(section, sample);
            pending = NOTHING;
            UNROLL
            for (int f = 0; f < 3; f++) state_overflow[f] = section.state_overflow[f];
        }

        if (command == STORE) copy_out(memory + moved, vectors);
        if (is_flush) add_flush(results + (i - 1) * RESULT_VECTORS, result.cycles);
        moved += vectors;
        if (is_sample) {
            if (valid) {
                read_losses(result, sample.tokens);
                if (command == TRAIN) {
                    result.status = status_of(section, result, sample, optimizer);
                    pending = result.status == DONE ? APPLY : DISCARD;
                    rate = sample.scalar[RATE], step = sample.scalar[STEP];
                    root = sample.scalar[ROOT], keep = sample.scalar[KEEP];
                    same_update = sample.scalar[SAME_UPDATE];
                } else if (section.stuck) {
                    result.status = PROGRAM_STUCK;
                }
            }
            write_result(results + i * RESULT_VECTORS, result, valid ? sample.tokens : 0);
            // A failed sample ends the call; FLUSH still applies the update before it or discards its gradients.
            if (result.status != DONE) end = i + 1;
        }
        if (!is_flush) i++;
        is_flush = is_sample && command == TRAIN && (i == end || sample.scalar[ENDS_SUM] != 0.0f);
    }
}

// AMD's operators take subnormal numbers as zeros and give none; so does the host while the kernel runs on it.
#if defined(__SYNTHESIS__)
#define COMMAND static
#else
#define COMMAND static __attribute__((noinline))  // keeps operations between the two changes of the flush mode
#include <xmmintrin.h>
class FlushSubnormals {
    const unsigned before = _mm_getcsr();

   public:
    FlushSubnormals() { _mm_setcsr(before | 0x8040); }  // flush to zero, denormals are zeros
    ~FlushSubnormals() { _mm_setcsr(before); }
};
#endif

COMMAND void execute_command(int command, int samples, const Optimizer &optimizer, const IntVector *records,
                             IntVector *results, Vector *memory, const IntVector *program_image) {
    if (command == DESCRIBE) {
        describe(results);
    } else if (command == LOAD_PROGRAM) {
        Result result = {};
        result.status = load_program(program_image, samples);
#if defined(BTTLAB_FAST)
        invalidate();
#endif
        write_result(results, result, 0);
    } else if (program.instructions > 0 && command >= LOAD && command <= PREDICT) {
        // A single call site: HLS might build a second machine for a second one.
        const bool moves = command == LOAD || command == STORE;
        work(command, moves || samples > MAX_SAMPLES ? 0 : samples, moves ? Optimizer{} : optimizer, records, results, memory);
    } else if (command == TRAIN || command == PREDICT) {
        Result result = {};
        result.status = NO_PROGRAM;
        if (samples > 0) write_result(results, result, 0);
    }
}

extern "C" __attribute__((visibility("default"))) void trainer(int command, int samples, int optimizer, float beta1,
                                                                float beta2, float epsilon, const IntVector *records,
                                                                IntVector *results, Vector *memory,
                                                                const IntVector *program_image) {
#pragma HLS INTERFACE s_axilite port=command
#pragma HLS INTERFACE s_axilite port=samples
#pragma HLS INTERFACE s_axilite port=optimizer
#pragma HLS INTERFACE s_axilite port=beta1
#pragma HLS INTERFACE s_axilite port=beta2
#pragma HLS INTERFACE s_axilite port=epsilon
#pragma HLS INTERFACE m_axi port=records bundle=gmem0 offset=slave
#pragma HLS INTERFACE m_axi port=results bundle=gmem1 offset=slave
#pragma HLS INTERFACE m_axi port=memory bundle=gmem2 offset=slave
#pragma HLS INTERFACE m_axi port=program_image bundle=gmem3 offset=slave
#pragma HLS INTERFACE s_axilite port=return
#if !defined(__SYNTHESIS__)
    const FlushSubnormals flush;
#endif
    execute_command(command, samples, {optimizer, beta1, beta2, epsilon}, records, results, memory, program_image);
}

#if defined(BTTLAB_FAST)
// A second host thread for a call. OPEN comes before the call; if it returns false, SERVE is to be called on that thread,
// where it returns some time after the last call. CLOSE after the call returns false if there was no processor for it.
// FORGET is for a forked process.
extern "C" __attribute__((visibility("default"))) int trainer_second(int action) {
    enum { OPEN, SERVE, CLOSE, FORGET };
    const FlushSubnormals flush;
    if (action == OPEN) return open_second();
    if (action == CLOSE) return close_second();
    action == SERVE ? serve() : forget_second();
    return true;
}
#endif

#if !defined(__SYNTHESIS__)
// The bytes that all calls so far have moved from HBM to the chip, and back.
extern "C" __attribute__((visibility("default"))) void trainer_moved(long long *bytes) {
    for (int d = FROM_HBM; d <= TO_HBM; d++) bytes[d] = static_cast<long long>(sizeof(Vector)) * moved_vectors[d];
}

// The bytes that a call accesses from each pointer on: the emulated card refuses to start it on shorter buffers.
extern "C" __attribute__((visibility("default"))) void trainer_reach(int command, int samples, int, float, float, float,
                                                                      const IntVector *, IntVector *, Vector *, const IntVector *,
                                                                      long long *bytes) {
    const bool runs = (command == TRAIN || command == PREDICT) && samples >= 0 && samples <= MAX_SAMPLES;
    const bool moves = (command == LOAD || command == STORE) && program.instructions > 0;
    const int described = command == DESCRIBE ? DESCRIPTION_VECTORS : command == LOAD_PROGRAM ? RESULT_VECTORS : 0;
    bytes[0] = sizeof(IntVector) * (runs ? samples * record_distance() : 0);
    bytes[1] = sizeof(IntVector) * (runs ? samples * RESULT_VECTORS : described);
    bytes[2] = sizeof(Vector) * (moves ? transfer_vectors(program.section[LOAD_SECTION]) : 0);
    bytes[3] = sizeof(IntVector) * (command == LOAD_PROGRAM && samples > 0 ? samples : 0);
}
#endif
