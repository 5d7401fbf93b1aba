#include "unpack.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "acl.h"
#include "port.h"
#include "report.h"
#include "tar.h"

/* Attributes that a directory gets when its content is complete: new files would change its time, and inherit its
 * default list. */
struct late {
	struct late *next;
	struct timespec mtime;
	char *default_acl; /* or NULL */
	char path[];
};

struct unpacking {
	struct channel *channel;
	const char *name;
	struct tar tar;
	struct late *late;
	size_t left_out;
	char first_left_out[300];
};

static _Noreturn void give_up(struct unpacking *unpacking, const char *path)
{
	fail(unpacking->channel, STATUS_FAILED, "cannot unpack %s of %s in the guest: %s%s", path, unpacking->name, strerror(errno),
	     errno == ENOSPC ? " (give it more memory: --mem)" : "");
}

static void leave_out(struct unpacking *unpacking, const char *attribute, const char *path)
{
	if (unpacking->left_out++ == 0)
		snprintf(unpacking->first_left_out, sizeof unpacking->first_left_out, "%.100s of %.100s: %s", attribute, path,
			 strerror(errno));
}

static void set_acl(struct unpacking *unpacking, const char *attribute, const char *text, const char *path)
{
	static uint8_t value[ACL_BYTES_MAX];
	size_t length = acl_from_text(text, value);
	errno = EINVAL;
	if (length == 0 || lsetxattr(path, attribute, value, length, 0) != 0)
		leave_out(unpacking, attribute, path);
}

/* The order matters: a change of owner clears set-user-ID bits and capabilities, and everything but utimensat(2)
 * changes times. */
static void set_attributes(struct unpacking *unpacking, const struct tar_member *member, const char *path)
{
	struct timespec times[] = { member->mtime, member->mtime };
	if (lchown(path, member->uid, member->gid) != 0 || (member->type != '2' && chmod(path, member->mode) != 0))
		give_up(unpacking, path);
	for (size_t i = 0; i < member->xattr_count; i++)
		if (lsetxattr(path, member->xattrs[i].name, member->xattrs[i].value, member->xattrs[i].length, 0) != 0)
			leave_out(unpacking, member->xattrs[i].name, path);
	if (member->acl)
		set_acl(unpacking, "system.posix_acl_access", member->acl, path);
	if (utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW) != 0)
		give_up(unpacking, path);
}

static void write_all(struct unpacking *unpacking, int fd, const uint8_t *data, size_t length, uint64_t offset, const char *path)
{
	while (length > 0) {
		ssize_t put = pwrite(fd, data, length, (off_t)offset);
		if (put < 0 && errno == EINTR)
			continue;
		if (put <= 0)
			give_up(unpacking, path);
		data += put;
		length -= (size_t)put;
		offset += (uint64_t)put;
	}
}

static _Noreturn void is_wrong(struct unpacking *unpacking)
{
	fail(unpacking->channel, STATUS_FAILED, "%s did not arrive whole in the guest: %s", unpacking->name, unpacking->tar.wrong);
}

static void make_file(struct unpacking *unpacking, const struct tar_member *member, const char *path)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		give_up(unpacking, path);
	for (size_t i = 0; i < member->range_count; i++) {
		uint64_t offset = member->ranges[i].offset, left = member->ranges[i].length;
		while (left > 0) {
			size_t got;
			const uint8_t *data = tar_data(&unpacking->tar, left, &got);
			if (!data)
				is_wrong(unpacking);
			if (got == 0)
				break;
			write_all(unpacking, fd, data, got, offset, path);
			offset += got;
			left -= got;
		}
	}
	/* The file may end with a hole. */
	if (ftruncate(fd, (off_t)member->size) != 0)
		give_up(unpacking, path);
	close(fd);
	set_attributes(unpacking, member, path);
}

static void make_directory(struct unpacking *unpacking, const struct tar_member *member, const char *path)
{
	if (mkdir(path, 0700) != 0 && errno != EEXIST)
		give_up(unpacking, path);
	set_attributes(unpacking, member, path);
	struct late *late = malloc(sizeof *late + strlen(path) + 1);
	if (!late)
		give_up(unpacking, path);
	late->mtime = member->mtime;
	late->default_acl = member->default_acl ? strdup(member->default_acl) : NULL;
	strcpy(late->path, path);
	late->next = unpacking->late;
	unpacking->late = late;
}

static void make_node(struct unpacking *unpacking, const struct tar_member *member, const char *path)
{
	mode_t type = member->type == '3' ? S_IFCHR : member->type == '4' ? S_IFBLK : S_IFIFO;
	if (mknod(path, type | 0600, member->device) != 0)
		give_up(unpacking, path);
	set_attributes(unpacking, member, path);
}

/* `./a/b/` becomes `a/b`, and `./` becomes `.`. */
static char *relative(char *path)
{
	size_t length = strlen(path);
	while (length > 1 && path[length - 1] == '/')
		path[--length] = 0;
	return strncmp(path, "./", 2) == 0 ? path + 2 : path;
}

static void make_member(struct unpacking *unpacking, struct tar_member *member)
{
	char *path = relative(member->path);
	switch (member->type) {
	case '0':
		make_file(unpacking, member, path);
		break;
	case '1':
		if (link(relative(member->link), path) != 0)
			give_up(unpacking, path);
		break;
	case '2':
		if (symlink(member->link, path) != 0)
			give_up(unpacking, path);
		set_attributes(unpacking, member, path);
		break;
	case '3':
	case '4':
	case '6':
		make_node(unpacking, member, path);
		break;
	case '5':
		make_directory(unpacking, member, path);
		break;
	default:
		unpacking->tar.wrong = "a member is of an unknown type";
		is_wrong(unpacking);
	}
}

/* The last directory first: children before their parents. */
static void finish_directories(struct unpacking *unpacking)
{
	while (unpacking->late) {
		struct late *late = unpacking->late;
		struct timespec times[] = { late->mtime, late->mtime };
		if (late->default_acl)
			set_acl(unpacking, "system.posix_acl_default", late->default_acl, late->path);
		if (utimensat(AT_FDCWD, late->path, times, AT_SYMLINK_NOFOLLOW) != 0)
			give_up(unpacking, late->path);
		unpacking->late = late->next;
		free(late->default_acl);
		free(late);
	}
}

void unpack(struct channel *channel, const char *port, const char *target, const char *name)
{
	static struct unpacking unpacking;
	struct tar_member member;
	enum tar_result result;
	int fd = port_open(port, O_RDONLY);
	memset(&unpacking, 0, sizeof unpacking);
	unpacking.channel = channel;
	unpacking.name = name;
	if (fd < 0)
		fail(channel, STATUS_FAILED, "the guest has no port '%s' for %s", port, name);
	if (chdir(target) != 0)
		give_up(&unpacking, target);
	tar_open(&unpacking.tar, fd);
	while ((result = tar_next(&unpacking.tar, &member)) == TAR_MEMBER)
		make_member(&unpacking, &member);
	if (result == TAR_WRONG)
		is_wrong(&unpacking);
	finish_directories(&unpacking);
	if (unpacking.left_out > 0)
		warn(channel, "%s: %zu attributes are left out in the guest, as its file system does not take them; the first is %s",
		     name, unpacking.left_out, unpacking.first_left_out);
	tar_close(&unpacking.tar);
	close(fd);
	chdir("/");
}
