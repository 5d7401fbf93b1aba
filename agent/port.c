#include "port.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "files.h"

#define PORT_DEADLINE_MICROSECONDS 30000000

static int port_find(const char *wanted, int mode)
{
	DIR *ports = opendir("/sys/class/virtio-ports");
	struct dirent *entry;
	int fd = -1;
	while (ports && fd < 0 && (entry = readdir(ports))) {
		char path[512], name[64];
		snprintf(path, sizeof path, "/sys/class/virtio-ports/%s/name", entry->d_name);
		if (entry->d_name[0] == '.' || !read_line(path, name, sizeof name) || strcmp(name, wanted) != 0)
			continue;
		snprintf(path, sizeof path, "/dev/%s", entry->d_name);
		fd = open(path, mode | O_CLOEXEC);
	}
	if (ports)
		closedir(ports);
	return fd;
}

int port_open(const char *wanted, int mode)
{
	uint64_t deadline = monotonic_microseconds() + PORT_DEADLINE_MICROSECONDS;
	int fd;
	while ((fd = port_find(wanted, mode)) < 0 && monotonic_microseconds() < deadline)
		sleep_milliseconds(1);
	return fd;
}
