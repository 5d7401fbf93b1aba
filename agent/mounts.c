#include "mounts.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "clock.h"
#include "files.h"
#include "overlay.h"
#include "port.h"
#include "report.h"
#include "unpack.h"

#define NEW_ROOT "/root"
#define UML_MODULES "/usr/lib/uml/modules"
/* How long the driver may take to find a disk. */
#define DISK_SECONDS 5

static const struct {
	const char *target, *type, *options;
	unsigned long flags;
} API_MOUNTS[] = {
	{ "/dev/pts", "devpts", "gid=5,mode=620,ptmxmode=666", MS_NOSUID | MS_NOEXEC },
	{ "/dev/shm", "tmpfs", "mode=1777", MS_NOSUID | MS_NODEV },
	{ "/run", "tmpfs", "mode=755", MS_NOSUID | MS_NODEV },
};

static const char *const EARLY[][2] = { { "/dev", "devtmpfs" }, { "/proc", "proc" }, { "/sys", "sysfs" } };
#define EARLY_COUNT (sizeof EARLY / sizeof EARLY[0])

void mount_early(void)
{
	for (size_t i = 0; i < EARLY_COUNT; i++) {
		mkdir(EARLY[i][0], 0755);
		mount(EARLY[i][1], EARLY[i][0], EARLY[i][1], i == 0 ? MS_NOSUID : MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
	}
}

bool find_disk(const char *serial, char *device, size_t capacity)
{
	uint64_t deadline = monotonic_microseconds() + DISK_SECONDS * 1000000;
	do {
		DIR *blocks = opendir("/sys/block");
		struct dirent *entry;
		while (blocks && (entry = readdir(blocks))) {
			char path[512], found[64];
			snprintf(path, sizeof path, "/sys/block/%s/serial", entry->d_name);
			if (strncmp(entry->d_name, "vd", 2) != 0 || !read_line(path, found, sizeof found))
				continue;
			if (strcmp(found, serial) == 0) {
				snprintf(device, capacity, "/dev/%s", entry->d_name);
				closedir(blocks);
				return true;
			}
		}
		if (blocks)
			closedir(blocks);
		sleep_milliseconds(1);
	} while (monotonic_microseconds() < deadline);
	return false;
}

static unsigned long mount_flags(uint32_t flags)
{
	return (flags & MOUNT_READ_ONLY ? MS_RDONLY : 0) | (flags & MOUNT_NO_SUID ? MS_NOSUID : 0) |
	       (flags & MOUNT_NO_DEV ? MS_NODEV : 0) | (flags & MOUNT_NO_ATIME ? MS_NOATIME : 0);
}

/* Mounts 9P over a connection; the kernel's client keeps the descriptor. */
static void mount_connected(struct channel *channel, const struct mount_request *request, const char *target)
{
	char options[512], source[64];
	int socket_fd = connect_to_host((unsigned int)strtoul(request->source, NULL, 10));
	if (socket_fd < 0)
		fail(channel, STATUS_FAILED, "cannot reach the host's port %s for %s from the guest: %s", request->source,
		     request->target, strerror(errno));
	snprintf(source, sizeof source, "vsock:%s", request->source);
	snprintf(options, sizeof options, "trans=fd,rfdno=%d,wfdno=%d,%s", socket_fd, socket_fd, request->options);
	if (mount(source, target, request->type, mount_flags(request->flags), options) != 0)
		fail(channel, STATUS_FAILED, "cannot mount %s (%s, options '%s') in the guest: %s", request->target,
		     request->type, options, strerror(errno));
	close(socket_fd);
}

static void mount_source(struct channel *channel, const struct mount_request *request, const char *target)
{
	char device[300];
	const char *source = request->source;
	if (request->flags & MOUNT_BY_SERIAL) {
		if (!find_disk(request->source, device, sizeof device))
			fail(channel, STATUS_FAILED, "the guest has no disk with the serial '%s' for %s", request->source,
			     request->target);
		source = device;
	}
	if (!make_directories(target))
		fail(channel, STATUS_FAILED, "cannot create the mount point %s in the guest: %s", request->target,
		     strerror(errno));
	if (request->flags & MOUNT_BY_SOCKET)
		mount_connected(channel, request, target);
	else if (mount(source, target, request->type, mount_flags(request->flags), request->options) != 0)
		fail(channel, STATUS_FAILED, "cannot mount %s ('%s', %s, options '%s') in the guest: %s", request->target,
		     request->source, request->type, request->options, strerror(errno));
}

/* Mounts the place for the guest's writes: the scratch disk, or memory if the kernel has no ext4. */
static void mount_scratch(struct channel *channel, const struct session *session)
{
	struct mount_request scratch = { .flags = MOUNT_BY_SERIAL | MOUNT_NO_ATIME, .type = "ext4", .options = "" };
	scratch.source = session->scratch;
	if (!session->scratch)
		scratch = (struct mount_request){ .type = "tmpfs", .source = "tmpfs", .options = "nr_inodes=0" };
	scratch.target = OVERLAY_SCRATCH;
	mount_source(channel, &scratch, OVERLAY_SCRATCH);
}

/* Mounts `request` at a hidden place, and an overlay of it at `target`. Writes go to the directory `number` of the
 * scratch disk. */
static void mount_overlaid(struct channel *channel, const struct session *session, const struct mount_request *request,
			   const char *target, size_t number)
{
	struct mount_request lower = *request;
	lower.flags |= MOUNT_READ_ONLY;
	mount_source(channel, &lower, OVERLAY_LOWER);
	mount_scratch(channel, session);
	if (!make_directories(target) || !overlay_mount(target, number, mount_flags(request->flags)))
		fail(channel, STATUS_FAILED, "cannot mount an overlay at %s in the guest: %s", request->target,
		     strerror(errno));
	/* The overlay keeps both mounts alive. */
	umount2(OVERLAY_SCRATCH, MNT_DETACH);
	umount2(OVERLAY_LOWER, MNT_DETACH);
	rmdir(OVERLAY_SCRATCH);
	rmdir(OVERLAY_LOWER);
}

/* Mounts the directory `number` of the scratch disk at `target`. */
static void mount_directory_of_scratch(struct channel *channel, const struct session *session, const char *target, size_t number)
{
	char directory[64];
	snprintf(directory, sizeof directory, OVERLAY_SCRATCH "/%zu", number);
	mount_scratch(channel, session);
	if (mkdir(directory, 0755) != 0 || !make_directories(target) || mount(directory, target, NULL, MS_BIND, NULL) != 0)
		fail(channel, STATUS_FAILED, "cannot mount a directory of the scratch disk at %s in the guest: %s", target,
		     strerror(errno));
	umount2(OVERLAY_SCRATCH, MNT_DETACH);
	rmdir(OVERLAY_SCRATCH);
}

/* Mounts an empty file system at `target`, and unpacks the host's archive there. */
static void mount_unpacked(struct channel *channel, const struct session *session, const struct mount_request *request,
			   const char *target, size_t number)
{
	struct mount_request place = *request;
	place.flags &= ~(uint32_t)MOUNT_READ_ONLY;
	if (request->flags & MOUNT_ON_SCRATCH)
		mount_directory_of_scratch(channel, session, target, number);
	else
		mount_source(channel, &place, target);
	unpack(channel, request->source, target, request->target);
	if (request->flags & MOUNT_READ_ONLY)
		mount(NULL, target, NULL, MS_REMOUNT | MS_BIND | mount_flags(request->flags), NULL);
}

static void mount_one(struct channel *channel, const struct session *session, size_t index, const char *target)
{
	const struct mount_request *request = &session->mounts[index];
	if (request->flags & MOUNT_OVERLAID)
		mount_overlaid(channel, session, request, target, index);
	else if (request->flags & MOUNT_UNPACKED)
		mount_unpacked(channel, session, request, target, index);
	else
		mount_source(channel, request, target);
}

/* Makes NEW_ROOT the root of everything. The initramfs stays mounted below it, unreachable and empty. */
static void switch_root(struct channel *channel)
{
	for (size_t i = 0; i < EARLY_COUNT; i++) {
		char target[64];
		snprintf(target, sizeof target, NEW_ROOT "%s", EARLY[i][0]);
		if (!make_directories(target) || mount(EARLY[i][0], target, NULL, MS_MOVE, NULL) != 0)
			fail(channel, STATUS_FAILED, "cannot mount %s in the guest's root: %s", EARLY[i][0], strerror(errno));
	}
	if (chdir(NEW_ROOT) != 0 || mount(".", "/", NULL, MS_MOVE, NULL) != 0 || chroot(".") != 0 || chdir("/") != 0)
		fail(channel, STATUS_FAILED, "cannot make the mounted root the guest's /: %s", strerror(errno));
}

/* The additions of udev to devtmpfs that programs rely on. */
static void link_devices(void)
{
	symlink("/proc/self/fd", "/dev/fd");
	symlink("/proc/self/fd/0", "/dev/stdin");
	symlink("/proc/self/fd/1", "/dev/stdout");
	symlink("/proc/self/fd/2", "/dev/stderr");
}

/* A kernel of User-Mode Linux has its modules in a place of its own. Shows them where modprobe(8) looks, if the root has them and none there
 * for this kernel. */
static void show_modules(void)
{
	struct utsname kernel;
	char usual[128], own[128];
	if (uname(&kernel) != 0)
		return;
	snprintf(usual, sizeof usual, "/lib/modules/%s", kernel.release);
	snprintf(own, sizeof own, UML_MODULES "/%s", kernel.release);
	if (access(usual, F_OK) != 0 && access(own, F_OK) == 0)
		mount(UML_MODULES, "/lib/modules", NULL, MS_BIND, NULL);
}

void mount_session(struct channel *channel, const struct session *session)
{
	size_t root = session->mount_count;
	for (size_t i = 0; i < session->mount_count; i++)
		if (strcmp(session->mounts[i].target, "/") == 0)
			root = i;
	unlink("/init");
	rmdir("/modules");
	if (root < session->mount_count) {
		mount_one(channel, session, root, NEW_ROOT);
		switch_root(channel);
	}
	for (size_t i = 0; i < sizeof API_MOUNTS / sizeof API_MOUNTS[0]; i++) {
		const char *target = API_MOUNTS[i].target;
		if (!make_directories(target) ||
		    mount(API_MOUNTS[i].type, target, API_MOUNTS[i].type, API_MOUNTS[i].flags, API_MOUNTS[i].options) != 0)
			fail(channel, STATUS_FAILED, "cannot mount %s in the guest: %s", target, strerror(errno));
	}
	link_devices();
	show_modules();
	for (size_t i = 0; i < session->mount_count; i++)
		if (i != root)
			mount_one(channel, session, i, session->mounts[i].target);
}
