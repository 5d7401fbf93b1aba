#include "port.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "files.h"
#include "protocol.h"

int port_open(void)
{
	DIR *ports = opendir("/sys/class/virtio-ports");
	struct dirent *entry;
	int fd = -1;
	while (ports && fd < 0 && (entry = readdir(ports))) {
		char path[512], name[64];
		snprintf(path, sizeof path, "/sys/class/virtio-ports/%s/name", entry->d_name);
		if (entry->d_name[0] == '.' || !read_line(path, name, sizeof name) || strcmp(name, PORT_NAME) != 0)
			continue;
		snprintf(path, sizeof path, "/dev/%s", entry->d_name);
		fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
	}
	if (ports)
		closedir(ports);
	return fd;
}
