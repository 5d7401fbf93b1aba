/* Reads the archive that the host streams: POSIX (PAX) headers, GNU tar's sparse files (format 1.0). It supports
 * everything that the host's own writer produces (crates/format/src/tar/write). */
#ifndef INARCH_TAR_H
#define INARCH_TAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#define TAR_BLOCK 512

struct tar_range {
	uint64_t offset, length;
};

struct tar_xattr {
	const char *name;
	const uint8_t *value;
	size_t length;
};

/* One member. Its pointers are valid until the next call of tar_next(). */
struct tar_member {
	char type; /* as in the header's typeflag: '0' file, '1' hard link, '2' symlink, '3' and '4' devices, '5' directory, '6' fifo */
	char *path, *link;
	mode_t mode;
	uid_t uid;
	gid_t gid;
	dev_t device;
	struct timespec mtime;
	uint64_t size; /* including its holes */
	/* Where the following data goes; one range for a file without holes. */
	struct tar_range *ranges;
	size_t range_count;
	struct tar_xattr *xattrs;
	size_t xattr_count;
	const char *acl, *default_acl; /* as text, or NULL */
};

struct tar {
	int fd;
	uint8_t buffer[64 * 1024];
	size_t start, end;
	uint64_t left;	    /* bytes of the member's data that are not read yet */
	uint64_t padding;   /* padding after them */
	uint8_t *records;   /* records of the extended header */
	size_t records_length;
	uint8_t *own_ranges;
	struct tar_range whole;
	struct tar_xattr *xattrs;
	size_t xattr_capacity;
	char path[257], link[101];
	const char *wrong; /* what is wrong with the archive, after TAR_WRONG */
};

enum tar_result { TAR_MEMBER, TAR_END, TAR_WRONG };

/* An archive at its start. */
void tar_open(struct tar *tar, int fd);
/* The next member; skips the unread data of the previous one. */
enum tar_result tar_next(struct tar *tar, struct tar_member *member);
/* Returns up to `length` bytes of the member's data in place; `*got` is their number, 0 at the end. NULL: see
 * `wrong`. */
const uint8_t *tar_data(struct tar *tar, uint64_t length, size_t *got);
void tar_close(struct tar *tar);

#endif
