#include "overlay.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define XATTR_SPACE 65536 /* XATTR_LIST_MAX and XATTR_SIZE_MAX */

/* Options that make an overlay behave like a single file system: directories of the lower layer can be renamed,
 * hard links stay links, and a change of attributes copies no content. Nothing written outlives the machine, so
 * nothing is synced. */
#define LIKE_ONE_FILE_SYSTEM ",redirect_dir=on,metacopy=on,index=on,xino=auto,volatile"

static void copy_xattrs(const char *from, const char *to)
{
	static char names[XATTR_SPACE], value[XATTR_SPACE];
	ssize_t length = listxattr(from, names, sizeof names);
	for (char *name = names; name < names + length; name += strlen(name) + 1) {
		ssize_t size = getxattr(from, name, value, sizeof value);
		if (size >= 0)
			setxattr(to, name, value, (size_t)size, 0);
	}
}

/* Creates `upper`, whose attributes the overlay's root shows, with those of the lower layer's root. */
static bool make_like_lower(const char *upper)
{
	struct stat lower;
	if (mkdir(upper, 0700) != 0 || stat(OVERLAY_LOWER, &lower) != 0)
		return false;
	copy_xattrs(OVERLAY_LOWER, upper);
	struct timespec times[] = { lower.st_mtim, lower.st_mtim };
	return chown(upper, lower.st_uid, lower.st_gid) == 0 && chmod(upper, lower.st_mode & 07777) == 0 &&
	       utimensat(AT_FDCWD, upper, times, 0) == 0;
}

bool overlay_mount(const char *target, size_t number, unsigned long flags)
{
	char directory[64], upper[80], work[80], options[512];
	snprintf(directory, sizeof directory, OVERLAY_SCRATCH "/%zu", number);
	snprintf(upper, sizeof upper, "%s/upper", directory);
	snprintf(work, sizeof work, "%s/work", directory);
	if (mkdir(directory, 0700) != 0 || mkdir(work, 0700) != 0 || !make_like_lower(upper))
		return false;
	int length = snprintf(options, sizeof options, "lowerdir=" OVERLAY_LOWER ",upperdir=%s,workdir=%s", upper, work);
	snprintf(options + length, sizeof options - (size_t)length, "%s", LIKE_ONE_FILE_SYSTEM);
	if (mount("overlay", target, "overlay", flags, options) == 0)
		return true;
	if (errno != EINVAL)
		return false;
	/* A kernel before 5.10 does not know the last option. */
	options[length] = 0;
	return mount("overlay", target, "overlay", flags, options) == 0;
}
