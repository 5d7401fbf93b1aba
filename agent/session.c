#include "session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *copy_text(const uint8_t *bytes, size_t length)
{
	char *text = malloc(length + 1);
	if (text) {
		memcpy(text, bytes, length);
		text[length] = 0;
	}
	return text;
}

bool strings_add(struct strings *strings, const void *bytes, size_t length)
{
	char **items = realloc(strings->items, (strings->count + 2) * sizeof *items);
	if (!items)
		return false;
	strings->items = items;
	items[strings->count] = copy_text(bytes, length);
	if (!items[strings->count])
		return false;
	items[++strings->count] = NULL;
	return true;
}

const char *environment_get(const struct strings *environment, const char *name)
{
	size_t length = strlen(name);
	for (size_t i = 0; i < environment->count; i++)
		if (strncmp(environment->items[i], name, length) == 0 && environment->items[i][length] == '=')
			return environment->items[i] + length + 1;
	return NULL;
}

void environment_default(struct strings *environment, const char *name, const char *value)
{
	char line[4096];
	int length = snprintf(line, sizeof line, "%s=%s", name, value);
	if (!environment_get(environment, name) && length > 0 && (size_t)length < sizeof line)
		strings_add(environment, line, (size_t)length);
}

/* Cuts the string that begins at `*at` and ends with a NUL before `end`. */
static char *cut_text(const uint8_t **at, const uint8_t *end)
{
	const uint8_t *nul = memchr(*at, 0, (size_t)(end - *at));
	if (!nul)
		return NULL;
	char *text = copy_text(*at, (size_t)(nul - *at));
	*at = nul + 1;
	return text;
}

static const char *take_mount(struct session *session, const struct frame *frame)
{
	if (frame->length < 4)
		return "MOUNT is too short";
	const uint8_t *at = frame->payload + 4, *end = frame->payload + frame->length;
	struct mount_request mount = { .flags = get_u32(frame->payload) };
	mount.type = cut_text(&at, end);
	mount.source = mount.type ? cut_text(&at, end) : NULL;
	mount.target = mount.source ? cut_text(&at, end) : NULL;
	mount.options = mount.target ? cut_text(&at, end) : NULL;
	if (!mount.options || at != end || mount.target[0] != '/')
		return "MOUNT is not four strings with an absolute target";
	struct mount_request *mounts = realloc(session->mounts, (session->mount_count + 1) * sizeof *mounts);
	if (!mounts)
		return "out of memory";
	session->mounts = mounts;
	mounts[session->mount_count++] = mount;
	return NULL;
}

static const char *take_user_ids(struct session *session, const struct frame *frame)
{
	if (frame->length < 8 || frame->length % 4 != 0)
		return "USER_IDS has a wrong length";
	session->has_user_ids = true;
	session->uid = get_u32(frame->payload);
	session->gid = get_u32(frame->payload + 4);
	session->group_count = frame->length / 4 - 2;
	session->groups = malloc((session->group_count + 1) * sizeof *session->groups);
	if (!session->groups)
		return "out of memory";
	for (size_t i = 0; i < session->group_count; i++)
		session->groups[i] = get_u32(frame->payload + 8 + 4 * i);
	return NULL;
}

static const char *take_text(char **text, const struct frame *frame)
{
	free(*text);
	*text = copy_text(frame->payload, frame->length);
	return *text ? NULL : "out of memory";
}

static const char *take_numbers(struct session *session, const struct frame *frame)
{
	const uint8_t *at = frame->payload;
	if (frame->type == FRAME_CLOCK && frame->length == 8) {
		session->clock_nanoseconds = get_u64(at);
	} else if (frame->type == FRAME_NETWORK && frame->length == sizeof session->network) {
		session->has_network = true;
		memcpy(session->network, at, sizeof session->network);
	} else if (frame->type == FRAME_TERMINAL && frame->length == 4) {
		session->terminal = true;
		session->rows = get_u16(at);
		session->columns = get_u16(at + 2);
	} else if (frame->type == FRAME_OPEN_FILES && frame->length == 16) {
		session->has_open_files = true;
		session->open_files_soft = get_u64(at);
		session->open_files_hard = get_u64(at + 8);
	} else if (frame->type == FRAME_UMASK && frame->length == 4) {
		session->has_umask = true;
		session->umask = get_u32(at) & 0777;
	} else if (frame->type == FRAME_MAKE_DIRECTORY && frame->length == 0) {
		session->make_directory = true;
	} else if (frame->type == FRAME_CLEAN_SHUTDOWN && frame->length == 0) {
		session->clean_shutdown = true;
	} else if (frame->type == FRAME_OBSERVE && frame->length == 0) {
		session->observe = true;
	} else {
		return "a frame of an unknown type or a wrong length came before RUN";
	}
	return NULL;
}

const char *session_take(struct session *session, const struct frame *frame)
{
	switch (frame->type) {
	case FRAME_ARGUMENT:
		return strings_add(&session->arguments, frame->payload, frame->length) ? NULL : "out of memory";
	case FRAME_ENVIRONMENT:
		return strings_add(&session->environment, frame->payload, frame->length) ? NULL : "out of memory";
	case FRAME_DISK:
		return strings_add(&session->disks, frame->payload, frame->length) ? NULL : "out of memory";
	case FRAME_DIRECTORY:
		return take_text(&session->directory, frame);
	case FRAME_USER_NAME:
		return take_text(&session->user_name, frame);
	case FRAME_HOSTNAME:
		return take_text(&session->hostname, frame);
	case FRAME_SCRATCH:
		return take_text(&session->scratch, frame);
	case FRAME_USER_IDS:
		return take_user_ids(session, frame);
	case FRAME_MOUNT:
		return take_mount(session, frame);
	default:
		return take_numbers(session, frame);
	}
}
