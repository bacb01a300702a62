/* A libnvidia-ml.so.1 without a driver behind it.
 *
 * It shows what the text file named by $NVML_STUB_FILE says, read anew at every call, so that memory, processes and
 * faults can change while a program runs. Lines, their fields parted by blanks:
 *
 *   gpu UUID BUS_ID TOTAL_MB USED_MB MAJOR MINOR COMPUTE_MODE MIG_MODE MODEL...   gpus count from 0, in this order
 *   mig GPU UUID GPU_INSTANCE COMPUTE_INSTANCE TOTAL_MB USED_MB MODEL...          instances count from 0 per gpu
 *   process GPU INSTANCE PID USED_MB KIND      INSTANCE -1 for the whole gpu; KIND compute, graphics or mps; USED_MB -1 for
 *                                              a process whose memory is not available
 *   link GPU LINK ACTIVE PEER_BUS_ID           links not listed do not exist
 *   numa GPU NODE                              the gpu is a NUMA node
 *   memory GPU UNCORRECTED REMAP_PENDING REMAP_FAILED RETIREMENT_PENDING      errors of its memory
 *   slow GPU REASONS                           why its clocks are lowered, NVML's bits as a number
 *   driver VERSION CUDA                         CUDA as NVML writes it, 12040 for 12.4
 *   display GPU ON                              whether a screen is on it
 *   fabric GPU STATE STATUS                     its place in the fabric of NVSwitches, NVML's numbers
 *   part GPU INDEX CODE                         what asking for that MIG instance answers, be it there or not
 *   xid GPU NUMBER                              an error that the driver reports, once; lines must only be added
 *   fail FUNCTION GPU CODE                     that function answers CODE for that gpu; GPU -1 for every call of it
 *
 * MB are 10^6 bytes. The declarations follow NVML's documented C interface, cut to what is used.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10 };
enum { MAX_GPUS = 64, MAX_INSTANCES = 8, MAX_LINKS = 36, MAX_PROCESSES = 128, MAX_XIDS = 64, TEXT = 96 };
#define MB 1000000ULL
#define RESERVED (600 * MB) /* what a driver keeps for itself; version 1 of the memory call counts it as used */

typedef void *Handle;
typedef struct { char uuid[TEXT], model[TEXT]; unsigned long long total, used; unsigned gi, ci; } Part;
typedef struct {
    Part whole, instances[MAX_INSTANCES];
    char bus_id[32], peers[MAX_LINKS][32];
    int major, minor, compute_mode, mig_mode, num_instances, numa_node, links[MAX_LINKS];
    unsigned long long slow, uncorrected;
    int remap_pending, remap_failed, retirement_pending, display, has_fabric, part_codes[MAX_INSTANCES];
    unsigned fabric_state, fabric_status;
} Gpu;
typedef struct { int gpu; unsigned long long number; } Xid;
typedef struct { Handle device; unsigned long long type, number; unsigned gi, ci; } EventData;
typedef struct { unsigned version; unsigned char cluster[16]; unsigned status, clique; unsigned char state; unsigned health; } FabricInfo;
typedef struct { int gpu, instance; unsigned pid; long long used; char kind[16]; } Process;
typedef struct { unsigned long long total, free, used; } MemoryV1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } ProcessInfo;
typedef struct { char legacy[16]; unsigned domain, bus, device, device_id, subsystem_id; char bus_id[32]; } PciInfo;

/* Per thread, because threads may ask at the same time. */
static _Thread_local Gpu gpus[MAX_GPUS];
static _Thread_local Process processes[MAX_PROCESSES];
static _Thread_local Xid xids[MAX_XIDS];
static _Thread_local int num_gpus, num_processes, num_xids, driver_cuda;
static int num_opened, num_delivered; /* of the library, and of its Xids */
static _Thread_local char driver_version[TEXT];

static void read_part(const char *line, Part *part, int offset) {
    part->total *= MB, part->used *= MB;
    snprintf(part->model, TEXT, "%s", line + offset);
    part->model[strcspn(part->model, "\n")] = 0;
}

/* Reads the file; the code that `function` is to answer with for `gpu`, or SUCCESS. */
static int load(const char *function, int gpu) {
    static _Thread_local char line[512];
    const char *path = getenv("NVML_STUB_FILE");
    FILE *file = path ? fopen(path, "r") : NULL;
    int answer = SUCCESS;
    if (!file) { fprintf(stderr, "nvml stub: cannot read NVML_STUB_FILE\n"); abort(); }
    num_gpus = num_processes = num_xids = 0;
    memset(gpus, 0, sizeof gpus);
    while (fgets(line, sizeof line, file)) {
        char name[TEXT], peer[32];
        int owner = 0, number, value, offset = 0;
        if (num_gpus < MAX_GPUS) {
            Gpu *c = &gpus[num_gpus];
            if (sscanf(line, "gpu %95s %31s %llu %llu %d %d %d %d %n", c->whole.uuid, c->bus_id, &c->whole.total,
                       &c->whole.used, &c->major, &c->minor, &c->compute_mode, &c->mig_mode, &offset) == 8) {
                read_part(line, &c->whole, offset);
                c->numa_node = -1;
                memset(c->links, -1, sizeof c->links);
                num_gpus++;
                continue;
            }
        }
        if (sscanf(line, "fail %95s %d %d", name, &owner, &value) == 3) {
            if (!strcmp(name, function) && (owner == gpu || owner == -1)) answer = value;
            continue;
        }
        if (sscanf(line, "driver %95s %d", driver_version, &driver_cuda) == 2) continue;
        if (sscanf(line, "%95s %d", name, &owner) != 2 || owner < 0 || owner >= num_gpus) continue;
        Gpu *c = &gpus[owner];
        Part *part = &c->instances[c->num_instances];
        Process *p = &processes[num_processes];
        if (!strcmp(name, "mig") && c->num_instances < MAX_INSTANCES) {
            if (sscanf(line, "mig %*d %95s %u %u %llu %llu %n", part->uuid, &part->gi, &part->ci, &part->total,
                       &part->used, &offset) == 5) read_part(line, part, offset), c->num_instances++;
        } else if (!strcmp(name, "process") && num_processes < MAX_PROCESSES) {
            p->gpu = owner;
            if (sscanf(line, "process %*d %d %u %lld %15s", &p->instance, &p->pid, &p->used, p->kind) == 4)
                p->used *= (long long)MB, num_processes++;
        } else if (sscanf(line, "link %*d %d %d %31s", &number, &value, peer) == 3 && number < MAX_LINKS) {
            c->links[number] = value;
            memcpy(c->peers[number], peer, sizeof peer);
        } else if (sscanf(line, "numa %*d %d", &value) == 1) {
            c->numa_node = value;
        } else if (!strcmp(name, "memory")) {
            sscanf(line, "memory %*d %llu %d %d %d", &c->uncorrected, &c->remap_pending, &c->remap_failed,
                   &c->retirement_pending);
        } else if (!strcmp(name, "display")) {
            sscanf(line, "display %*d %d", &c->display);
        } else if (sscanf(line, "fabric %*d %u %u", &c->fabric_state, &c->fabric_status) == 2) {
            c->has_fabric = 1;
        } else if (sscanf(line, "part %*d %d %d", &number, &value) == 2 && number < MAX_INSTANCES) {
            c->part_codes[number] = value;
        } else if (!strcmp(name, "xid") && num_xids < MAX_XIDS) {
            xids[num_xids].gpu = owner;
            if (sscanf(line, "xid %*d %llu", &xids[num_xids].number) == 1) num_xids++;
        } else if (!strcmp(name, "slow")) {
            sscanf(line, "slow %*d %llu", &c->slow);
        }
    }
    fclose(file);
    return answer;
}

/* A handle is gpu * 16 + instance + 2, the whole gpu being instance -1. */
static Handle handle_of(int gpu, int instance) { return (Handle)(uintptr_t)(gpu * 16 + instance + 2); }
static int gpu_of(Handle handle) { return (int)((uintptr_t)handle - 1) / 16; }
static int instance_of(Handle handle) { return (int)((uintptr_t)handle - 1) % 16 - 1; }
static Part *part_of(Handle handle) {
    Gpu *gpu = &gpus[gpu_of(handle)];
    return instance_of(handle) < 0 ? &gpu->whole : &gpu->instances[instance_of(handle)];
}

#define ANSWER(gpu) do { int code = load(__func__, gpu); if (code) return code; } while (0)

/* A byte in $NVML_STUB_FILE.`what`, if that exists: programs wait for it to grow, or count. */
static void note(const char *what) {
    char path[512];
    snprintf(path, sizeof path, "%s.%s", getenv("NVML_STUB_FILE"), what);
    int file = open(path, O_WRONLY | O_APPEND);
    if (file >= 0 && write(file, "?", 1) == 1) close(file);
}

/* As NVML does, it counts: GPUs without persistence mode wake at the first opening and sleep after the last shutdown. */
int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    ANSWER(-2);
    if (!num_opened++) note("woken");
    return SUCCESS;
}
int nvmlShutdown(void) { ANSWER(-2); num_opened--; return SUCCESS; }
const char *nvmlErrorString(int code) { static char text[32]; snprintf(text, sizeof text, "stub error %d", code); return text; }

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    ANSWER(-2); snprintf(text, size, "%s", driver_version); return SUCCESS;
}
int nvmlSystemGetCudaDriverVersion_v2(int *version) { ANSWER(-2); *version = driver_cuda; return SUCCESS; }

int nvmlDeviceGetCount_v2(unsigned *count) { ANSWER(-2); *count = (unsigned)num_gpus; return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle *handle) {
    ANSWER((int)index);
    if ((int)index >= num_gpus) return INVALID_ARGUMENT;
    *handle = handle_of((int)index, -1);
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Handle *handle) {
    ANSWER(-2);
    for (int gpu = 0; gpu < num_gpus; gpu++)
        for (int instance = -1; instance < gpus[gpu].num_instances; instance++)
            if (!strcmp(part_of(handle_of(gpu, instance))->uuid, uuid)) {
                ANSWER(gpu);
                *handle = handle_of(gpu, instance);
                return SUCCESS;
            }
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(Handle h, char *text, unsigned size) {
    ANSWER(gpu_of(h)); snprintf(text, size, "%s", part_of(h)->uuid); return SUCCESS;
}
int nvmlDeviceGetName(Handle h, char *text, unsigned size) {
    ANSWER(gpu_of(h)); snprintf(text, size, "%s", part_of(h)->model); return SUCCESS;
}
int nvmlDeviceGetMemoryInfo(Handle h, MemoryV1 *memory) {
    ANSWER(gpu_of(h));
    unsigned long long total = part_of(h)->total, used = part_of(h)->used + RESERVED;
    *memory = (MemoryV1){total, total - used, used};
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo_v2(Handle h, MemoryV2 *memory) {
    ANSWER(gpu_of(h));
    unsigned long long total = part_of(h)->total, used = part_of(h)->used;
    *memory = (MemoryV2){memory->version, total, RESERVED, total - used - RESERVED, used};
    return SUCCESS;
}
int nvmlDeviceGetNumaNodeId(Handle h, int *node) {
    ANSWER(gpu_of(h)); *node = gpus[gpu_of(h)].numa_node; return *node < 0 ? NOT_SUPPORTED : SUCCESS;
}
int nvmlDeviceGetComputeMode(Handle h, int *mode) {
    ANSWER(gpu_of(h)); *mode = gpus[gpu_of(h)].compute_mode; return SUCCESS;
}
int nvmlDeviceGetCurrentClocksEventReasons(Handle h, unsigned long long *reasons) {
    ANSWER(gpu_of(h)); *reasons = gpus[gpu_of(h)].slow; return SUCCESS;
}
int nvmlDeviceGetTotalEccErrors(Handle h, int kind, int counter, unsigned long long *count) {
    ANSWER(gpu_of(h)); *count = kind == 1 && counter == 0 ? gpus[gpu_of(h)].uncorrected : 7; return SUCCESS;
}
int nvmlDeviceGetRemappedRows(Handle h, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    ANSWER(gpu_of(h));
    *corrected = *uncorrected = 5; /* remapped rows are no fault */
    *pending = (unsigned)gpus[gpu_of(h)].remap_pending, *failed = (unsigned)gpus[gpu_of(h)].remap_failed;
    return SUCCESS;
}
int nvmlDeviceGetRetiredPagesPendingStatus(Handle h, int *pending) {
    ANSWER(gpu_of(h)); *pending = gpus[gpu_of(h)].retirement_pending; return SUCCESS;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Handle h, Handle *whole) {
    ANSWER(gpu_of(h)); *whole = handle_of(gpu_of(h), -1); return SUCCESS;
}
int nvmlDeviceGetCudaComputeCapability(Handle h, int *major, int *minor) {
    ANSWER(gpu_of(h));
    *major = gpus[gpu_of(h)].major, *minor = gpus[gpu_of(h)].minor;
    return SUCCESS;
}
int nvmlDeviceGetPciInfo_v3(Handle h, PciInfo *info) {
    ANSWER(gpu_of(h)); memcpy(info->bus_id, gpus[gpu_of(h)].bus_id, 32); return SUCCESS;
}

int nvmlDeviceGetMigMode(Handle h, unsigned *current, unsigned *pending) {
    ANSWER(gpu_of(h));
    if (gpus[gpu_of(h)].mig_mode < 0) return NOT_SUPPORTED;
    *current = *pending = (unsigned)gpus[gpu_of(h)].mig_mode;
    return SUCCESS;
}
int nvmlDeviceGetMaxMigDeviceCount(Handle h, unsigned *count) { ANSWER(gpu_of(h)); *count = 7; return SUCCESS; }
int nvmlDeviceGetMigDeviceHandleByIndex(Handle h, unsigned index, Handle *instance) {
    ANSWER(gpu_of(h));
    if (index < MAX_INSTANCES && gpus[gpu_of(h)].part_codes[index]) return gpus[gpu_of(h)].part_codes[index];
    if ((int)index >= gpus[gpu_of(h)].num_instances) return NOT_FOUND;
    *instance = handle_of(gpu_of(h), (int)index);
    return SUCCESS;
}
int nvmlDeviceGetGpuInstanceId(Handle h, unsigned *id) { ANSWER(gpu_of(h)); *id = part_of(h)->gi; return SUCCESS; }
int nvmlDeviceGetComputeInstanceId(Handle h, unsigned *id) { ANSWER(gpu_of(h)); *id = part_of(h)->ci; return SUCCESS; }

static int list_processes(Handle h, const char *kind, unsigned *count, ProcessInfo *infos) {
    unsigned num_found = 0;
    for (int i = 0; i < num_processes; i++) {
        Process *p = &processes[i];
        if (p->gpu != gpu_of(h) || p->instance != instance_of(h) || strcmp(p->kind, kind)) continue;
        if (num_found < *count) infos[num_found] = (ProcessInfo){p->pid, p->used < 0 ? ~0ULL : (unsigned long long)p->used, ~0u, ~0u};
        num_found++;
    }
    int code = num_found > *count ? INSUFFICIENT_SIZE : SUCCESS;
    *count = num_found;
    return code;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Handle h, unsigned *count, ProcessInfo *infos) {
    note("asked");
    ANSWER(gpu_of(h)); return list_processes(h, "compute", count, infos);
}
int nvmlDeviceGetComputeRunningProcesses_v2(Handle h, unsigned *count, ProcessInfo *infos) {
    ANSWER(gpu_of(h)); return list_processes(h, "compute", count, infos);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(Handle h, unsigned *count, ProcessInfo *infos) {
    ANSWER(gpu_of(h)); return list_processes(h, "graphics", count, infos);
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(Handle h, unsigned *count, ProcessInfo *infos) {
    ANSWER(gpu_of(h)); return list_processes(h, "mps", count, infos);
}
int nvmlDeviceGetDisplayActive(Handle h, int *on) {
    ANSWER(gpu_of(h)); *on = gpus[gpu_of(h)].display; return SUCCESS;
}
int nvmlDeviceGetGpuFabricInfoV(Handle h, FabricInfo *info) {
    ANSWER(gpu_of(h));
    if (!gpus[gpu_of(h)].has_fabric) return NOT_SUPPORTED;
    info->state = (unsigned char)gpus[gpu_of(h)].fabric_state, info->status = gpus[gpu_of(h)].fabric_status;
    return SUCCESS;
}

/* One set of events for everybody: it has the errors that come after it was made. */
int nvmlEventSetCreate(Handle *set) { ANSWER(-2); num_delivered = num_xids; *set = (Handle)(uintptr_t)1; return SUCCESS; }
int nvmlDeviceRegisterEvents(Handle h, unsigned long long types, Handle set) {
    (void)set; ANSWER(gpu_of(h)); return types == 8 ? SUCCESS : INVALID_ARGUMENT;
}
int nvmlEventSetWait_v2(Handle set, EventData *data, unsigned timeout_ms) {
    (void)set, (void)timeout_ms;
    ANSWER(-2);
    if (num_delivered >= num_xids) return TIMEOUT;
    Xid *xid = &xids[num_delivered++];
    *data = (EventData){handle_of(xid->gpu, -1), 8, xid->number, ~0u, ~0u};
    return SUCCESS;
}

int nvmlDeviceGetNvLinkState(Handle h, unsigned link, unsigned *active) {
    ANSWER(gpu_of(h));
    if (link >= MAX_LINKS || gpus[gpu_of(h)].links[link] < 0) return INVALID_ARGUMENT;
    *active = (unsigned)gpus[gpu_of(h)].links[link];
    return SUCCESS;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle h, unsigned link, PciInfo *info) {
    ANSWER(gpu_of(h)); memcpy(info->bus_id, gpus[gpu_of(h)].peers[link], 32); return SUCCESS;
}
