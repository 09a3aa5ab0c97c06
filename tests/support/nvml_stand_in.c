/*
 * Stands in for libnvidia-ml.so.1 under the real nvidia-ml-py. What it shows is read, on every call, from the file
 * named by STAND_IN_STATE; one fact a line:
 *
 *   gpu <index> <uuid> <used bytes> <total bytes> <name>
 *   mig <index> <number> <uuid> <gpu instance> <compute instance> <used bytes>
 *   proc <uuid> <pid> <used bytes | -1 for "not available">
 *   mps <uuid> <pid> <used bytes>
 *   ecc <uuid> <count> | remap <uuid> <pending> <failed> | recovery <uuid> <action> | links <uuid> <count> <down>
 *   fail <function> <uuid | *> <NVML error code>
 *   hang <function>
 *   xid <uuid> <number>          told once, as soon as somebody waits for it
 *   before <n> <fact…>           only before the n-th look at memory
 *
 * Built with -DWITHOUT_PROCESSES or -DWITHOUT_HEALTH it lacks those functions, as old drivers do.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SUCCESS 0
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define INSUFFICIENT_SIZE 7
#define TIMEOUT 10
#define MAX_FACTS 256
#define MAX_LINE 256
#define XID_EVENT 8ULL

typedef struct { char uuid[96]; } device_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { device_t *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } event_t;
typedef struct {
    unsigned field, scope; long long time, latency; unsigned type, result;
    union { double d; unsigned u; unsigned long long ull; } value;
} field_t;

static device_t devices[64];
static int device_count, looks;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int read_facts(char facts[MAX_FACTS][MAX_LINE])
{
    const char *path = getenv("STAND_IN_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    int count = 0;
    while (file && count < MAX_FACTS && fgets(facts[count], MAX_LINE, file)) {
        int first = 0, skip = 0;
        facts[count][strcspn(facts[count], "\n")] = 0;
        if (sscanf(facts[count], "before %d %n", &first, &skip) == 1 && skip) {
            if (looks >= first)
                continue;
            memmove(facts[count], facts[count] + skip, strlen(facts[count] + skip) + 1);
        }
        count++;
    }
    if (file)
        fclose(file);
    return count;
}

/* The first fact that begins with these words: what follows them, or NULL. */
static const char *find(char facts[MAX_FACTS][MAX_LINE], int count, const char *kind, const char *word, int nth)
{
    char prefix[MAX_LINE];
    snprintf(prefix, sizeof prefix, word ? "%s %s" : "%s", kind, word);
    size_t length = strlen(prefix);
    for (int i = 0; i < count; i++)
        if (!strncmp(facts[i], prefix, length) && (facts[i][length] == ' ' || !facts[i][length]) && nth-- == 0)
            return facts[i][length] ? facts[i] + length + 1 : facts[i] + length;
    return NULL;
}

static int enter(const char *function, const char *uuid, char facts[MAX_FACTS][MAX_LINE], int *count)
{
    int code;
    *count = read_facts(facts);
    while (find(facts, *count, "hang", function, 0))
        pause();
    for (int i = 0; i < 2; i++) {
        char word[MAX_LINE];
        snprintf(word, sizeof word, "%s %s", function, i ? "*" : uuid);
        const char *rest = find(facts, *count, "fail", word, 0);
        if (rest && sscanf(rest, "%d", &code) == 1)
            return code;
    }
    return SUCCESS;
}

#define ENTER(uuid) \
    char facts[MAX_FACTS][MAX_LINE]; \
    int count, code = enter(__func__, uuid, facts, &count); \
    (void)count; \
    if (code) \
        return code

static device_t *handle_of(const char *uuid)
{
    device_t *found = NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < device_count && !found; i++)
        if (!strcmp(devices[i].uuid, uuid))
            found = &devices[i];
    if (!found && device_count < 64) {
        found = &devices[device_count++];
        snprintf(found->uuid, sizeof found->uuid, "%s", uuid);
    }
    pthread_mutex_unlock(&lock);
    return found;
}

const char *nvmlErrorString(int code) { (void)code; return "an error of the stand-in"; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; ENTER("*"); return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }

int nvmlDeviceGetCount_v2(unsigned *result)
{
    ENTER("*");
    for (*result = 0; find(facts, count, "gpu", NULL, *result); ++*result)
        ;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t **result)
{
    char word[16], uuid[96];
    snprintf(word, sizeof word, "%u", index);
    ENTER(word);
    const char *rest = find(facts, count, "gpu", word, 0);
    if (!rest || sscanf(rest, "%95s", uuid) != 1)
        return NOT_FOUND;
    *result = handle_of(uuid);
    return SUCCESS;
}

int nvmlDeviceGetUUID(device_t *device, char *uuid, unsigned length)
{
    ENTER(device->uuid);
    snprintf(uuid, length, "%s", device->uuid);
    return SUCCESS;
}

int nvmlDeviceGetName(device_t *device, char *name, unsigned length)
{
    char uuid[96];
    int skip = 0;
    ENTER(device->uuid);
    for (int i = 0; i < count; i++)
        if (sscanf(facts[i], "gpu %*d %95s %*s %*s %n", uuid, &skip) == 1 && !strcmp(uuid, device->uuid))
            snprintf(name, length, "%s", facts[i] + skip);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(device_t *device, memory_t *memory)
{
    char uuid[96];
    unsigned long long used, total;
    pthread_mutex_lock(&lock);
    looks++;
    pthread_mutex_unlock(&lock);
    ENTER(device->uuid);
    for (int i = 0; i < count; i++) {
        if (sscanf(facts[i], "gpu %*d %95s %llu %llu", uuid, &used, &total) != 3) {
            total = 10ULL << 30;
            if (sscanf(facts[i], "mig %*d %*d %95s %*d %*d %llu", uuid, &used) != 2)
                continue;
        }
        if (!strcmp(uuid, device->uuid)) {
            memory->used = used;
            memory->total = total;
            memory->free = total - used;
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

#ifndef WITHOUT_PROCESSES
static int list(char facts[MAX_FACTS][MAX_LINE], int count, const char *kind, device_t *device, unsigned *size,
                process_t *into)
{
    const char *rest;
    unsigned found = 0;
    for (; (rest = find(facts, count, kind, device->uuid, found)); found++) {
        long long used = -1;
        unsigned pid = 0;
        sscanf(rest, "%u %lld", &pid, &used);
        if (found < *size && into)
            into[found] = (process_t){pid, (unsigned long long)used, ~0u, ~0u};
    }
    int fits = found <= *size;
    *size = found;
    return fits ? SUCCESS : INSUFFICIENT_SIZE;
}

int nvmlDeviceGetComputeRunningProcesses_v3(device_t *device, unsigned *size, process_t *into)
{
    ENTER(device->uuid);
    return list(facts, count, "proc", device, size, into);
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(device_t *device, unsigned *size, process_t *into)
{
    ENTER(device->uuid);
    return list(facts, count, "mps", device, size, into);
}
#endif

int nvmlDeviceGetMigMode(device_t *device, unsigned *current, unsigned *pending)
{
    ENTER(device->uuid);
    for (int i = 0; i < count; i++) {
        unsigned index;
        char uuid[96], word[16];
        if (sscanf(facts[i], "gpu %u %95s", &index, uuid) == 2 && !strcmp(uuid, device->uuid)) {
            snprintf(word, sizeof word, "%u", index);
            *current = *pending = find(facts, count, "mig", word, 0) != NULL;
            return SUCCESS;
        }
    }
    return NOT_SUPPORTED;
}

int nvmlDeviceGetMaxMigDeviceCount(device_t *device, unsigned *result)
{
    ENTER(device->uuid);
    *result = 7;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(device_t *device, unsigned number, device_t **result)
{
    ENTER(device->uuid);
    for (int i = 0; i < count; i++) {
        unsigned index;
        char uuid[96], word[32];
        if (sscanf(facts[i], "gpu %u %95s", &index, uuid) != 2 || strcmp(uuid, device->uuid))
            continue;
        snprintf(word, sizeof word, "%u %u", index, number);
        const char *rest = find(facts, count, "mig", word, 0);
        if (rest && sscanf(rest, "%95s", uuid) == 1) {
            *result = handle_of(uuid);
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

static int instance(char facts[MAX_FACTS][MAX_LINE], int count, device_t *device, unsigned *gpu, unsigned *compute)
{
    char uuid[96];
    for (int i = 0; i < count; i++)
        if (sscanf(facts[i], "mig %*d %*d %95s %u %u", uuid, gpu, compute) == 3 && !strcmp(uuid, device->uuid))
            return SUCCESS;
    return NOT_FOUND;
}

int nvmlDeviceGetGpuInstanceId(device_t *device, unsigned *result)
{
    unsigned other;
    ENTER(device->uuid);
    return instance(facts, count, device, result, &other);
}

int nvmlDeviceGetComputeInstanceId(device_t *device, unsigned *result)
{
    unsigned other;
    ENTER(device->uuid);
    return instance(facts, count, device, &other, result);
}

#ifndef WITHOUT_HEALTH
int nvmlDeviceGetTotalEccErrors(device_t *device, unsigned type, unsigned counter, unsigned long long *result)
{
    ENTER(device->uuid);
    const char *rest = find(facts, count, "ecc", device->uuid, 0);
    (void)type, (void)counter;
    return rest && sscanf(rest, "%llu", result) == 1 ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetRemappedRows(device_t *device, unsigned *fixed, unsigned *lost, unsigned *pending, unsigned *failed)
{
    ENTER(device->uuid);
    const char *rest = find(facts, count, "remap", device->uuid, 0);
    *fixed = *lost = 0;
    return rest && sscanf(rest, "%u %u", pending, failed) == 2 ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetFieldValues(device_t *device, int size, field_t *values)
{
    ENTER(device->uuid);
    const char *rest = find(facts, count, "recovery", device->uuid, 0);
    for (int i = 0; i < size; i++) {
        values[i].result = values[i].field == 230 && rest ? SUCCESS : NOT_SUPPORTED;
        values[i].value.u = rest ? (unsigned)atoi(rest) : 0;
    }
    return SUCCESS;
}

int nvmlDeviceGetNvLinkState(device_t *device, unsigned link, unsigned *active)
{
    int links = 0, down = -1;
    ENTER(device->uuid);
    const char *rest = find(facts, count, "links", device->uuid, 0);
    if (!rest || sscanf(rest, "%d %d", &links, &down) != 2 || (int)link >= links)
        return NOT_SUPPORTED;
    *active = (int)link != down;
    return SUCCESS;
}

static int told_xids;

int nvmlEventSetCreate(void **result)
{
    ENTER("*");
    *result = &told_xids;
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(device_t *device, unsigned long long types, void *set)
{
    ENTER(device->uuid);
    (void)types, (void)set;
    return SUCCESS;
}

int nvmlEventSetWait_v2(void *set, event_t *event, unsigned timeout_ms)
{
    (void)set;
    for (unsigned waited = 0; waited < timeout_ms; waited += 10) {
        char uuid[96];
        unsigned long long number;
        ENTER("*");
        const char *rest = find(facts, count, "xid", NULL, told_xids);
        if (rest && sscanf(rest, "%95s %llu", uuid, &number) == 2) {
            told_xids++;
            *event = (event_t){handle_of(uuid), XID_EVENT, number, ~0u, ~0u};
            return SUCCESS;
        }
        usleep(10000);
    }
    return TIMEOUT;
}
#endif
