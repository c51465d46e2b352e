/* A preloaded library that makes /proc/PID/cgroup read "0::/", as in a container on cgroup v2.
 *
 * A machine that boots with cgroup v1 lists its v1 hierarchies in /proc/PID/cgroup, and no mount
 * namespace hides them. Only a read-only open of /proc/self/cgroup or /proc/PID/cgroup is answered
 * here; every other call goes to the C library.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

static const char ANSWER[] = "0::/\n";

static int is_proc_cgroup(const char *path) {
    if (path == NULL || strncmp(path, "/proc/", 6) != 0) return 0;
    const char *process = path + 6;
    size_t length = strcspn(process, "/");
    if (strcmp(process + length, "/cgroup") != 0) return 0;
    if (length == 4 && strncmp(process, "self", 4) == 0) return 1;
    for (size_t at = 0; at < length; at++)
        if (!isdigit((unsigned char)process[at])) return 0;
    return length > 0;
}

static int open_answer(void) {
    int answer = memfd_create("cgroup", MFD_CLOEXEC);
    ssize_t length = sizeof ANSWER - 1;
    if (answer < 0) return -1;
    if (write(answer, ANSWER, length) != length || lseek(answer, 0, SEEK_SET) != 0) {
        close(answer);
        return -1;
    }
    return answer;
}

static int is_read_only(int flags) { return (flags & O_ACCMODE) == O_RDONLY; }

static mode_t mode_of(int flags, va_list rest) {
    return flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define REPLACE_OPEN(name)                                                                   \
    int name(const char *path, int flags, ...) {                                             \
        if (is_proc_cgroup(path) && is_read_only(flags)) return open_answer();               \
        va_list rest;                                                                        \
        va_start(rest, flags);                                                               \
        mode_t mode = mode_of(flags, rest);                                                  \
        va_end(rest);                                                                        \
        return REAL(name)(path, flags, mode);                                                \
    }

#define REPLACE_OPENAT(name)                                                                 \
    int name(int directory, const char *path, int flags, ...) {                              \
        if (is_proc_cgroup(path) && is_read_only(flags)) return open_answer();               \
        va_list rest;                                                                        \
        va_start(rest, flags);                                                               \
        mode_t mode = mode_of(flags, rest);                                                  \
        va_end(rest);                                                                        \
        return REAL(name)(directory, path, flags, mode);                                     \
    }

/* What programs built with _FORTIFY_SOURCE call. */
#define REPLACE_OPEN_2(name)                                                                 \
    int name(const char *path, int flags);                                                   \
    int name(const char *path, int flags) {                                                  \
        if (is_proc_cgroup(path) && is_read_only(flags)) return open_answer();               \
        return REAL(name)(path, flags);                                                      \
    }

#define REPLACE_FOPEN(name)                                                                  \
    FILE *name(const char *path, const char *mode) {                                         \
        if (is_proc_cgroup(path) && mode[0] == 'r') {                                        \
            int answer = open_answer();                                                      \
            return answer < 0 ? NULL : fdopen(answer, mode);                                 \
        }                                                                                    \
        return REAL(name)(path, mode);                                                       \
    }

REPLACE_OPEN(open)
REPLACE_OPEN(open64)
REPLACE_OPENAT(openat)
REPLACE_OPENAT(openat64)
REPLACE_OPEN_2(__open_2)
REPLACE_OPEN_2(__open64_2)
REPLACE_FOPEN(fopen)
REPLACE_FOPEN(fopen64)
