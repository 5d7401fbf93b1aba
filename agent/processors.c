#include "processors.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "files.h"
#include "report.h"

#define PROCESSORS "/sys/devices/system/cpu"
/* Set by the kernel's command line if the host left processors off. */
#define ASKED "INARCH_START_PROCESSORS"

/* Starts one processor; does nothing for one that runs (Documentation/ABI/testing/sysfs-devices-system-cpu).
 * Returns why it does not start, or NULL. */
static const char *start(const char *directory)
{
	char online[80];
	snprintf(online, sizeof online, "%s/online", directory);
	if (write_file(online, "1"))
		return NULL;
	const char *why = strerror(errno);
	return access(online, F_OK) == 0 ? why : "its kernel is built without CONFIG_HOTPLUG_CPU";
}

/* Starts all processors in order, until one does not start: reports why, and how many the guest has. The kernel
 * numbers them without gaps, and number 0 runs this code. */
static const char *start_all(int *count)
{
	for (*count = 1;; ++*count) {
		char directory[64];
		snprintf(directory, sizeof directory, PROCESSORS "/cpu%d", *count);
		if (access(directory, F_OK) != 0)
			return NULL;
		const char *why = start(directory);
		if (why)
			return why;
	}
}

void start_processors_beside(void)
{
	int count;
	if (getenv(ASKED) && fork() == 0) {
		start_all(&count);
		_exit(0);
	}
}

void start_processors(struct channel *channel)
{
	int count;
	const char *why = getenv(ASKED) ? start_all(&count) : NULL;
	if (why)
		warn(channel, "the guest has %d of its processors: number %d cannot be started: %s", count, count + 1, why);
}

struct rest processors_rest(void)
{
	char line[256];
	unsigned long long idle, waiting;
	long ticks = sysconf(_SC_CLK_TCK);
	/* The sum of all processors: user, nice, system, idle, iowait, ... (proc_stat(5)). */
	if (ticks <= 0 || !read_line("/proc/stat", line, sizeof line) ||
	    sscanf(line, "cpu %*u %*u %*u %llu %llu", &idle, &waiting) != 2)
		return (struct rest){ 0 };
	uint64_t tick = 1000000 / (uint64_t)ticks;
	return (struct rest){ .idle = idle * tick, .waiting = waiting * tick };
}
