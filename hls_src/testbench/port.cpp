// The kernel under sanitizers, with programs of extreme fields, which run if the kernel takes them (`port COUNT SEED IMAGE`),
// in buffers of exactly the bytes that trainer_reach tells. IMAGE is a file with a program.
#include "../processor/trainer.cpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <thread>
#include <vector>

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

static void fill_sample(IntVector *record) {
    std::memset(record, 0, RECORD_VECTORS * sizeof(IntVector));
    const int tokens = 2 + static_cast<int>(draw(program.sequence_length - 1));
    const float share = 1.0f / static_cast<float>(tokens - 1);
    // rate, step, root, keep; weights of the labels: intent, its classes, slots, theirs
    const float scalars[] = {1e-3f, 1e-3f, 1.0f, 1.0f, 1.0f, 0.0f, share, share, 0.0f};
    record[0][0] = tokens;
    record[0][1] = static_cast<int>(draw(program.intents));
    for (int s = 0; s < 9; s++) record[0][2 + s] = bits_of(scalars[s]);
    for (int t = 0; t < tokens; t++) {
        for (int table = 0; table < OFFSET_TABLES; table++) {
            const int limit = program.offset_limit[table];
            record[1 + table * SEQUENCE_VECTORS + t / LANES][t % LANES] = limit > 0 ? static_cast<int>(draw(limit)) : 0;
        }
        const int slot = t > 0 ? static_cast<int>(draw(program.slots)) : 0;
        record[1 + OFFSET_TABLES * SEQUENCE_VECTORS + t / LANES][t % LANES] = slot;
    }
}

static void spoil(IntVector *record) {
    const int edges[] = {program.sequence_length, program.intents, program.offset_limit[0], program.slots};
    for (unsigned n = draw(3); n > 0; n--) {
        const int vector = draw(3) ? static_cast<int>(draw(RECORD_VECTORS)) : 0;
        record[vector][vector ? draw(LANES) : draw(11)] = any_number(edges[draw(4)]);
    }
}

template <class T>
static std::unique_ptr<T, decltype(&std::free)> buffer(long long bytes) {
    void *memory = std::aligned_alloc(sizeof(Vector), bytes);
    std::memset(memory, 0, bytes);
    return {static_cast<T *>(memory), std::free};
}

static std::vector<char> sound_program;

// Sets an integer of an image; the image's sum stays 0, so that only what the numbers mean can be refused.
static void set_number(IntVector *image, int vector, int lane, int value) {
    const int before = image[vector][lane];
    image[vector][lane] = value;
    const unsigned sum = static_cast<unsigned>(image[1][LANES - 1]) + static_cast<unsigned>(before) - static_cast<unsigned>(value);
    image[1][LANES - 1] = static_cast<int>(sum);
}

// Sets fields of instructions, and registers and offset limits, to what no compiler writes.
static void set_extremes(IntVector *image, int instructions) {
    const int extremes[] = {0, 1, 2, 17, 0x100, 0x400, 0x1000, 0x4000, 0x7fff, 0x8000, 0xc000, 0xffff};
    for (unsigned n = 1 + draw(40); n > 0; n--) {
        const int field = FIELD_BOUND + static_cast<int>(draw(INSTRUCTION_FIELDS - FIELD_BOUND));
        const int instruction = static_cast<int>(draw(instructions)), shift = field % 2 * 16;
        const int vector = INSTRUCTIONS_AT + 2 * instruction + field / (2 * LANES), lane = field / 2 % LANES;
        int value = draw(2) ? extremes[draw(12)] : static_cast<int>(draw(1u << 16));
        if (draw(3) == 0) value = 0x8000 | static_cast<int>(draw(REGISTERS));
        const unsigned others = static_cast<unsigned>(image[vector][lane]) & ~(0xffffu << shift);
        set_number(image, vector, lane, static_cast<int>(others | static_cast<unsigned>(value) << shift));
    }
    for (unsigned n = draw(3); n > 0; n--) {
        const int vector = REGISTERS_AT + static_cast<int>(draw(REGISTERS / REGISTERS_PER_VECTOR));
        set_number(image, vector, static_cast<int>(draw(LANES)), draw(2) ? any_number(1 << 16) : static_cast<int>(draw(1u << 16)));
    }
    if (draw(4) == 0) {  // a program whose samples bring rows
        set_number(image, 0, 1, VERSION + WITH_ROWS);
        set_number(image, 1, 8, draw(4) ? static_cast<int>(draw(40)) : any_number(TRANSFER_VECTORS));
    }
    if (draw(4) == 0) set_number(image, 1, 3 + static_cast<int>(draw(OFFSET_TABLES)), any_number(1 << 16));
}

// LOAD_PROGRAM with the program, or with extreme fields in it; returns whether the kernel takes it.
static bool load_program(bool extreme) {
    const int vectors = static_cast<int>(sound_program.size() / sizeof(IntVector));
    long long bytes[4];
    trainer_reach(LOAD_PROGRAM, vectors, 0, 0, 0, 0, nullptr, nullptr, nullptr, nullptr, bytes);
    const auto image = buffer<IntVector>(bytes[3]), results = buffer<IntVector>(bytes[1]);
    std::memcpy(image.get(), sound_program.data(), sound_program.size());
    if (extreme) set_extremes(image.get(), (vectors - INSTRUCTIONS_AT) / 2);
    trainer(LOAD_PROGRAM, vectors, 0, 0.0f, 0.0f, 0.0f, nullptr, results.get(), nullptr, image.get());
    return results.get()[0][0] == DONE;
}

// A call of the kernel by two host threads, as the emulated card makes it.
template <typename... Arguments>
static void run_kernel(Arguments... arguments) {
    static struct Threads : std::vector<std::thread> {  // one that comes late to a call serves the next
        ~Threads() {
            for (std::thread &each : *this) each.join();
        }
    } second;
    if (!trainer_second(0)) second.emplace_back(trainer_second, 1);
    while (!has_second_thread()) std::this_thread::yield();
    trainer(arguments...);
    trainer_second(2);
}

// One call; returns whether what it said is in order.
static bool call(int command, int samples, int optimizer, const float *constants, bool garbage) {
    long long bytes[4];
    trainer_reach(command, samples, optimizer, 0, 0, 0, nullptr, nullptr, nullptr, nullptr, bytes);
    const auto records = buffer<IntVector>(bytes[0]), results = buffer<IntVector>(bytes[1]);
    const auto memory = buffer<Vector>(bytes[2]);
    const bool runs = bytes[0] > 0;
    for (int s = 0; runs && s < samples; s++) {
        fill_sample(records.get() + s * record_distance());
        if (garbage) spoil(records.get() + s * record_distance());
    }
    const long long vectors = bytes[2] / static_cast<long long>(sizeof(Vector));
    for (long long i = 0; i < vectors / 3; i++) {  // moments stay 0
        for (int l = 0; l < LANES; l++) memory.get()[i][l] = draw(50) ? (draw(2000) - 1000.0f) * 1e-4f : 0.0f;
    }
    if (garbage && vectors > 0 && draw(2) == 0) memory.get()[draw(static_cast<unsigned>(vectors))][draw(LANES)] = any_float();
    run_kernel(command, samples, optimizer, constants[0], constants[1], constants[2], records.get(), results.get(),
               memory.get(), static_cast<IntVector *>(nullptr));
    bool stopped = false;
    for (int s = 0; runs && s < samples; s++) {
        const IntVector *result = results.get() + s * RESULT_VECTORS;
        const int status = result[0][0];
        if (status < NOT_REACHED || status > PROGRAM_STUCK || stopped != (status == NOT_REACHED)) return false;
        stopped = stopped || status != DONE;
        if (status == DONE && (result[0][1] < 0 || result[0][1] >= program.intents)) return false;
        for (int t = 0; status == DONE && t < SEQUENCE; t++) {
            const int slot = result[1 + t / LANES][t % LANES];
            if (slot < 0 || slot >= program.slots) return false;
        }
    }
    return true;
}

// Programs with extreme fields: each is refused, or runs within its memories.
static int programs(int count) {
    int taken = 0;
    for (int i = 0; i < count; i++) {
        if (!load_program(true)) continue;
        taken++;
        const float constants[3] = {0.9f, 0.999f, 1e-8f};
        for (int command : {LOAD, TRAIN, PREDICT, STORE}) {
            if (!call(command, 2, static_cast<int>(draw(3)), constants, draw(4) == 0)) return 1;
        }
    }
    std::printf("%d programs taken\n", taken);
    return taken > count / 20 ? 0 : 3;
}

int main(int, char **arguments) {
    state = static_cast<unsigned long long>(std::atoi(arguments[2]));
    std::ifstream image(arguments[3], std::ios::binary);
    sound_program.assign(std::istreambuf_iterator<char>(image), {});
    return load_program(false) ? programs(std::atoi(arguments[1])) : 2;
}
