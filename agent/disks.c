#include "disks.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"
#include "mounts.h"
#include "report.h"

#define BY_ID "/dev/disk/by-id"

/* Names `device`, a name in /dev, in BY_ID, and gives it to the session's user. */
static void give(const struct session *session, const char *device, const char *link)
{
	char path[600], target[600], place[600];
	snprintf(path, sizeof path, "/dev/%s", device);
	snprintf(target, sizeof target, "../../%s", device);
	snprintf(place, sizeof place, BY_ID "/%s", link);
	symlink(target, place);
	if (session->has_user_ids || session->user_name)
		chown(path, session->uid, session->gid);
}

/* The kernel knows the partitions before it shows the disk. */
static void give_partitions(const struct session *session, const char *disk, const char *serial)
{
	char directory[400];
	snprintf(directory, sizeof directory, "/sys/block/%s", disk);
	DIR *parts = opendir(directory);
	struct dirent *entry;
	while (parts && (entry = readdir(parts))) {
		char path[800], number[16], link[128];
		snprintf(path, sizeof path, "%s/%s/partition", directory, entry->d_name);
		if (strncmp(entry->d_name, disk, strlen(disk)) != 0 || !read_line(path, number, sizeof number))
			continue;
		snprintf(link, sizeof link, "virtio-%s-part%s", serial, number);
		give(session, entry->d_name, link);
	}
	if (parts)
		closedir(parts);
}

void give_disks(struct channel *channel, struct session *session)
{
	if (session->disks.count > 0 && !make_directories(BY_ID))
		fail(channel, STATUS_FAILED, "cannot make %s in the guest: %s", BY_ID, strerror(errno));
	for (size_t i = 0; i < session->disks.count; i++) {
		char device[300], name[48], link[64];
		const char *serial = session->disks.items[i];
		if (!find_disk(serial, device, sizeof device))
			fail(channel, STATUS_FAILED, "the guest has no disk with the serial '%s'", serial);
		snprintf(link, sizeof link, "virtio-%s", serial);
		give(session, device + strlen("/dev/"), link);
		give_partitions(session, device + strlen("/dev/"), serial);
		snprintf(name, sizeof name, "INARCH_DISK_%zu", i + 1);
		environment_default(&session->environment, name, device);
	}
}
