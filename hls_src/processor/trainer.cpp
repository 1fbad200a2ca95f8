// The kernel: commands around the machine's loop, and its ports. docs/processor.md tells what a program is.
//
//   DESCRIBE      writes the machine's widths to results
//   LOAD_PROGRAM  takes a program; `samples` counts the words of its image
//   LOAD, STORE   parameters and moments from HBM into the chip, and back
//   TRAIN         for each sample: forward and backward pass; its update beside the forward pass of the next
//   PREDICT       for each sample: forward only; loss against the labels that came along
//
// Between calls everything stays where it is on chip.
#if defined(BTTLAB_FAST)
#include "emulation/execute.h"
#else
#include "machine.h"
#endif
#include "load_program.h"
#include "samples.h"

// What keeps parameters and moments finite (docs/accelerator.md has the argument), beside the limits of word.h.
constexpr float RATE_LIMIT = 1073741824.0f;             // 2^30
constexpr float FACTOR_LIMIT = 1152921504606846976.0f;  // 2^60

struct Optimizer {
    int name;
    float beta1, beta2, epsilon;
};

// Whether an update rule is one of torch.optim's, with constants that it allows.
static bool is_known(const Optimizer &optimizer) {
    return optimizer.name >= SGD && optimizer.name <= ADAMW && optimizer.beta1 >= 0.0f && optimizer.beta1 < 1.0f &&
           optimizer.beta2 >= 0.0f && optimizer.beta2 < 1.0f && optimizer.epsilon >= 0.0f;
}

// Whether a sample's update ends in finite numbers.
static bool stays_finite(const Sample &sample, const Optimizer &optimizer) {
    if (!(sample.scalar[RATE] < RATE_LIMIT)) return false;
    const float step = sample.scalar[STEP], root = sample.scalar[ROOT], keep = sample.scalar[KEEP];
    return optimizer.name != ADAMW || (step >= 0.0f && step < FACTOR_LIMIT * optimizer.epsilon && root >= 0.0f &&
                                       is_finite(root) && keep > -FACTOR_LIMIT && keep < FACTOR_LIMIT);
}

static_assert(IN_BANK == 0 && OUT_BANK == 1, "copy_in and copy_out name these banks");

// Words from HBM to the bank that is the way in. Returns whether one is beyond its limit: they are [first, first + count) of
// thirds of `third` words: parameters, first, second moments.
static void copy_in(const Word *memory, int first, int count, int third, bool *state_beyond) {
    bool p_beyond = state_beyond[0], m_beyond = state_beyond[1], v_beyond = state_beyond[2];
Copy_In:
    for (int i = 0; i < count; i++) {
#pragma HLS PIPELINE II=1
        const Word word = memory[first + i];
        const bool is_p = first + i < third, is_v = first + i >= 2 * third, beyond = is_beyond(word, STATE_LIMIT);
        bank_0[i] = word;
        p_beyond |= is_p && beyond;
        m_beyond |= !is_p && !is_v && beyond;
        v_beyond |= is_v && is_beyond(word, SQUARE_LIMIT);
    }
    state_beyond[0] = p_beyond, state_beyond[1] = m_beyond, state_beyond[2] = v_beyond;
}

static void copy_out(Word *memory, int count) {
Copy_Out:
    for (int i = 0; i < count; i++) {
#pragma HLS PIPELINE II=1
        memory[i] = bank_1[i];
    }
}

// Whether a word of the state was beyond its limit since it was loaded: a parameter, a first, a second moment.
static bool state_beyond[3];

static int status_of(const Run &run, const Result &result, const Sample &sample, const Optimizer &optimizer) {
    if (run.stuck) return PROGRAM_STUCK;
    if (!is_finite(result.loss)) return LOSS_NOT_FINITE;
    const bool m_beyond = optimizer.name != SGD && run.state_beyond[1];
    const bool v_beyond = optimizer.name == ADAMW && run.state_beyond[2];
    if (run.state_beyond[0] || m_beyond || v_beyond) return STATE_NOT_FINITE;
    if (run.beyond) return GRADIENT_NOT_FINITE;
    return stays_finite(sample, optimizer) ? DONE : UPDATE_NOT_FINITE;
}

// A call is a list of turns with one run of the loop each: for LOAD the CLEAR section, then a transfer a turn; for STORE a
// transfer a turn; a sample a turn, and for TRAIN the update of the last one, FLUSH. So the loop stands here once.
static void work(int command, int samples, const Optimizer &optimizer, const IntWord *records, IntWord *results, Word *memory) {
    const Range load_section = program.section[LOAD_SECTION], store_section = program.section[STORE_SECTION];
    const int third = command == LOAD ? transfer_words(load_section) / 3 : 0;
    const int turns = command == LOAD    ? 1 + load_section.count
                      : command == STORE ? store_section.count
                      : command == TRAIN ? samples + 1
                                         : samples;
    static Sample sample;
    int pending = NOTHING, moved = 0, last = 0;
    float rate = 0.0f, step = 0.0f, root = 0.0f, keep = 0.0f;  // of the update that is pending
Turns:
    for (int turn = 0; turn < turns; turn++) {
        const bool is_flush = command == TRAIN && turn == samples, is_sample = (command == TRAIN || command == PREDICT) && !is_flush;
        const bool is_clear = command == LOAD && turn == 0;
        Result result = {};
        result.status = DONE;
        Range range = {0, 0};
        int words = 0;
        if (is_sample) {
            read_sample(sample, records + turn * RECORD_WORDS);
            result.status = check_sample(sample);
            if (result.status == DONE && command == TRAIN && !is_known(optimizer)) result.status = BAD_OPTIMIZER;
            range = program.section[FORWARD];
            if (command == TRAIN) range.count += program.section[BACKWARD].count;
        } else if (is_flush || is_clear) {
            range = program.section[is_flush ? FLUSH : CLEAR_SECTION];
        } else {
            range = {command == LOAD ? load_section.first + turn - 1 : store_section.first + turn, 1};
            words = words_of_transfer(range.first);
        }
        if (is_clear) state_beyond[0] = state_beyond[1] = state_beyond[2] = false;
        if (command == LOAD) copy_in(memory, moved, words, third, state_beyond);

        Run section = {};
        section.first = range.first;
        section.count = range.count;
        section.optimizer = optimizer.name;
        section.beta1 = optimizer.beta1;
        section.beta2 = optimizer.beta2;
        section.epsilon = optimizer.epsilon;
        section.pending = pending;
        section.rate = rate;
        section.step = step;
        section.root = root;
        section.keep = keep;
    Flags:
        for (int i = 0; i < 3; i++) section.state_beyond[i] = state_beyond[i];
        const bool runs = result.status == DONE;
        if (runs) {
            result.cycles = run(section, sample);
            pending = NOTHING;
        Sticky_Flags:
            for (int i = 0; i < 3; i++) state_beyond[i] = section.state_beyond[i];
        }

        if (command == STORE) copy_out(memory + moved, words);
        if (is_flush && samples > 0) add_flush(results + last * RESULT_WORDS, result.cycles);
        moved += words;
        if (is_sample) {
            if (runs) {
                read_losses(result, sample.tokens);
                if (command == TRAIN) {
                    result.status = status_of(section, result, sample, optimizer);
                    pending = result.status == DONE ? APPLY : DISCARD;
                    rate = sample.scalar[RATE], step = sample.scalar[STEP];
                    root = sample.scalar[ROOT], keep = sample.scalar[KEEP];
                } else if (section.stuck) {
                    result.status = PROGRAM_STUCK;
                }
            }
            last = turn;
            write_result(results + turn * RESULT_WORDS, result, runs ? sample.tokens : 0);
            // The first that failed is the last; only the update before it, or the clearing after it, is left to do.
            if (result.status != DONE) turn = command == TRAIN ? samples - 1 : turns;
        }
    }
}

extern "C" __attribute__((visibility("default"))) void trainer(int command, int samples, int optimizer, float beta1,
                                                                float beta2, float epsilon, const IntWord *records,
                                                                IntWord *results, Word *memory,
                                                                const IntWord *program_image) {
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
        // One call for all of them: a second one might become a second machine.
        const bool moves = command == LOAD || command == STORE;
        const Optimizer chosen = moves ? Optimizer{} : Optimizer{optimizer, beta1, beta2, epsilon};
        work(command, moves || samples > MAX_SAMPLES ? 0 : samples, chosen, records, results, memory);
    } else if (command == TRAIN || command == PREDICT) {
        Result result = {};
        result.status = NO_PROGRAM;
        if (samples > 0) write_result(results, result, 0);
    }
}

#if !defined(__SYNTHESIS__)
// How many bytes a call reaches behind each pointer: the emulated card does not start it on shorter buffers.
extern "C" __attribute__((visibility("default"))) void trainer_reach(int command, int samples, int, float, float, float,
                                                                      const IntWord *, IntWord *, Word *, const IntWord *,
                                                                      long long *bytes) {
    const bool runs = (command == TRAIN || command == PREDICT) && samples >= 0 && samples <= MAX_SAMPLES;
    const bool moves = (command == LOAD || command == STORE) && program.instructions > 0;
    const int described = command == DESCRIBE ? DESCRIPTION_WORDS : command == LOAD_PROGRAM ? RESULT_WORDS : 0;
    bytes[0] = sizeof(IntWord) * (runs ? samples * RECORD_WORDS : 0);
    bytes[1] = sizeof(IntWord) * (runs ? samples * RESULT_WORDS : described);
    bytes[2] = sizeof(Word) * (moves ? transfer_words(program.section[LOAD_SECTION]) : 0);
    bytes[3] = sizeof(IntWord) * (command == LOAD_PROGRAM && samples > 0 ? samples : 0);
}
#endif
