/* A libnvidia-ml.so.1 that answers from a script: no GPU, no driver, every failure on demand.
 *
 * HPCTL_NVML_STUB names the script, read again whenever it has changed; tests/stubs/nvml/__init__.py
 * says what may stand in it. What the script does not name is NOT_SUPPORTED. Layouts of structs
 * are those of nvml.h, as nvidia-ml-py declares them; only what hpctl calls is here, so that a
 * call which is missing answers FUNCTION_NOT_FOUND, as in an old driver.
 */
#include <libgen.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef unsigned int nvmlReturn_t;
typedef struct device *nvmlDevice_t;
typedef unsigned long long ull;

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
};
enum { NODE = -1, LINES = 4096, WORD = 256, VALUES = 64, NAP_US = 20000 };

struct line {
    char key[80];
    char value[WORD];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct line script[LINES];
static size_t lines;
static char events[LINES][80];
static size_t event_lines, events_given;
static struct stat seen;
static int initialised;

/* --- the script ----------------------------------------------------------------------------- */

static int by_key(const void *a, const void *b) {
    return strcmp(((const struct line *)a)->key, ((const struct line *)b)->key);
}

static void read_script(void) {
    const char *path = getenv("HPCTL_NVML_STUB");
    char text[512];
    struct stat now;
    FILE *file;
    if (path == NULL || stat(path, &now) != 0) return;
    if (now.st_ino == seen.st_ino && now.st_mtim.tv_sec == seen.st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec && now.st_size == seen.st_size)
        return;
    if ((file = fopen(path, "re")) == NULL) return;
    seen = now;
    lines = event_lines = 0;
    while (fgets(text, sizeof text, file) != NULL) {
        text[strcspn(text, "\n")] = 0;
        char *equals = strchr(text, '=');
        if (strncmp(text, "event ", 6) == 0 && event_lines < LINES)
            snprintf(events[event_lines++], sizeof events[0], "%.79s", text);
        else if (equals != NULL && lines < LINES) {
            *equals = 0;
            snprintf(script[lines].key, sizeof script[0].key, "%.79s", text);
            snprintf(script[lines++].value, WORD, "%.255s", equals + 1);
        }
    }
    fclose(file);
    qsort(script, lines, sizeof script[0], by_key);
}

/* The value of a key, 0 where the script has none. The lock is held. */
static const char *find(const char *key) {
    struct line wanted;
    snprintf(wanted.key, sizeof wanted.key, "%s", key);
    struct line *found = bsearch(&wanted, script, lines, sizeof script[0], by_key);
    return found == NULL ? NULL : found->value;
}

/* Of one GPU, or else of all; of the node for gpu < 0. */
static const char *find_of(int gpu, const char *name) {
    char key[80];
    if (gpu < 0) return find(name);
    snprintf(key, sizeof key, "gpu%d.%.60s", gpu, name);
    const char *value = find(key);
    if (value != NULL) return value;
    snprintf(key, sizeof key, "gpu*.%.60s", name);
    return find(key);
}

static int look_up(int gpu, const char *name, char *copy) {
    pthread_mutex_lock(&lock);
    const char *value = find_of(gpu, name);
    if (value != NULL) snprintf(copy, WORD, "%s", value);
    pthread_mutex_unlock(&lock);
    return value != NULL;
}

static int named(int gpu, const char *key, const char *call) {
    char value[WORD], *rest = value, *word;
    if (!look_up(gpu, key, value)) return 0;
    while ((word = strsep(&rest, " ")) != NULL)
        if (strcmp(word, call) == 0) return 1;
    return 0;
}

static int is_to(int gpu, const char *what, const char *call) {
    pthread_mutex_lock(&lock);
    read_script();
    pthread_mutex_unlock(&lock);
    return named(NODE, what, call) || (gpu >= 0 && named(gpu, what, call));
}

/* Wait in state D, which no signal ends, as in the driver: so the kernel lets a parent wait until
 * its vfork has ended. */
static void block(int gpu, const char *call) {
    pid_t child = vfork();
    if (child == 0) {
        while (is_to(gpu, "block", call)) usleep(NAP_US);
        _exit(0);
    }
    if (child > 0) waitpid(child, NULL, 0);
}

/* What every call does first: hang, be slow, crash or fail where the script says so. */
static nvmlReturn_t enter(int gpu, const char *call) {
    char value[WORD];
    if (is_to(gpu, "crash", call)) abort();
    while (is_to(gpu, "hang", call)) usleep(NAP_US);
    while (is_to(gpu, "spin", call)) continue;
    if (is_to(gpu, "block", call)) block(gpu, call);
    if (look_up(gpu, "delay_ms", value)) usleep(1000 * (useconds_t)atoi(value));
    if (look_up(NODE, "error", value)) return (nvmlReturn_t)atoi(value);
    if (gpu >= 0 && look_up(gpu, "error", value)) return (nvmlReturn_t)atoi(value);
    return initialised ? SUCCESS : UNINITIALIZED;
}

/* The script's words for one call: how many, or an error. `!15` is the error 15. */
static nvmlReturn_t words_of(int gpu, const char *call, char *value) {
    nvmlReturn_t error = enter(gpu, call);
    if (error != SUCCESS) return error;
    if (!look_up(gpu, call, value)) return NOT_SUPPORTED;
    return value[0] == '!' ? (nvmlReturn_t)atoi(value + 1) : SUCCESS;
}

static nvmlReturn_t numbers_of(int gpu, const char *call, ull *numbers, int wanted) {
    char value[WORD], *rest = value, *word;
    nvmlReturn_t error = words_of(gpu, call, value);
    if (error != SUCCESS) return error;
    memset(numbers, 0, sizeof numbers[0] * (size_t)wanted);
    for (int i = 0; i < wanted && (word = strsep(&rest, " ")) != NULL; i++)
        numbers[i] = strtoull(word, NULL, 0);
    return SUCCESS;
}

static nvmlReturn_t text_of(int gpu, const char *call, char *out, unsigned int length) {
    char value[WORD];
    nvmlReturn_t error = words_of(gpu, call, value);
    if (error == SUCCESS) snprintf(out, length, "%s", value);
    return error;
}

static int count(void) {
    char value[WORD];
    return look_up(NODE, "count", value) ? atoi(value) : 0;
}

static nvmlDevice_t handle(int gpu) { return (nvmlDevice_t)(intptr_t)(0x1000 + 16 * gpu); }
static int index_of(nvmlDevice_t device) { return (int)(((intptr_t)device - 0x1000) / 16); }

/* --- the library and the node --------------------------------------------------------------- */

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    char value[WORD];
    (void)flags;
    nvmlReturn_t error = enter(NODE, "nvmlInitWithFlags");
    if (error != SUCCESS && error != UNINITIALIZED) return error;
    if (look_up(NODE, "init", value)) return (nvmlReturn_t)atoi(value);
    pthread_mutex_lock(&lock);
    events_given = event_lines; /* what happened before is over */
    pthread_mutex_unlock(&lock);
    initialised = 1;
    return SUCCESS;
}

nvmlReturn_t nvmlShutdown(void) {
    nvmlReturn_t error = enter(NODE, "nvmlShutdown");
    initialised = 0;
    return error;
}

const char *nvmlErrorString(nvmlReturn_t error) {
    static char text[32];
    snprintf(text, sizeof text, "stub error %u", error);
    return text;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *out) {
    nvmlReturn_t error = enter(NODE, "nvmlDeviceGetCount_v2");
    if (error == SUCCESS) *out = (unsigned int)count();
    return error;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int gpu, nvmlDevice_t *out) {
    char value[WORD];
    nvmlReturn_t error = enter(NODE, "nvmlDeviceGetHandleByIndex_v2");
    if (error != SUCCESS) return error;
    if ((int)gpu >= count()) return INVALID_ARGUMENT;
    if (look_up((int)gpu, "nvmlDeviceGetHandleByIndex_v2", value) && value[0] == '!')
        return (nvmlReturn_t)atoi(value + 1);
    *out = handle((int)gpu);
    return SUCCESS;
}

/* --- one GPU: words and single numbers ------------------------------------------------------- */

#define TEXT(call)                                                                     \
    nvmlReturn_t call(nvmlDevice_t device, char *out, unsigned int length) {           \
        return text_of(index_of(device), #call, out, length);                          \
    }
#define NUMBER(call, type)                                                             \
    nvmlReturn_t call(nvmlDevice_t device, type *out) {                                \
        ull number;                                                                    \
        nvmlReturn_t error = numbers_of(index_of(device), #call, &number, 1);          \
        if (error == SUCCESS) *out = (type)number;                                     \
        return error;                                                                  \
    }
/* With a selector: `nvmlDeviceGetClockInfo@1`, or for all `nvmlDeviceGetNvLinkState`. */
#define NUMBER_AT(call, type)                                                          \
    nvmlReturn_t call(nvmlDevice_t device, unsigned int which, type *out) {            \
        ull number;                                                                    \
        char name[80];                                                                 \
        snprintf(name, sizeof name, #call "@%u", which);                               \
        nvmlReturn_t error = enter(index_of(device), #call);                           \
        if (error == SUCCESS) error = numbers_of(index_of(device), name, &number, 1);  \
        if (error == NOT_SUPPORTED)                                                    \
            error = numbers_of(index_of(device), #call, &number, 1);                   \
        if (error == SUCCESS) *out = (type)number;                                     \
        return error;                                                                  \
    }
#define PAIR(call, first_type, second_type)                                            \
    nvmlReturn_t call(nvmlDevice_t device, first_type *first, second_type *second) {   \
        ull numbers[2];                                                                \
        nvmlReturn_t error = numbers_of(index_of(device), #call, numbers, 2);          \
        if (error == SUCCESS) *first = (first_type)numbers[0];                         \
        if (error == SUCCESS) *second = (second_type)numbers[1];                       \
        return error;                                                                  \
    }

TEXT(nvmlDeviceGetName)
TEXT(nvmlDeviceGetUUID)
TEXT(nvmlDeviceGetSerial)
TEXT(nvmlDeviceGetVbiosVersion)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned int)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned int)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int)
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned int)
NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned int)
NUMBER(nvmlDeviceGetPersistenceMode, unsigned int)
NUMBER(nvmlDeviceGetPowerUsage, unsigned int)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned int)
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, unsigned int)
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, ull)
NUMBER(nvmlDeviceGetSupportedEventTypes, ull)
NUMBER_AT(nvmlDeviceGetTemperature, unsigned int)
NUMBER_AT(nvmlDeviceGetTemperatureThreshold, unsigned int)
NUMBER_AT(nvmlDeviceGetClockInfo, unsigned int)
NUMBER_AT(nvmlDeviceGetApplicationsClock, unsigned int)
NUMBER_AT(nvmlDeviceGetDefaultApplicationsClock, unsigned int)
NUMBER_AT(nvmlDeviceGetNvLinkState, unsigned int)
PAIR(nvmlDeviceGetMigMode, unsigned int, unsigned int)
PAIR(nvmlDeviceGetEccMode, unsigned int, unsigned int)

/* --- one GPU: structs ------------------------------------------------------------------------ */

struct pci {
    char legacy[16];
    unsigned int domain, bus, device, id, subsystem;
    char bus_id[32];
};

nvmlReturn_t nvmlDeviceValidateInforom(nvmlDevice_t device) {
    ull ignored;
    return numbers_of(index_of(device), "nvmlDeviceValidateInforom", &ignored, 1);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, struct pci *out) {
    nvmlReturn_t error = enter(index_of(device), "nvmlDeviceGetPciInfo_v3");
    if (error != SUCCESS) return error;
    memset(out, 0, sizeof *out);
    error = text_of(index_of(device), "nvmlDeviceGetPciInfo_v3", out->bus_id, sizeof out->bus_id);
    if (error == SUCCESS) snprintf(out->legacy, sizeof out->legacy, "%.15s", out->bus_id);
    if (error == SUCCESS) sscanf(out->bus_id, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    return error;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, unsigned int *out) {
    ull numbers[2];
    nvmlReturn_t error =
        numbers_of(index_of(device), "nvmlDeviceGetUtilizationRates", numbers, 2);
    for (int i = 0; error == SUCCESS && i < 2; i++) out[i] = (unsigned int)numbers[i];
    return error;
}

/* total, free, used; bytes */
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, ull *out) {
    return numbers_of(index_of(device), "nvmlDeviceGetMemoryInfo", out, 3);
}

struct memory_v2 {
    unsigned int version;
    ull total, reserved, free, used;
};

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, struct memory_v2 *out) {
    ull numbers[4];
    nvmlReturn_t error = numbers_of(index_of(device), "nvmlDeviceGetMemoryInfo_v2", numbers, 4);
    if (error != SUCCESS) return error;
    out->total = numbers[0], out->reserved = numbers[1];
    out->free = numbers[2], out->used = numbers[3];
    return SUCCESS;
}

/* correctable, uncorrectable, pending, failure */
nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable,
                                       unsigned int *uncorrectable, unsigned int *pending,
                                       unsigned int *failure) {
    ull n[4];
    nvmlReturn_t error = numbers_of(index_of(device), "nvmlDeviceGetRemappedRows", n, 4);
    if (error != SUCCESS) return error;
    *correctable = (unsigned int)n[0], *uncorrectable = (unsigned int)n[1];
    *pending = (unsigned int)n[2], *failure = (unsigned int)n[3];
    return SUCCESS;
}

/* max, high, partial, low, none */
nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, unsigned int *out) {
    ull numbers[5];
    nvmlReturn_t error =
        numbers_of(index_of(device), "nvmlDeviceGetRowRemapperHistogram", numbers, 5);
    for (int i = 0; error == SUCCESS && i < 5; i++) out[i] = (unsigned int)numbers[i];
    return error;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int type,
                                         unsigned int counter, ull *out) {
    char name[80];
    nvmlReturn_t error = enter(index_of(device), "nvmlDeviceGetTotalEccErrors");
    if (error != SUCCESS) return error;
    snprintf(name, sizeof name, "nvmlDeviceGetTotalEccErrors@%u,%u", type, counter);
    return numbers_of(index_of(device), name, out, 1);
}

nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned int type,
                                             unsigned int counter, unsigned int location,
                                             ull *out) {
    char name[80];
    nvmlReturn_t error = enter(index_of(device), "nvmlDeviceGetMemoryErrorCounter");
    if (error != SUCCESS) return error;
    snprintf(name, sizeof name, "nvmlDeviceGetMemoryErrorCounter@%u,%u,%u", type, counter,
             location);
    return numbers_of(index_of(device), name, out, 1);
}

/* The first number of the script is bThresholdExceeded; the 11 counters follow. */
struct sram {
    unsigned int version;
    ull counters[11];
    unsigned int threshold_exceeded;
};

nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, struct sram *out) {
    ull numbers[12];
    nvmlReturn_t error =
        numbers_of(index_of(device), "nvmlDeviceGetSramEccErrorStatus", numbers, 12);
    if (error != SUCCESS) return error;
    out->threshold_exceeded = (unsigned int)numbers[0];
    memcpy(out->counters, numbers + 1, sizeof out->counters);
    return SUCCESS;
}

struct margin {
    unsigned int version;
    int margin;
};

nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, struct margin *out) {
    char value[WORD];
    nvmlReturn_t error = words_of(index_of(device), "nvmlDeviceGetMarginTemperature", value);
    if (error == SUCCESS) out->margin = atoi(value);
    return error;
}

struct temperature {
    unsigned int version, sensor;
    int temperature;
};

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, struct temperature *out) {
    unsigned int degrees;
    nvmlReturn_t error = nvmlDeviceGetTemperature(device, out->sensor, &degrees);
    if (error == SUCCESS) out->temperature = (int)degrees;
    return error;
}

/* state, status, clique, health mask, health summary, first byte of the cluster's UUID.
 * The top byte of a version is its number: an old driver knows only version 2. */
struct fabric {
    unsigned int version;
    unsigned char uuid[16];
    unsigned int status;
    uint32_t clique;
    unsigned char state;
    uint32_t health_mask;
    unsigned char summary;
};

nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, struct fabric *out) {
    char value[WORD];
    ull n[6];
    nvmlReturn_t error = numbers_of(index_of(device), "nvmlDeviceGetGpuFabricInfoV", n, 6);
    if (error != SUCCESS) return error;
    unsigned int newest = look_up(NODE, "fabric_version", value) ? (unsigned int)atoi(value) : 3;
    if (out->version >> 24 > newest) return 25; /* ARGUMENT_VERSION_MISMATCH */
    memset(out->uuid, (int)n[5], sizeof out->uuid);
    out->state = (unsigned char)n[0], out->status = (unsigned int)n[1];
    out->clique = (uint32_t)n[2], out->health_mask = (uint32_t)n[3];
    if (out->version >> 24 >= 3) out->summary = (unsigned char)n[4];
    return SUCCESS;
}

struct process {
    unsigned int pid;
    ull used;
    unsigned int gpu_instance, compute_instance;
};

/* The script has `pid:bytes` words. */
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *room,
                                                     struct process *out) {
    char value[WORD] = "", *rest = value, *word;
    struct process all[VALUES];
    unsigned int found = 0;
    nvmlReturn_t error =
        words_of(index_of(device), "nvmlDeviceGetComputeRunningProcesses_v3", value);
    if (error != SUCCESS) return error;
    while (found < VALUES && (word = strsep(&rest, " ")) != NULL)
        if (sscanf(word, "%u:%llu", &all[found].pid, &all[found].used) == 2) {
            all[found].gpu_instance = all[found].compute_instance = 0xFFFFFFFF;
            found++;
        }
    unsigned int had = *room;
    *room = found;
    if (found > had) return INSUFFICIENT_SIZE;
    if (found > 0) memcpy(out, all, found * sizeof all[0]);
    return SUCCESS;
}

/* --- fields ---------------------------------------------------------------------------------- */

enum { DOUBLE = 0, UNSIGNED_INT = 1, UNSIGNED_LONG_LONG = 3, SIGNED_INT = 5 };

struct field {
    uint32_t id, scope;
    int64_t timestamp, latency;
    unsigned int type;
    nvmlReturn_t result;
    union {
        double d;
        unsigned int ui;
        ull u;
        int i;
    } value;
};

static void fill(struct field *field, const char *text) {
    field->value.u = 0;
    field->result = SUCCESS;
    if (text[0] == '!')
        field->result = (nvmlReturn_t)atoi(text + 1);
    else if (strpbrk(text, ".e") != NULL && strncmp(text, "0x", 2) != 0)
        field->type = DOUBLE, field->value.d = atof(text);
    else if (text[0] == '-')
        field->type = SIGNED_INT, field->value.i = atoi(text);
    else if (strstr(text, "ull") != NULL || strtoull(text, NULL, 0) > 0xFFFFFFFFull)
        field->type = UNSIGNED_LONG_LONG, field->value.u = strtoull(text, NULL, 0);
    else
        field->type = UNSIGNED_INT, field->value.ui = (unsigned int)strtoull(text, NULL, 0);
}

/* A number has the smallest type that holds it, `7ull` that of an unsigned long long.
 * `field165@3` for the scope 3, else `field165`. Asked ids that no script names: NOT_SUPPORTED. */
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int wanted, struct field *fields) {
    int gpu = index_of(device);
    nvmlReturn_t error = enter(gpu, "nvmlDeviceGetFieldValues");
    if (error != SUCCESS) return error;
    for (int i = 0; i < wanted; i++) {
        char name[80], value[WORD];
        snprintf(name, sizeof name, "field%u@%u", fields[i].id, fields[i].scope);
        int known = look_up(gpu, name, value);
        snprintf(name, sizeof name, "field%u", fields[i].id);
        fill(&fields[i], known || look_up(gpu, name, value) ? value : "!3");
    }
    return SUCCESS;
}

/* --- events ---------------------------------------------------------------------------------- */

struct event {
    nvmlDevice_t device;
    ull type, data;
    unsigned int gpu_instance, compute_instance;
};

static ull registered[VALUES];
static int watch = -1; /* of the script's folder, so that a wait costs nothing while it lasts */

nvmlReturn_t nvmlEventSetCreate(void **set) {
    const char *path = getenv("HPCTL_NVML_STUB");
    char copy[4096];
    *set = registered;
    if (watch < 0 && path != NULL) {
        snprintf(copy, sizeof copy, "%s", path);
        watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
        inotify_add_watch(watch, dirname(copy), IN_MOVED_TO);
    }
    return enter(NODE, "nvmlEventSetCreate");
}

nvmlReturn_t nvmlEventSetFree(void *set) {
    (void)set;
    memset(registered, 0, sizeof registered);
    return enter(NODE, "nvmlEventSetFree");
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, ull types, void *set) {
    ull supported;
    (void)set;
    nvmlReturn_t error = nvmlDeviceGetSupportedEventTypes(device, &supported);
    if (error == SUCCESS) error = enter(index_of(device), "nvmlDeviceRegisterEvents");
    if (error == SUCCESS && (types & ~supported) != 0) error = NOT_SUPPORTED;
    if (error == SUCCESS) registered[index_of(device)] |= types;
    return error;
}

/* The next event of the script that was registered for. */
static int take(struct event *out) {
    int gpu, taken = 0;
    ull type, data;
    pthread_mutex_lock(&lock);
    read_script();
    while (!taken && events_given < event_lines) {
        if (sscanf(events[events_given++], "event gpu%d %lli %lli", &gpu, &type, &data) != 3)
            continue;
        if (gpu < 0 || gpu >= VALUES || (registered[gpu] & type) == 0) continue;
        memset(out, 0, sizeof *out);
        out->device = handle(gpu), out->type = type, out->data = data;
        out->gpu_instance = out->compute_instance = 0xFFFFFFFF;
        taken = 1;
    }
    pthread_mutex_unlock(&lock);
    return taken;
}

static long long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

nvmlReturn_t nvmlEventSetWait_v2(void *set, struct event *out, unsigned int timeout_ms) {
    char told[4096];
    long long left, end = now_ms() + timeout_ms;
    struct pollfd changes = {.fd = watch, .events = POLLIN};
    (void)set;
    nvmlReturn_t error = enter(NODE, "nvmlEventSetWait_v2");
    while (error == SUCCESS) {
        if (take(out)) return SUCCESS;
        if ((left = end - now_ms()) <= 0) return TIMEOUT;
        if (poll(&changes, 1, (int)left) > 0)
            while (read(watch, told, sizeof told) > 0) continue;
        error = enter(NODE, "nvmlEventSetWait_v2");
    }
    return error;
}
