/* Compares four ways to make a small write durable from a loop, in one run: processor time, time, changes of threads (ADR 30).

       cc -O2 -o sync_ways bench/sync_ways.c -lpthread && ./sync_ways 300 FILE      (on the disk in question; FILE is written)

   Each way writes 512 B into a file of 64 MiB that was filled before, 300 times, in turn with the others, seven times. The ways
   with a thread or a ring wait for an eventfd in epoll, as a loop does. Linux only; medians. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { WAYS = 4, TURNS = 7, WARMUP = 20, WRITES_MAX = 10000, FILE_MIB = 64, ENTRIES = 8 };
static const char *const NAMES[WAYS] = {"a: on the loop thread, pwrite and fdatasync", "b: a thread, eventfd",
                                        "c: io_uring, linked, eventfd", "d: on the loop thread, RWF_DSYNC"};
static int file, event, poll_set, ring;
static char bytes[512];
static off_t place = 4096;

static void need(int ok, const char *what) {
    if (!ok) {
        perror(what);
        exit(1);
    }
}

static double clock_us(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static long switches(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_nvcsw + used.ru_nivcsw;
}

static void wait_event(void) {
    struct epoll_event found;
    uint64_t count;
    epoll_wait(poll_set, &found, 1, -1);
    need(read(event, &count, 8) == 8, "eventfd");
}

static void write_and_sync(void) {
    need(pwrite(file, bytes, sizeof bytes, place) == sizeof bytes, "pwrite");
    need(fdatasync(file) == 0, "fdatasync");
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static int wanted;

static void *thread(void *unused) {
    for (;;) {
        pthread_mutex_lock(&mutex);
        while (!wanted) pthread_cond_wait(&wake, &mutex);
        wanted = 0;
        pthread_mutex_unlock(&mutex);
        write_and_sync();
        uint64_t one = 1;
        need(write(event, &one, 8) == 8, "eventfd");
    }
    return unused;
}

static void by_thread(void) {
    pthread_mutex_lock(&mutex);
    wanted = 1;
    pthread_cond_signal(&wake);
    pthread_mutex_unlock(&mutex);
    wait_event();
}

static struct io_uring_params params;
static char *sq, *cq;
static struct io_uring_sqe *entries;

static void open_ring(void) {
    int both = PROT_READ | PROT_WRITE, kind = MAP_SHARED | MAP_POPULATE;
    params.flags = IORING_SETUP_SINGLE_ISSUER;
    need((ring = syscall(__NR_io_uring_setup, ENTRIES, &params)) >= 0, "io_uring_setup");
    sq = mmap(0, params.sq_off.array + params.sq_entries * 4, both, kind, ring, IORING_OFF_SQ_RING);
    cq = mmap(0, params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe), both, kind, ring, IORING_OFF_CQ_RING);
    entries = mmap(0, params.sq_entries * sizeof *entries, both, kind, ring, IORING_OFF_SQES);
    need(syscall(__NR_io_uring_register, ring, IORING_REGISTER_EVENTFD, &event, 1) == 0, "io_uring_register");
}

static struct io_uring_sqe *entry(unsigned number, int operation) {
    unsigned at = number & *(unsigned *)(sq + params.sq_off.ring_mask);
    struct io_uring_sqe *e = memset(&entries[at], 0, sizeof *e);
    e->opcode = operation;
    e->fd = file;
    ((unsigned *)(sq + params.sq_off.array))[at] = at;
    return e;
}

static void by_ring(void) {
    _Atomic unsigned *tail = (_Atomic unsigned *)(sq + params.sq_off.tail);
    unsigned first = atomic_load(tail);
    struct io_uring_sqe *e = entry(first, IORING_OP_WRITE);
    e->addr = (uintptr_t)bytes;
    e->len = sizeof bytes;
    e->off = place;
    e->flags = IOSQE_IO_LINK | IOSQE_CQE_SKIP_SUCCESS;
    entry(first + 1, IORING_OP_FSYNC)->fsync_flags = IORING_FSYNC_DATASYNC;
    atomic_store(tail, first + 2);
    need(syscall(__NR_io_uring_enter, ring, 2, 0, 0, 0, 0) == 2, "io_uring_enter");
    wait_event();
    _Atomic unsigned *head = (_Atomic unsigned *)(cq + params.cq_off.head);
    unsigned mask = *(unsigned *)(cq + params.cq_off.ring_mask);
    while (atomic_load(head) != atomic_load((_Atomic unsigned *)(cq + params.cq_off.tail))) {
        int result = ((struct io_uring_cqe *)(cq + params.cq_off.cqes))[atomic_load(head) & mask].res;
        errno = -result;
        need(result >= 0, "a completion");
        atomic_store(head, atomic_load(head) + 1);
    }
}

static void by_flag(void) {
    struct iovec vector = {bytes, sizeof bytes};
    need(pwritev2(file, &vector, 1, place, RWF_DSYNC) == sizeof bytes, "pwritev2");
}

static void (*const WAY[WAYS])(void) = {write_and_sync, by_thread, by_ring, by_flag};

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *figures, int count) {
    qsort(figures, count, sizeof *figures, ascending);
    return figures[count / 2];
}

int main(int count, char **words) {
    int writes = count == 3 ? atoi(words[1]) : 0;
    static double took[WRITES_MAX], processor[WAYS][TURNS], middle[WAYS][TURNS], changes[WAYS][TURNS];
    if (writes < 1 || writes > WRITES_MAX) return fprintf(stderr, "usage: sync_ways WRITES(1..10000) FILE\n"), 2;
    need((file = open(words[2], O_RDWR | O_CREAT | O_TRUNC, 0600)) >= 0, words[2]);
    char *zeros = calloc(1, 1 << 20);
    for (int i = 0; i < FILE_MIB; i++) need(write(file, zeros, 1 << 20) == 1 << 20, "write");
    need(fsync(file) == 0, "fsync");
    need((event = eventfd(0, EFD_CLOEXEC)) >= 0, "eventfd");
    need((poll_set = epoll_create1(0)) >= 0, "epoll");
    struct epoll_event readable = {.events = EPOLLIN};
    epoll_ctl(poll_set, EPOLL_CTL_ADD, event, &readable);
    open_ring();
    pthread_t made;
    need(pthread_create(&made, 0, thread, 0) == 0, "pthread_create");
    for (int turn = 0; turn < TURNS; turn++)
        for (int way = 0; way < WAYS; way++) {
            for (int i = 0; i < WARMUP; i++) WAY[way]();
            double used = clock_us(CLOCK_PROCESS_CPUTIME_ID);
            long before = switches();
            for (int i = 0; i < writes; i++) {
                double began = clock_us(CLOCK_MONOTONIC);
                WAY[way]();
                took[i] = clock_us(CLOCK_MONOTONIC) - began;
                place += 300;
                if (place > (FILE_MIB - 1) << 20) place = 4096;
            }
            processor[way][turn] = (clock_us(CLOCK_PROCESS_CPUTIME_ID) - used) / writes;
            changes[way][turn] = (double)(switches() - before) / writes;
            middle[way][turn] = median(took, writes);
        }
    for (int way = 0; way < WAYS; way++)
        printf("%-46s %6.1f us of processor, %7.1f us, %4.1f changes of threads\n", NAMES[way],
               median(processor[way], TURNS), median(middle[way], TURNS), median(changes[way], TURNS));
    return 0;
}
