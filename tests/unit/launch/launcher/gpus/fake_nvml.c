/* NVML as the launcher calls it: two GPUs, of which the second can't be profiled and counts no ECC errors. Shares, power and errors rise
   with each reading; two messages come for the first GPU, in the order 43, 94. */
#include <string.h>
typedef struct { unsigned gpu, memory; } use_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned version, supported; } support_t;
typedef struct { unsigned id, status; double value; const char *names[3]; } metric_t;
typedef struct { unsigned version, count; void *sample_1, *sample_2; metric_t metrics[98]; } metrics_t;
static int devices[2], readings, samples;
static int sample_at[8];
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (index > 1) return 2;
    *device = &devices[index];
    return 0;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    if (strcmp(uuid, "GPU-one")) return 6;
    *device = &devices[1];
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *device, use_t *use) {
    use->gpu = device == &devices[0] ? 40 + 20 * (readings++) : 10;
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) {
    memory->used = device == &devices[0] ? 1ull << 33 : 1ull << 34;
    return 0;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
    *milliwatts = 300500;
    return device == &devices[0] ? 0 : 3; /* not supported */
}
int nvmlGpmQueryDeviceSupport(void *device, support_t *support) {
    support->supported = device == &devices[0] && support->version == 1;
    return 0;
}
int nvmlGpmSampleAlloc(void **sample) { *sample = &sample_at[samples++]; return 0; }
int nvmlGpmSampleGet(void *device, void *sample) {
    static int clock;
    *(int *)sample = ++clock;
    return device == &devices[0] ? 0 : 3;
}
int nvmlGpmMetricsGet(metrics_t *asked) { /* the later sample comes second */
    if (asked->version != 1 || asked->count != 2 || *(int *)asked->sample_1 >= *(int *)asked->sample_2) return 2;
    for (unsigned i = 0; i < 2; i++) {
        asked->metrics[i].value = asked->metrics[i].id == 2 ? 75.0 : asked->metrics[i].id == 5 ? 25.0 : -1.0;
        asked->metrics[i].status = 0;
    }
    return 0;
}
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
typedef struct { void *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } event_t;
static int registered, sent;
int nvmlDeviceGetPciInfo_v3(void *device, pci_t *pci) {
    pci->domain = 0;
    pci->bus = device == &devices[0] ? 0x3b : 0xaf;
    pci->device = 0;
    return 0;
}
int nvmlDeviceGetTotalEccErrors(void *device, unsigned kind, unsigned counter, unsigned long long *count) {
    static int errors = 5;
    if (device != &devices[0] || kind != 1 || counter != 0) return 3;
    *count = errors++;
    return 0;
}
int nvmlEventSetCreate(void **set) { *set = &sent; registered = sent = 0; return 0; }
int nvmlEventSetFree(void *set) { return set != &sent; }
int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set) {
    registered += device == &devices[0] && types == 8 && set == &sent;
    return 0;
}
int nvmlEventSetWait_v2(void *set, event_t *event, unsigned timeout_ms) {
    if (set != &sent || timeout_ms || !registered || sent > 1) return 10; /* timeout */
    event->device = &devices[0];
    event->type = 8;
    event->data = sent++ ? 94 : 43;
    return 0;
}
int nvmlDeviceGetClockInfo(void *device, unsigned type, unsigned *megahertz) {
    *megahertz = type == 1 ? 1980 : 0;
    return device == &devices[0] ? 0 : 3;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons) {
    *reasons = device == &devices[0] ? 0x04 : 0x04 | 0x40; /* its power limit; and heat */
    return 0;
}
int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *active) {
    *active = link != 2;
    return device == &devices[0] && link < 12 ? 0 : 3;
}
