// The kernel's port under sanitizers, with what a host can put there: valid samples (`port train COUNT`), and arguments and
// records that are garbage (`port fuzz COUNT SEED`) in buffers of exactly the bytes that train_transformer_reach tells.
#include "../train_transformer.cpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

static unsigned long long state = 1;

static unsigned draw(unsigned below) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<unsigned>(state >> 33) % below;
}

static int any_bits() { return static_cast<int>(draw(1u << 16) << 16 | draw(1u << 16)); }

// A small one, one at an edge, or any.
static int any_number(int edge) {
    const int choices[] = {static_cast<int>(draw(4)), edge - 1, edge, edge + 1, -1, 0x7fffffff, -0x7fffffff - 1, any_bits()};
    return choices[draw(8)];
}

static float any_float() {
    const float choices[] = {0.0f, 1e-3f, 0.9f, 1.0f, -1.0f, 1e30f, float_of(0x7f800000), float_of(0x7fc00000),
                             float_of(any_bits())};
    return choices[draw(9)];
}

static void fill_sample(IntWord *record) {
    for (int w = 0; w < RECORD_WORDS; w++) record[w] = IntWord(0);
    const int tokens = 2 + static_cast<int>(draw(SEQUENCE_LENGTH - 1));
    record[0][0] = tokens;
    record[0][1] = static_cast<int>(draw(INTENTS));
    record[0][2] = bits_of(1e-3f);
    for (int t = 0; t < tokens; t++) {
        record[1 + t / LANES][t % LANES] = static_cast<int>(draw(VOCABULARY_SIZE));
        record[1 + SEQUENCE_WORDS + t / LANES][t % LANES] = t > 0 ? static_cast<int>(draw(SLOTS)) : 0;
    }
}

static void spoil(IntWord *record) {
    const int edges[] = {SEQUENCE_LENGTH, INTENTS, VOCABULARY_SIZE, SLOTS};
    for (unsigned n = draw(3); n > 0; n--) {
        const int word = draw(3) ? static_cast<int>(draw(RECORD_WORDS)) : 0;
        record[word][word ? draw(LANES) : draw(4)] = any_number(edges[draw(4)]);
    }
}

template <class T>
static std::unique_ptr<T, decltype(&std::free)> buffer(long long bytes) {
    void *memory = std::aligned_alloc(sizeof(Word), bytes);
    std::memset(memory, 0, bytes);
    return {static_cast<T *>(memory), std::free};
}

static int statuses[UPDATE_NOT_FINITE + 1];

// One call; returns whether what it said is in order.
static bool call(int command, int samples, int optimizer, const float *constants, bool garbage) {
    long long bytes[3];
    train_transformer_reach(command, samples, optimizer, 0, 0, 0, 0, nullptr, nullptr, nullptr, bytes);
    const auto records = buffer<IntWord>(bytes[0]), results = buffer<IntWord>(bytes[1]);
    const auto memory = buffer<Word>(bytes[2]);
    const bool runs = bytes[0] > 0;
    for (int s = 0; runs && s < samples; s++) {
        fill_sample(records.get() + s * RECORD_WORDS);
        if (garbage) spoil(records.get() + s * RECORD_WORDS);
    }
    for (int i = 1; bytes[2] > 0 && i <= PARAMETER_WORDS; i++) {  // step and moments stay 0
        for (int l = 0; l < LANES; l++) memory.get()[i][l] = draw(50) ? (draw(2000) - 1000.0f) * 1e-4f : 0.0f;
    }
    if (garbage && bytes[2] > 0 && draw(2) == 0) memory.get()[draw(1 + PARAMETER_WORDS)][draw(LANES)] = any_float();
    train_transformer(command, samples, optimizer, constants[0], constants[1], constants[2], constants[3], records.get(),
                      results.get(), memory.get());
    bool stopped = false;
    for (int s = 0; runs && s < samples; s++) {
        const IntWord *result = results.get() + s * RESULT_WORDS;
        const int status = result[0][0];
        if (status < NOT_REACHED || status > UPDATE_NOT_FINITE || stopped != (status == NOT_REACHED)) return false;
        statuses[status]++;
        stopped = stopped || status != DONE;
        if (status == DONE && (result[0][1] < 0 || result[0][1] >= INTENTS)) return false;
        for (int t = 0; t < SEQUENCE_LENGTH; t++) {
            const int slot = result[1 + t / LANES][t % LANES];
            if (slot < 0 || slot >= SLOTS) return false;
        }
    }
    return true;
}

// Parameters as a host might load them, small and random.
static void load_parameters() {
    const float none[4] = {};
    call(LOAD, 0, SGD, none, false);
}

static int fuzz(int count) {
    load_parameters();
    for (int i = 0; i < count; i++) {
        const float constants[4] = {draw(3) ? 0.9f : any_float(), draw(3) ? 0.999f : any_float(),
                                    draw(3) ? 1e-8f : any_float(), draw(3) ? 0.01f : any_float()};
        const int command = draw(8) ? TRAIN + static_cast<int>(draw(2)) : any_number(PROFILE);
        const int samples = draw(4) ? static_cast<int>(draw(4)) : any_number(draw(64) ? 8 : MAX_SAMPLES);
        const int optimizer = draw(4) ? static_cast<int>(draw(3)) : any_number(ADAMW);
        if (!call(command, samples, optimizer, constants, true)) {
            std::printf("call %d: a status or a label out of range\n", i);
            return 1;
        }
        if (i % 100 == 99) load_parameters();
    }
    return 0;
}

static int train(int count) {
    const float constants[4] = {0.9f, 0.999f, 1e-8f, 0.01f};
    load_parameters();
    for (int i = 0; i < count; i++) call(TRAIN, 1, i % 3, constants, false);
    return statuses[DONE] == count ? 0 : 1;
}

int main(int, char **arguments) {
    const int count = std::atoi(arguments[2]);
    state = static_cast<unsigned long long>(std::atoi(arguments[3]));
    const int failed = std::strcmp(arguments[1], "fuzz") ? train(count) : fuzz(count);
    for (const int number : statuses) std::printf("%d ", number);
    std::printf("\n");
    return failed;
}
