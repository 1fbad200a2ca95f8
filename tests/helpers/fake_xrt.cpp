// A card without a card: the calls of XRT's libxrt_core.so that pynq makes, around a kernel compiled for this host.
//
// Host and device have their own copy of each buffer, kernels run on a thread, a start is an ERT packet. Environment:
//   FAKE_XRT_KERNEL     shared library with the kernel `trainer`
//   FAKE_XRT_FAULT      NAME or NAME:N, from the N-th start on: hang, abort, slow (1.2 s), lost, wrong (a bit of
//                       what STORE gives); load: no overlay is taken; name: the kernel has another name
//   FAKE_XRT_INTERRUPT  FUNCTION:N: SIGINT in the N-th call of that function from then on
#include <dlfcn.h>
#include <errno.h>
#include <fenv.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <string>

namespace {

struct DeviceInfo {  // xclDeviceInfo2 of xrt.h, 2.13
    unsigned magic;
    char name[256];
    uint16_t versions[7];
    size_t sizes[4];
    uint16_t banks, clocks[4], link[2], threads, chip_temperature, fan_temperature, voltages[3];
    float current;
    uint16_t clock_count, fan;
    bool calibrated;
    unsigned long long controllers[2];
    uint16_t pex_volts, aux_volts;
    unsigned long long pex_current, aux_current;
    uint16_t rpm, temperatures[8], rails[12];
    unsigned long long driver;
    unsigned slot;
    bool xpr;
    unsigned long long timestamp;
    char fpga[256];
    uint16_t link_maximum[2], vccint_volts, vccint_current, dma;
};

struct Properties {  // xclBOProperties
    unsigned handle, flags;
    unsigned long long size, address;
    unsigned domain;
};

struct Buffer {
    size_t size;
    char *host, *device;
    uint64_t address;
};

constexpr uint32_t COMPLETED = 4, FAILED = 5, ABORTED = 6, STATE = 0xF;
constexpr int STORE = 2;  // of isa.h
constexpr unsigned EXECUTABLE = 1u << 31, BANK = 0xFF;
constexpr size_t PAGE = 4096, STACK = 64 << 20;
constexpr int REFUSED_SHELL = -EOPNOTSUPP;

typedef void Kernel(int, int, int, float, float, float, void *, void *, void *, void *);
typedef void Reach(int, int, int, float, float, float, void *, void *, void *, void *, long long *);

struct Card {  // each that is opened is another one
    std::map<unsigned, Buffer> buffers;
    std::map<std::string, int> calls;
    std::string interrupt;  // the setting that they are counted for
    uint64_t next[256] = {};  // free address of each bank
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    int finished = eventfd(0, EFD_NONBLOCK), started = 0;
    bool running = false;
    Kernel *kernel = nullptr;
    void *library = nullptr;  // of the loaded overlay, and its file
    int image = -1;
    Reach *reach = nullptr;
    std::string loaded;  // UUID
};
unsigned last_buffer = 0;  // of all cards: none is another's

const char *setting(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value && *value ? value : otherwise;
}

// Whether a setting is NAME, or NAME:N and the count is at least (or exactly) N.
bool is_due(const char *variable, const char *name, int count, bool exactly) {
    std::string text = setting(variable, "");
    size_t colon = text.find(':');
    if (text.substr(0, colon) != name) return false;
    int wanted = colon == std::string::npos ? 1 : atoi(text.c_str() + colon + 1);
    return exactly ? count == wanted : colon == std::string::npos || count >= wanted;
}

bool has_fault(const Card *card, const char *name) {
    return is_due("FAKE_XRT_FAULT", name, card->started, false);
}

void called(Card *card, const char *function) {
    std::string wanted = setting("FAKE_XRT_INTERRUPT", "");
    if (wanted != card->interrupt) card->calls.clear();
    card->interrupt = wanted;
    if (is_due("FAKE_XRT_INTERRUPT", function, ++card->calls[function], true)) kill(getpid(), SIGINT);
}

char *pages(size_t size) {
    return (char *)mmap(nullptr, (size + PAGE - 1) / PAGE * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

// Where a device address lies here, and how many bytes of its buffer follow.
char *host_address(Card *card, uint64_t address, long long &room) {
    for (auto &entry : card->buffers) {
        Buffer &buffer = entry.second;
        if (buffer.address <= address && address < buffer.address + buffer.size) {
            room = buffer.address + buffer.size - address;
            return buffer.device + (address - buffer.address);
        }
    }
    room = 0;
    return nullptr;
}

struct Start {
    Card *card;
    uint32_t *packet;
    int numbers[3];
    float factors[3];
    void *pointers[4];
};

void finish(Card *card, uint32_t *packet, uint32_t state) {
    __atomic_store_n(packet, (*packet & ~STATE) | state, __ATOMIC_RELEASE);
    card->running = false;
    uint64_t one = 1;
    if (write(card->finished, &one, sizeof one) < 0) perror("eventfd");
}

void *run(void *argument) {
    Start start = *(Start *)argument;
    delete (Start *)argument;
    fesetenv(FE_DFL_ENV);
    if (has_fault(start.card, "slow")) usleep(1200000);
    int *n = start.numbers;
    float *f = start.factors;
    void **p = start.pointers;
    start.card->kernel(n[0], n[1], n[2], f[0], f[1], f[2], p[0], p[1], p[2], p[3]);
    if (has_fault(start.card, "wrong") && n[0] == STORE) ((char *)p[2])[0] ^= 1;
    finish(start.card, start.packet, COMPLETED);
    return nullptr;
}

}  // namespace

extern "C" {

unsigned xclProbe() { return 1; }

Card *xclOpen(unsigned, const char *, int) {
    Card *card = new Card;
    called(card, "xclOpen");
    return card;
}

void xclClose(Card *) {}

int xclGetDeviceInfo2(Card *card, DeviceInfo *info) {
    called(card, "xclGetDeviceInfo2");
    if (has_fault(card, "lost")) return -ENODEV;
    memset(info, 0, sizeof *info);
    strcpy(info->name, "xilinx_u50_gen3x16_xdma_base_5");
    info->clocks[0] = card->loaded.empty() ? 300 : 200;
    info->chip_temperature = 55;
    info->pex_volts = 12100;
    info->pex_current = card->running ? 2000 : 1500;
    info->vccint_volts = 850;
    info->current = card->running ? 12000 : 9000;
    info->slot = 0x3b01;
    return 0;
}

int xclGetUsageInfo(void *, void *) { return 0; }
int xclLockDevice(void *) { return 0; }
int xclUnlockDevice(void *) { return 0; }
int xclIPName2Index(Card *card, const char *name) {
    return has_fault(card, "name") || strcmp(name, "trainer:trainer_1") ? -ENOENT : 0;
}

int xclLoadXclBin(Card *card, const char *file) {
    called(card, "xclLoadXclBin");
    if (has_fault(card, "lost")) return -ENODEV;
    if (card->running) return -EBUSY;
    if (has_fault(card, "load") || strncmp(file, "xclbin2", 8)) return REFUSED_SHELL;
    std::string uuid(file + 416, 16);
    if (uuid == card->loaded) return 0;  // as XRT: it is there
    char name[64], data[1 << 16];
    int copy = memfd_create("kernel", 0);  // a file of its own: a loaded overlay has memory of its own
    FILE *image = fopen(setting("FAKE_XRT_KERNEL", ""), "rb");
    if (!image) return -EINVAL;
    for (size_t size; (size = fread(data, 1, sizeof data, image)) > 0;)
        if (write(copy, data, size) < 0) return -EIO;
    fclose(image);
    snprintf(name, sizeof name, "/proc/self/fd/%d", copy);
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) return -EINVAL;
    if (card->library) {  // the overlay that goes: its memory is tens of megabytes
        dlclose(card->library);
        close(card->image);
    }
    card->library = library;
    card->image = copy;
    card->kernel = (Kernel *)dlsym(library, "trainer");
    card->reach = (Reach *)dlsym(library, "trainer_reach");
    card->loaded = uuid;
    return 0;
}

int xclOpenContext(Card *card, const char *uuid, unsigned, bool) {
    called(card, "xclOpenContext");
    return card->loaded == std::string(uuid, 16) ? 0 : -EINVAL;
}

int xclCloseContext(void *, const char *, unsigned) { return 0; }

unsigned xclAllocBO(Card *card, size_t size, int, unsigned flags) {
    called(card, "xclAllocBO");
    uint64_t bank = flags & EXECUTABLE ? 255 : flags & BANK;
    Buffer buffer = {size, pages(size), pages(size), (bank << 28) + PAGE + card->next[bank]};
    card->next[bank] += (size + PAGE - 1) / PAGE * PAGE;
    pthread_mutex_lock(&card->lock);
    card->buffers[++last_buffer] = buffer;
    pthread_mutex_unlock(&card->lock);
    return last_buffer;
}

void xclFreeBO(Card *card, unsigned number) {  // whoever mapped the host's copy has unmapped it
    pthread_mutex_lock(&card->lock);
    if (!card->running) munmap(card->buffers[number].device, card->buffers[number].size);
    card->buffers.erase(number);
    pthread_mutex_unlock(&card->lock);
}

void *xclMapBO(Card *card, unsigned number, bool) { return card->buffers[number].host; }

int xclGetBOProperties(Card *card, unsigned number, Properties *properties) {
    Buffer &buffer = card->buffers[number];
    *properties = {number, 0, buffer.size, buffer.address, 0};
    return 0;
}

int xclSyncBO(Card *card, unsigned number, int from_device, size_t size, size_t offset) {
    called(card, "xclSyncBO");
    if (has_fault(card, "lost")) return -ENODEV;
    Buffer &buffer = card->buffers[number];
    if (offset + size > buffer.size) return -EINVAL;
    char *host = buffer.host + offset, *device = buffer.device + offset;
    memcpy(from_device ? host : device, from_device ? device : host, size);
    return 0;
}

int xclExecBuf(Card *card, unsigned number) {
    called(card, "xclExecBuf");
    if (has_fault(card, "lost")) return -ENODEV;
    card->started++;
    if (has_fault(card, "lost")) return -ENODEV;
    uint32_t *packet = (uint32_t *)card->buffers[number].host, *registers = packet + 2;
    auto *start = new Start{card, packet, {}, {}, {}};
    uint64_t addresses[4];
    long long reached[4] = {}, room;
    for (int i = 0; i < 3; i++) memcpy(&start->numbers[i], (char *)registers + 0x10 + 8 * i, 4);
    for (int i = 0; i < 3; i++) memcpy(&start->factors[i], (char *)registers + 0x28 + 8 * i, 4);
    for (int i = 0; i < 4; i++) memcpy(&addresses[i], (char *)registers + 0x40 + 12 * i, 8);
    int *n = start->numbers;
    float *f = start->factors;
    void **p = start->pointers;
    card->running = true;
    if (has_fault(card, "hang")) return 0;
    card->reach(n[0], n[1], n[2], f[0], f[1], f[2], p[0], p[1], p[2], p[3], reached);
    bool fits = true;
    pthread_mutex_lock(&card->lock);
    for (int i = 0; i < 4; i++) {
        p[i] = host_address(card, addresses[i], room);
        fits &= addresses[i] >> 28 == (uint64_t)i && reached[i] <= room;  // each port has its bank
    }
    pthread_mutex_unlock(&card->lock);
    if (!fits || has_fault(card, "abort")) {
        finish(card, packet, fits ? ABORTED : FAILED);
        return 0;
    }
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_t thread;
    return -pthread_create(&thread, &attributes, run, start);
}

int xclExecWait(Card *card, int milliseconds) {
    called(card, "xclExecWait");
    pollfd wanted = {card->finished, POLLIN, 0};
    int ready = poll(&wanted, 1, milliseconds);
    uint64_t count;
    if (ready > 0 && read(card->finished, &count, sizeof count) < 0) return -EAGAIN;
    return ready < 0 ? -errno : ready;
}

size_t xclRead(void *, int, uint64_t, void *data, size_t size) {
    memset(data, 0, size);
    return size;
}

size_t xclWrite(void *, int, uint64_t, const void *, size_t size) { return size; }

}  // extern "C"
