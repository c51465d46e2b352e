/* A wall clock that can be set for one process: $HPCTL_TEST_CLOCK names a file with an offset in
 * seconds, which is read again every 100 ms. The monotonic clocks stay as they are. Only Python goes
 * by it: Slurm's commands take "now" for slurmctld, whose clock they share.
 *
 * libfaketime 0.9.10 (Debian 12) cannot serve: it fails each clock_nanosleep(2) with an absolute
 * time (EINVAL), which is how Python sleeps since 3.11.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long read_offset(void)
{
	static long offset, read_at_ms;
	struct timespec now;
	syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
	long now_ms = now.tv_sec * 1000 + now.tv_nsec / 1000000;
	if (read_at_ms && now_ms - read_at_ms < 100)
		return offset;
	read_at_ms = now_ms;
	if (strncmp(program_invocation_short_name, "python", 6))
		return offset;
	const char *path = getenv("HPCTL_TEST_CLOCK");
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	if (fd < 0)  /* no descriptor is left: it is what it was */
		return offset;
	char text[32];
	ssize_t count = read(fd, text, sizeof text - 1);
	close(fd);
	if (count > 0) {
		text[count] = 0;
		offset = atol(text);
	}
	return offset;
}

int clock_gettime(clockid_t id, struct timespec *at)
{
	int failed = syscall(SYS_clock_gettime, id, at);
	if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
		at->tv_sec += read_offset();
	return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone)
{
	int failed = syscall(SYS_gettimeofday, at, zone);
	if (!failed)
		at->tv_sec += read_offset();
	return failed;
}

time_t time(time_t *at)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	if (at)
		*at = now.tv_sec;
	return now.tv_sec;
}
