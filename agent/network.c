#include "network.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <net/route.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"
#include "report.h"

#define RESOLVER_FILE "/run/inarch-resolv.conf"

static void set_address(struct sockaddr *to, const uint8_t *bytes)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	if (bytes)
		memcpy(&address.sin_addr, bytes, 4);
	memcpy(to, &address, sizeof address);
}

static bool bring_up(int socket, const char *name)
{
	struct ifreq request = { 0 };
	snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
	if (ioctl(socket, SIOCGIFFLAGS, &request) != 0)
		return false;
	request.ifr_flags |= IFF_UP | IFF_RUNNING;
	return ioctl(socket, SIOCSIFFLAGS, &request) == 0;
}

/* Skips tunnels and the like, which some kernels create by themselves. */
static bool is_ethernet(const char *name)
{
	char path[sizeof "/sys/class/net//type" + IFNAMSIZ], type[16];
	snprintf(path, sizeof path, "/sys/class/net/%s/type", name);
	return read_line(path, type, sizeof type) && atoi(type) == ARPHRD_ETHER;
}

static bool find_interface(char *name, size_t capacity)
{
	DIR *interfaces = opendir("/sys/class/net");
	struct dirent *entry;
	bool found = false;
	while (interfaces && !found && (entry = readdir(interfaces))) {
		found = entry->d_name[0] != '.' && strlen(entry->d_name) < capacity && is_ethernet(entry->d_name);
		if (found)
			strcpy(name, entry->d_name);
	}
	if (interfaces)
		closedir(interfaces);
	return found;
}

/* Whether an address is set (not 0.0.0.0). */
static bool is_given(const uint8_t *address)
{
	return address[0] || address[1] || address[2] || address[3];
}

static bool configure(int socket, const char *name, const uint8_t *network)
{
	struct ifreq request = { 0 };
	snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
	set_address(&request.ifr_addr, network);
	if (ioctl(socket, SIOCSIFADDR, &request) != 0)
		return false;
	set_address(&request.ifr_netmask, network + 4);
	if (ioctl(socket, SIOCSIFNETMASK, &request) != 0 || !bring_up(socket, name))
		return false;
	if (!is_given(network + 8))
		return true;
	struct rtentry route = { .rt_flags = RTF_UP | RTF_GATEWAY };
	set_address(&route.rt_gateway, network + 8);
	set_address(&route.rt_dst, NULL);
	set_address(&route.rt_genmask, NULL);
	return ioctl(socket, SIOCADDRT, &route) == 0;
}

/* The target of /etc/resolv.conf, through symbolic links that may dangle. */
static bool resolver_path(char *path, size_t capacity)
{
	char target[PATH_MAX], joined[PATH_MAX];
	snprintf(path, capacity, "/etc/resolv.conf");
	for (int links = 0; links < 16; links++) {
		ssize_t length = readlink(path, target, sizeof target - 1);
		if (length < 0)
			return true;
		target[length] = 0;
		char *slash = strrchr(path, '/');
		int parent = target[0] == '/' || !slash ? 0 : (int)(slash - path + 1);
		int joined_length = snprintf(joined, sizeof joined, "%.*s%s", parent, path, target);
		if (joined_length < 0 || (size_t)joined_length >= sizeof joined || (size_t)joined_length >= capacity)
			return false;
		strcpy(path, joined);
	}
	return false;
}

/* Sets the name server without changing the root's own file: by a bind mount over it, or by the file that a
 * dangling link points to. */
static bool set_resolver(const uint8_t *server)
{
	char text[64], path[PATH_MAX], parent[PATH_MAX];
	snprintf(text, sizeof text, "nameserver %u.%u.%u.%u\n", server[0], server[1], server[2], server[3]);
	if (!write_file(RESOLVER_FILE, text) || !resolver_path(path, sizeof path))
		return false;
	if (access(path, F_OK) != 0) {
		strcpy(parent, path);
		char *slash = strrchr(parent, '/');
		if (slash && slash != parent) {
			*slash = 0;
			make_directories(parent);
		}
		return write_file(path, text);
	}
	return mount(RESOLVER_FILE, path, NULL, MS_BIND, NULL) == 0;
}

void network_up(struct channel *channel, const struct session *session)
{
	int control = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (control < 0) {
		warn(channel, "the guest's kernel has no IPv4: %s", strerror(errno));
		return;
	}
	if (!bring_up(control, "lo"))
		warn(channel, "cannot bring up the guest's interface lo: %s", strerror(errno));
	char name[IFNAMSIZ];
	if (session->has_network) {
		if (!find_interface(name, sizeof name))
			warn(channel, "the guest has no network interface");
		else if (!configure(control, name, session->network))
			warn(channel, "cannot configure the guest's interface %s: %s", name, strerror(errno));
	}
	close(control);
}

void network_name_server(struct channel *channel, const struct session *session)
{
	const uint8_t *server = session->network + 12;
	if (session->has_network && is_given(server) && !set_resolver(server))
		warn(channel, "cannot name the name server in the guest's /etc/resolv.conf: %s", strerror(errno));
}
