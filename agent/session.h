/* The description of the session, filled frame by frame until RUN. */
#ifndef INARCH_SESSION_H
#define INARCH_SESSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "channel.h"

struct mount_request {
	uint32_t flags;
	char *type, *source, *target, *options;
};

/* A growing vector of strings, terminated by NULL as for execve(2). */
struct strings {
	char **items;
	size_t count;
};

struct session {
	struct strings arguments, environment;
	char *directory;
	bool make_directory;
	char *user_name; /* USER[:GROUP], or NULL */
	bool has_user_ids;
	uint32_t uid, gid;
	gid_t *groups;
	size_t group_count;
	char *hostname;
	uint64_t clock_nanoseconds; /* 0: leave the clock */
	bool has_network;
	uint8_t network[16];
	struct mount_request *mounts;
	size_t mount_count;
	char *scratch; /* serial of a disk, or NULL */
	struct strings disks; /* serials of the disks that the command gets */
	bool terminal;
	uint16_t rows, columns;
	bool has_open_files;
	uint64_t open_files_soft, open_files_hard;
	bool has_umask;
	uint32_t umask;
	bool clean_shutdown;
	bool observe; /* report processes */
};

/* Handles one frame. Returns NULL, or what is wrong with the frame. */
const char *session_take(struct session *session, const struct frame *frame);

/* Appends a copy of `length` bytes; false if out of memory. */
bool strings_add(struct strings *strings, const void *bytes, size_t length);
/* The value of an environment variable, or NULL. */
const char *environment_get(const struct strings *environment, const char *name);
/* Adds NAME=VALUE if NAME is not set. */
void environment_default(struct strings *environment, const char *name, const char *value);

#endif
