/* Fails, tears or kills at a chosen file system call, for files below one directory only.
 *
 * Loaded with LD_PRELOAD. strace can do the same by call, but not by "any file below this directory", and the event loop
 * wakes itself with write(): an error injected there tests libuv, not the broker. The plan lives in a file mapped by the
 * broker and by the harness, so that it can be armed in a running broker:
 *
 *      0 u32 calls    which calls count (bit numbers below)        16 u32 times  how many fail from then on, 0 all
 *      4 i32 action   errno, or one of the negatives below         20 u32 seen   calls counted so far
 *      8 u32 when     the first of them to fail, from 1            24 u32 fired  calls that were failed
 *     12 u32 armed    0 counts nothing                             32 char[480]  the directory
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

enum { C_WRITE, C_PWRITE, C_PWRITEV, C_FDATASYNC, C_FSYNC, C_FTRUNCATE, C_RENAME, C_OPEN, C_UNLINK, C_MKDIR, C_SYNCFS };
enum { KILL_BEFORE = -1, KILL_AFTER = -2, KILL_TORN = -3, SKIP = -4, SHORT_ENOSPC = -5 };

struct plan {
    uint32_t calls; int32_t action; uint32_t when, armed, times, seen, fired, unused; char directory[480];
};

static struct plan *plan;

static struct plan *get(void) {
    if (plan) return plan;
    const char *path = getenv("CRASH_PLAN");
    if (!path) return NULL;
    int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
    int fd = real(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return NULL;
    void *found = mmap(NULL, sizeof(struct plan), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (found != MAP_FAILED) plan = found;
    return plan;
}

static int below_path(const char *path) {
    struct plan *p = get();
    return p && p->armed && strncmp(path, p->directory, strlen(p->directory)) == 0;
}

static int below_fd(int fd) {
    char link[64], path[4096];
    struct plan *p = get();
    if (!p || !p->armed) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0) return 0;
    path[n] = 0;
    return below_path(path);
}

/* 0: go on. Otherwise the action that is due at this call. */
static int due(int call, int below) {
    if (!below || !(plan->calls & (1u << call))) return 0;
    uint32_t number = __atomic_add_fetch(&plan->seen, 1, __ATOMIC_SEQ_CST);
    if (number < plan->when || (plan->times && number >= plan->when + plan->times)) return 0;
    __atomic_add_fetch(&plan->fired, 1, __ATOMIC_SEQ_CST);
    if (plan->action == KILL_BEFORE) { kill(getpid(), SIGKILL); pause(); }
    return plan->action;
}

static void finish(int action) {
    if (action == KILL_AFTER || action == KILL_TORN) { kill(getpid(), SIGKILL); pause(); }
}

#define REAL(type, name, ...) static type (*real)(__VA_ARGS__); if (!real) real = dlsym(RTLD_NEXT, #name)
#define SIMPLE(call, below, invoke)                          \
    int action = due(call, below);                           \
    if (action > 0) { errno = action; return -1; }           \
    if (action == SKIP) return 0;                            \
    int result = invoke;                                     \
    finish(action);                                          \
    return result;

int fdatasync(int fd) { REAL(int, fdatasync, int); SIMPLE(C_FDATASYNC, below_fd(fd), real(fd)) }
int fsync(int fd) { REAL(int, fsync, int); SIMPLE(C_FSYNC, below_fd(fd), real(fd)) }
int syncfs(int fd) { REAL(int, syncfs, int); SIMPLE(C_SYNCFS, below_fd(fd), real(fd)) }
int ftruncate(int fd, off_t n) { REAL(int, ftruncate, int, off_t); SIMPLE(C_FTRUNCATE, below_fd(fd), real(fd, n)) }
int ftruncate64(int fd, off_t n) { return ftruncate(fd, n); }
int rename(const char *a, const char *b) { REAL(int, rename, const char *, const char *); SIMPLE(C_RENAME, below_path(b), real(a, b)) }
int unlink(const char *a) { REAL(int, unlink, const char *); SIMPLE(C_UNLINK, below_path(a), real(a)) }
int mkdir(const char *a, mode_t m) { REAL(int, mkdir, const char *, mode_t); SIMPLE(C_MKDIR, below_path(a), real(a, m)) }

int open(const char *path, int flags, ...) {
    va_list list; va_start(list, flags); mode_t mode = va_arg(list, mode_t); va_end(list);
    REAL(int, open, const char *, int, ...);
    SIMPLE(C_OPEN, below_path(path), real(path, flags, mode))
}
int open64(const char *path, int flags, ...) {
    va_list list; va_start(list, flags); mode_t mode = va_arg(list, mode_t); va_end(list);
    return open(path, flags, mode);
}

ssize_t write(int fd, const void *data, size_t n) {
    REAL(ssize_t, write, int, const void *, size_t);
    int action = due(C_WRITE, below_fd(fd));
    if (action > 0) { errno = action; return -1; }
    ssize_t result = real(fd, data, action == KILL_TORN || action == SHORT_ENOSPC ? (n + 1) / 2 : n);
    finish(action);
    return result;
}

ssize_t pwrite64(int fd, const void *data, size_t n, off_t at) {
    REAL(ssize_t, pwrite64, int, const void *, size_t, off_t);
    int action = due(C_PWRITE, below_fd(fd));
    if (action > 0) { errno = action; return -1; }
    ssize_t result = real(fd, data, action == KILL_TORN || action == SHORT_ENOSPC ? (n + 1) / 2 : n, at);
    finish(action);
    return result;
}
ssize_t pwrite(int fd, const void *data, size_t n, off_t at) { return pwrite64(fd, data, n, at); }

/* Half of the bytes of a vector, by pwrite: the file is then as a torn or short write leaves it. */
static ssize_t half(int fd, const struct iovec *v, int count, off_t at) {
    size_t total = 0, done = 0;
    for (int i = 0; i < count; i++) total += v[i].iov_len;
    total = (total + 1) / 2;
    for (int i = 0; i < count && done < total; i++) {
        size_t n = v[i].iov_len < total - done ? v[i].iov_len : total - done;
        REAL(ssize_t, pwrite64, int, const void *, size_t, off_t);
        ssize_t result = real(fd, v[i].iov_base, n, at + done);
        if (result < 0) return result;
        done += result;
    }
    return done;
}

ssize_t pwritev(int fd, const struct iovec *v, int count, off_t at) {
    REAL(ssize_t, pwritev, int, const struct iovec *, int, off_t);
    int action = due(C_PWRITEV, below_fd(fd));
    if (action > 0) { errno = action; return -1; }
    /* A short write is followed by the error, as a real full disk does it: the next call fails. */
    ssize_t result = action == KILL_TORN || action == SHORT_ENOSPC ? half(fd, v, count, at) : real(fd, v, count, at);
    if (action == SHORT_ENOSPC) plan->action = ENOSPC;
    finish(action);
    return result;
}
ssize_t pwritev64(int fd, const struct iovec *v, int count, off_t at) { return pwritev(fd, v, count, at); }

/* What os.pwritev of CPython really calls; without flags it is pwritev. */
ssize_t pwritev2(int fd, const struct iovec *v, int count, off_t at, int flags) { return pwritev(fd, v, count, at); }
ssize_t pwritev64v2(int fd, const struct iovec *v, int count, off_t at, int flags) { return pwritev(fd, v, count, at); }
