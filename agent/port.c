#include "port.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <linux/vm_sockets.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "clock.h"
#include "files.h"
#include "protocol.h"

#define PORT_DEADLINE_MICROSECONDS 30000000
/* How long the host's server may take to answer; the kernel's own two seconds are too short on a busy machine. */
#define CONNECT_SECONDS 120
/* Set by the kernel's command line if the machine has a virtio socket device in place of virtio-serial ports. */
#define BY_SOCKETS "INARCH_SOCKETS"

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

int connect_to_host(unsigned int port)
{
	struct sockaddr_vm address = { .svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_HOST, .svm_port = port };
	struct timeval patience = { .tv_sec = CONNECT_SECONDS };
	int socket_fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (socket_fd >= 0)
		setsockopt(socket_fd, AF_VSOCK, SO_VM_SOCKETS_CONNECT_TIMEOUT, &patience, sizeof patience);
	if (socket_fd >= 0 && connect(socket_fd, (struct sockaddr *)&address, sizeof address) != 0) {
		int error = errno;
		close(socket_fd);
		errno = error;
		return -1;
	}
	return socket_fd;
}

/* The host's port that stands for the port `name`. */
static unsigned int socket_port(const char *name)
{
	if (strcmp(name, PORT_NAME) == 0)
		return SOCKET_OF_AGENT;
	const char *number = strrchr(name, '-');
	return SOCKET_OF_FIRST_TREE + (number ? (unsigned int)strtoul(number + 1, NULL, 10) : 0);
}

int port_open(const char *wanted, int mode)
{
	if (getenv(BY_SOCKETS))
		return connect_to_host(socket_port(wanted));
	uint64_t deadline = monotonic_microseconds() + PORT_DEADLINE_MICROSECONDS;
	int fd;
	while ((fd = port_find(wanted, mode)) < 0 && monotonic_microseconds() < deadline)
		sleep_milliseconds(1);
	return fd;
}

void port_finish(int fd)
{
	/* What was written may not have left the kernel yet, which is about to end. The host answers the end of the connection when
	 * it has everything before that. */
	struct linger patience = { .l_onoff = 1, .l_linger = 10 };
	if (setsockopt(fd, SOL_SOCKET, SO_LINGER, &patience, sizeof patience) == 0)
		close(fd);
}
