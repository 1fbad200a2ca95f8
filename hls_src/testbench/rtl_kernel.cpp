// The whole kernel in Verilog (trainer.v) behind its own ports, as a function of the kernel's name. A call does what a driver
// does: it writes arguments and AP_CTRL by AXI4-Lite and polls AP_CTRL until the kernel is done, while a model of HBM
// answers on four AXI4 ports. Both sides let each other wait for times at random ($BTTLAB_STALL_SEED; 0: never).
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "Vtrainer.h"
#include "Vtrainer___024root.h"
#include "kernel_host.h"
#include "verilated.h"
#if defined(BTTLAB_TRACE)
#include "verilated_fst_c.h"
#endif

static Vtrainer *kernel() {
#if defined(BTTLAB_TRACE)
    Verilated::traceEverOn(true);
#endif
    static Vtrainer *model = new Vtrainer;
    return model;
}

static std::mt19937 &draw() {
    static std::mt19937 state(std::getenv("BTTLAB_STALL_SEED") ? std::atoi(std::getenv("BTTLAB_STALL_SEED")) : 1);
    return state;
}

static bool stalls() {
    static const bool never = std::getenv("BTTLAB_STALL_SEED") && std::atoi(std::getenv("BTTLAB_STALL_SEED")) == 0;
    return !never && draw()() % 4 == 0;
}

static void fail(const char *what, unsigned long long number) {
    std::fprintf(stderr, "AXI: %s %llx\n", what, number);
    std::abort();
}

// HBM behind a port: memory from `base` on. It takes an address at a time, and answers 1 to 12 cycles later.
struct Port {
    uint64_t base, size;
    bool has_address, has_word, reads;
    uint64_t address;
    uint32_t word[16];
    int left;

    char *at(uint64_t vector) const {
        if (vector % 64 || vector < base || vector + 64 > base + size) fail("an address outside of the buffer", vector);
        return reinterpret_cast<char *>(vector);
    }
};

static Port ports[4];
static long long cycles = 0, longest = 0;
// Cycles since the beginning, and of the loop's longest run since the last call of this function.
extern "C" __attribute__((visibility("default"))) long long trainer_cycles() { return cycles; }
extern "C" __attribute__((visibility("default"))) long long trainer_longest_run() {
    const long long was = longest;
    longest = 0;
    return was;
}

// From now on each cycle in which the loop is busy adds a word to `words`, a bit for each watched signal, until there are
// `most`; returns how many were added since the last call.
static uint32_t *watched = nullptr;
static long long words_watched = 0, most_watched = 0;
extern "C" __attribute__((visibility("default"))) long long trainer_watch(uint32_t *words, long long most) {
    const long long was = words_watched;
    watched = words, most_watched = most, words_watched = 0;
    return was;
}
#define WATCH(bit, name, stage) word |= static_cast<uint32_t>(kernel()->rootp->trainer__DOT__##name) << bit;

// What HBM puts on a port's wires before the clock.
#define OFFER(number, name)                                                                       \
    {                                                                                             \
        Port &port = ports[number];                                                               \
        const bool is_free = !port.has_address && !port.reads;                                    \
        top->m_axi_##name##_ARREADY = is_free && !stalls();                                       \
        top->m_axi_##name##_AWREADY = is_free && !stalls();                                       \
        top->m_axi_##name##_WREADY = !port.has_word && !stalls();                                 \
        if (port.left > 0) port.left--;                                                           \
        top->m_axi_##name##_RVALID = port.reads && port.left == 0;                                \
        top->m_axi_##name##_BVALID = port.has_address && port.has_word && port.left == 0;         \
        if (top->m_axi_##name##_RVALID) std::memcpy(top->m_axi_##name##_RDATA.m_storage, port.at(port.address), 64); \
        if (top->m_axi_##name##_BVALID) std::memcpy(port.at(port.address), port.word, 64);        \
    }
// What it takes at the clock.
#define TAKE(number, name)                                                                        \
    {                                                                                             \
        Port &port = ports[number];                                                               \
        if (top->m_axi_##name##_RVALID && top->m_axi_##name##_RREADY) port.reads = false;         \
        if (top->m_axi_##name##_BVALID && top->m_axi_##name##_BREADY) port.has_address = port.has_word = false; \
        if (top->m_axi_##name##_ARVALID && top->m_axi_##name##_ARREADY) {                         \
            port.reads = true, port.address = top->m_axi_##name##_ARADDR, port.left = 1 + draw()() % 12; \
            if (top->m_axi_##name##_ARLEN) fail("a burst of", top->m_axi_##name##_ARLEN);         \
        }                                                                                         \
        if (top->m_axi_##name##_AWVALID && top->m_axi_##name##_AWREADY) {                         \
            port.has_address = true, port.address = top->m_axi_##name##_AWADDR, port.left = 1 + draw()() % 12; \
        }                                                                                         \
        if (top->m_axi_##name##_WVALID && top->m_axi_##name##_WREADY) {                           \
            port.has_word = true;                                                                 \
            if (!top->m_axi_##name##_WLAST || ~top->m_axi_##name##_WSTRB) fail("a part of a vector at", port.address); \
            std::memcpy(port.word, top->m_axi_##name##_WDATA.m_storage, 64);                      \
        }                                                                                         \
    }

// The file that $BTTLAB_TRACE names gets cycles in which the loop is busy: of its run $BTTLAB_TRACE_RUN (from 1) those from
// $BTTLAB_TRACE_FROM on, as many as $BTTLAB_TRACE_CYCLES.
static int runs = 0;
static long long busy = 0;  // cycles of this run
#if defined(BTTLAB_TRACE)
static long long number_of(const char *name) { return std::getenv(name) ? std::atoll(std::getenv(name)) : 0; }

static void trace(int half) {
    static VerilatedFstC *file = nullptr;
    static const long long run = number_of("BTTLAB_TRACE_RUN"), from = number_of("BTTLAB_TRACE_FROM"),
                           to = from + number_of("BTTLAB_TRACE_CYCLES");
    if (!file) {
        file = new VerilatedFstC;
        kernel()->trace(file, 3);
        file->open(std::getenv("BTTLAB_TRACE"));
    }
    if (runs != run || busy < from || busy > to) return;
    if (busy < to) file->dump(static_cast<uint64_t>(2 * busy + half));
    if (busy == to) file->close();
}
#else
static void trace(int) {}
#endif

static void cycle() {
    Vtrainer *top = kernel();
    top->ap_clk = 0;
    KERNEL_PORTS(OFFER)
    top->eval();
    KERNEL_PORTS(TAKE)
    trace(0);
    const bool was_busy = busy > 0;
    top->ap_clk = 1;
    top->eval();
    trace(1);
    cycles++;
    busy = top->rootp->trainer__DOT__loop_busy ? busy + 1 : 0;
    runs += !was_busy && busy > 0;
    longest = busy > longest ? busy : longest;
    if (busy && words_watched < most_watched) {
        uint32_t word = 0;
        KERNEL_WATCHED(WATCH)
        watched[words_watched++] = word;
    }
}

static void write_register(int offset, uint32_t value) {
    Vtrainer *top = kernel();
    bool address = false, word = false;
    while (!address || !word) {
        top->s_axi_control_AWVALID = !address && !stalls();
        top->s_axi_control_WVALID = !word && !stalls();
        top->s_axi_control_AWADDR = offset, top->s_axi_control_WDATA = value, top->s_axi_control_WSTRB = 15;
        top->ap_clk = 0;
        top->eval();
        const bool takes_address = top->s_axi_control_AWVALID && top->s_axi_control_AWREADY;
        const bool takes_word = top->s_axi_control_WVALID && top->s_axi_control_WREADY;
        cycle();
        address |= takes_address, word |= takes_word;
    }
    top->s_axi_control_AWVALID = top->s_axi_control_WVALID = 0;
    top->s_axi_control_BREADY = 1;
    while (!top->s_axi_control_BVALID) cycle();
    cycle();
    top->s_axi_control_BREADY = 0;
}

static uint32_t read_register(int offset) {
    Vtrainer *top = kernel();
    top->s_axi_control_ARADDR = offset;
    top->s_axi_control_ARVALID = 1;
    for (bool taken = false; !taken;) {
        top->ap_clk = 0;
        top->eval();
        taken = top->s_axi_control_ARREADY;
        cycle();
    }
    top->s_axi_control_ARVALID = 0;
    while (!top->s_axi_control_RVALID || stalls()) cycle();
    const uint32_t value = top->s_axi_control_RDATA;
    top->s_axi_control_RREADY = 1;
    cycle();
    top->s_axi_control_RREADY = 0;
    return value;
}

extern "C" __attribute__((visibility("default"))) uint32_t trainer_register(int offset, int is_written, uint32_t value) {
    if (is_written) write_register(offset, value);
    return is_written ? 0 : read_register(offset);
}

template <class T>
static void write_argument(int offset, T value) {
    uint32_t words[2] = {};
    std::memcpy(words, &value, sizeof(value));
    for (unsigned w = 0; w < sizeof(value) / 4; w++) write_register(offset + 4 * static_cast<int>(w), words[w]);
}

#define BUFFER(number, name) ports[number] = {reinterpret_cast<uint64_t>(name), 1ull << 28};
#define WRITE_ARGUMENT(name, offset) write_argument(offset, name);

extern "C" __attribute__((visibility("default"))) void trainer(int command, int samples, int optimizer, float beta1, float beta2,
                                                              float epsilon, const void *records, void *results,
                                                              void *memory, const void *program_image) {
    if (cycles == 0) {
        kernel()->ap_rst_n = 0;
        for (int i = 0; i < 8; i++) cycle();
        kernel()->ap_rst_n = 1;
    }
    KERNEL_PORTS(BUFFER)
    KERNEL_ARGUMENTS(WRITE_ARGUMENT)
    if (read_register(0) != 4) fail("AP_CTRL of an idle kernel is", read_register(0));
    write_register(0, 1);
    const long long limit = cycles + (1ll << 31);
    while (!(read_register(0) & 2)) {
        for (int i = 0; i < 50; i++) cycle();
        if (cycles > limit) fail("the kernel does not end, command", static_cast<unsigned>(command));
    }
}
