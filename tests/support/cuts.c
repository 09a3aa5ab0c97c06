/* Preloaded into a rank: ends it in the middle of a save, inside the system call that would have gone on.
 *
 * CUTS in the environment is a list separated by spaces of RANK,OFFSET,WHOM,HOLD,PATTERN. The first write to a file
 * whose path matches PATTERN (fnmatch) that would pass OFFSET bytes is carried out up to there. With OFFSET -1 it is
 * the rename to such a path that is not carried out. Then SIGKILL goes to the process itself (WHOM self), or to its
 * parent (WHOM parent), and the process waits for what becomes of it. HOLD 1: only once CUTS_FOLDER/<n>.go exists.
 * Each cut, the n-th of the list, happens once in a job, after those before it: it leaves CUTS_FOLDER/<n>.cut.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int there(int number, const char *suffix, int flags)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%d.%s", getenv("CUTS_FOLDER"), number, suffix);
    int fd = open(path, flags | O_CLOEXEC, 0644);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

static void die(int number, int to_parent, int hold)
{
    struct timespec moment = {0, 5000000};
    while (hold && !there(number, "go", O_RDONLY))
        nanosleep(&moment, NULL);
    kill(to_parent ? getppid() : getpid(), SIGKILL);
    for (;;)
        pause();
}

/* The number of the next cut if it is due for this path between these offsets, else -1. `at` is where. */
static int due(const char *path, long long from, long long to, long long *at, int *to_parent, int *hold)
{
    const char *next = getenv("CUTS"), *rank = getenv("RANK");
    for (int number = 0, length = 0; next != NULL && *next; next += length, number++) {
        int who;
        char whom[8], pattern[PATH_MAX];
        if (sscanf(next, "%d,%lld,%7[a-z],%d,%4095[^ ]%n", &who, at, whom, hold, pattern, &length) < 5)
            abort();
        length += next[length] == ' ';
        if (there(number, "cut", O_RDONLY))
            continue;
        *to_parent = strcmp(whom, "parent") == 0;
        int here = rank != NULL && who == atoi(rank) && from <= *at && *at < to && fnmatch(pattern, path, 0) == 0;
        return here && there(number, "cut", O_WRONLY | O_CREAT | O_EXCL) ? number : -1;
    }
    return -1;
}

/* How many of `count` bytes may be written to `fd`; the caller dies by calling `end` once it has written them. */
static size_t allowed(int fd, long long from, size_t count, int *number, int *to_parent, int *hold)
{
    char link[64], path[PATH_MAX];
    long long at;
    *number = -1;
    if (from < 0 || getenv("CUTS") == NULL)
        return count;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0)
        return count;
    path[length] = 0;
    *number = due(path, from, from + (long long)count, &at, to_parent, hold);
    return *number < 0 ? count : (size_t)(at - from);
}

#define CUT(from, count, carry_out)                                                                                   \
    int saved = errno, number, to_parent = 0, hold = 0;                                                               \
    size_t room = allowed(fd, from, count, &number, &to_parent, &hold);                                               \
    errno = saved;                                                                                                    \
    if (number >= 0) {                                                                                                \
        if (room > 0 && (carry_out) < 0)                                                                              \
            abort();                                                                                                  \
        die(number, to_parent, hold);                                                                                 \
    }

ssize_t write(int fd, const void *data, size_t count)
{
    CUT(lseek(fd, 0, SEEK_CUR), count, NEXT(write)(fd, data, room));
    return NEXT(write)(fd, data, count);
}

ssize_t writev(int fd, const struct iovec *parts, int many)
{
    size_t count = 0;
    for (int i = 0; i < many; i++)
        count += parts[i].iov_len;
    CUT(lseek(fd, 0, SEEK_CUR), count, ({
        for (int i = 0; i < many && room > 0; i++) {
            size_t some = parts[i].iov_len < room ? parts[i].iov_len : room;
            if (NEXT(write)(fd, parts[i].iov_base, some) != (ssize_t)some)
                abort();
            room -= some;
        }
        0;
    }));
    return NEXT(writev)(fd, parts, many);
}

/* What programs with 64-bit offsets call, so all of them. */
ssize_t sendfile64(int fd, int source, off64_t *offset, size_t count)
{
    CUT(lseek(fd, 0, SEEK_CUR), count, NEXT(sendfile64)(fd, source, offset, room));
    return NEXT(sendfile64)(fd, source, offset, count);
}

ssize_t copy_file_range(int source, off64_t *from, int fd, off64_t *to, size_t count, unsigned flags)
{
    CUT(to != NULL ? *to : lseek(fd, 0, SEEK_CUR), count, NEXT(copy_file_range)(source, from, fd, to, room, flags));
    return NEXT(copy_file_range)(source, from, fd, to, count, flags);
}

static void before_rename(const char *target)
{
    long long at;
    int saved = errno, to_parent, hold, number = due(target, -1, 0, &at, &to_parent, &hold);
    errno = saved;
    if (number >= 0)
        die(number, to_parent, hold);
}

int rename(const char *source, const char *target)
{
    before_rename(target);
    return NEXT(rename)(source, target);
}

int renameat(int from, const char *source, int to, const char *target)
{
    before_rename(target);
    return NEXT(renameat)(from, source, to, target);
}
