/* Loaded into the daemons of a house (LD_PRELOAD): another wall clock for all of them, and for kvtier a disk that
 * fails or is slow. What is wrong now stands in the file that $VITRIOL_TEST_FAULT names, three native 64-bit
 * integers that the test changes while the daemons run. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct fault {
    volatile int64_t clock_seconds;
    volatile int64_t write_errno;
    volatile int64_t write_bytes_per_second; /* 0: as fast as the disk is */
};

static const struct fault none;
static const struct fault *of_clock = &none;
static const struct fault *of_disk = &none;

__attribute__((constructor)) static void find_fault(void) {
    const char *path = getenv("VITRIOL_TEST_FAULT");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *found = mmap(NULL, sizeof(struct fault), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (found == MAP_FAILED)
        return;
    of_clock = found;
    if (strcmp(program_invocation_short_name, "vitriol-kvtier") == 0)
        of_disk = found;
}

#define NEXT(name) \
    static __typeof__(&name) next; \
    if (!next) \
        next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static int fails(void) {
    int64_t cause = of_disk->write_errno;
    if (cause)
        errno = (int)cause;
    return cause != 0;
}

/* As long as the bytes take, or until the disk is quick again. */
static void wait_for_disk(size_t bytes) {
    const struct timespec slice = {0, 10000000};
    int64_t rate;
    for (double left = (double)bytes; left > 0 && (rate = of_disk->write_bytes_per_second) > 0;
         left -= (double)rate / 100)
        nanosleep(&slice, NULL);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    NEXT(clock_gettime);
    int status = next(clock, now);
    if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += of_clock->clock_seconds;
    return status;
}

ssize_t pwrite64(int file, const void *bytes, size_t length, off64_t offset) {
    NEXT(pwrite64);
    if (fails())
        return -1;
    wait_for_disk(length);
    return next(file, bytes, length, offset);
}

int fdatasync(int file) {
    NEXT(fdatasync);
    return fails() ? -1 : next(file);
}

int fsync(int file) {
    NEXT(fsync);
    return fails() ? -1 : next(file);
}
