#include "tar.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* The records of one member: names of 4096 bytes, attributes of 64 KiB each. */
#define RECORDS_MAX (16 << 20)
/* The longest decimal number of a sparse map, and its line end. */
#define MAP_LINE 24

void tar_open(struct tar *tar, int fd)
{
	memset(tar, 0, sizeof *tar);
	tar->fd = fd;
}

void tar_close(struct tar *tar)
{
	free(tar->records);
	free(tar->own_ranges);
	free(tar->xattrs);
}

static bool wrong(struct tar *tar, const char *what)
{
	tar->wrong = what;
	return false;
}

/* Fills the buffer if it is empty. */
static bool fill(struct tar *tar)
{
	while (tar->start == tar->end) {
		ssize_t got = read(tar->fd, tar->buffer, sizeof tar->buffer);
		if (got > 0) {
			tar->start = 0;
			tar->end = (size_t)got;
		} else if (got == 0) {
			return wrong(tar, "the archive ends early");
		} else if (errno != EINTR) {
			return wrong(tar, strerror(errno));
		}
	}
	return true;
}

static bool take(struct tar *tar, void *into, size_t length)
{
	uint8_t *to = into;
	while (length > 0) {
		if (!fill(tar))
			return false;
		size_t count = tar->end - tar->start < length ? tar->end - tar->start : length;
		memcpy(to, tar->buffer + tar->start, count);
		tar->start += count;
		to += count;
		length -= count;
	}
	return true;
}

static bool skip(struct tar *tar, uint64_t length)
{
	while (length > 0) {
		if (!fill(tar))
			return false;
		size_t held = tar->end - tar->start, count = held < length ? held : (size_t)length;
		tar->start += count;
		length -= count;
	}
	return true;
}

const uint8_t *tar_data(struct tar *tar, uint64_t length, size_t *got)
{
	*got = 0;
	if (length > tar->left)
		length = tar->left;
	if (length == 0)
		return tar->buffer;
	if (!fill(tar))
		return NULL;
	const uint8_t *data = tar->buffer + tar->start;
	*got = tar->end - tar->start < length ? tar->end - tar->start : (size_t)length;
	tar->start += *got;
	tar->left -= *got;
	return data;
}

/* Octal digits, terminated by NUL or space. */
static uint64_t octal(const uint8_t *field, size_t length)
{
	uint64_t value = 0;
	for (size_t i = 0; i < length && field[i] >= '0' && field[i] <= '7'; i++)
		value = value * 8 + (field[i] - '0');
	return value;
}

static bool is_zero(const uint8_t *block)
{
	for (size_t i = 0; i < TAR_BLOCK; i++)
		if (block[i] != 0)
			return false;
	return true;
}

static bool sum_is_right(const uint8_t *block)
{
	uint64_t sum = 0;
	for (size_t i = 0; i < TAR_BLOCK; i++)
		sum += i >= 148 && i < 156 ? ' ' : block[i];
	return sum == octal(block + 148, 8);
}

static uint64_t padding_of(uint64_t length)
{
	return (TAR_BLOCK - length % TAR_BLOCK) % TAR_BLOCK;
}

static void take_fields(struct tar *tar, const uint8_t *block, struct tar_member *member)
{
	memset(member, 0, sizeof *member);
	size_t prefix = strnlen((const char *)block + 345, 155), name = strnlen((const char *)block, 100);
	memcpy(tar->path, block + 345, prefix);
	if (prefix > 0)
		tar->path[prefix++] = '/';
	memcpy(tar->path + prefix, block, name);
	tar->path[prefix + name] = 0;
	memcpy(tar->link, block + 157, 100);
	tar->link[100] = 0;
	member->path = tar->path;
	member->link = tar->link;
	member->type = block[156] ? (char)block[156] : '0';
	member->mode = octal(block + 100, 8) & 07777;
	member->uid = (uid_t)octal(block + 108, 8);
	member->gid = (gid_t)octal(block + 116, 8);
	member->size = octal(block + 124, 12);
	member->mtime.tv_sec = (time_t)octal(block + 136, 12);
	member->device = makedev(octal(block + 329, 8), octal(block + 337, 8));
}

/* Seconds with a fraction, also negative: -0.5 is half a second before 1970. */
static struct timespec parse_time(const char *text)
{
	bool negative = *text == '-';
	char *end;
	struct timespec time = { .tv_sec = strtoll(text, &end, 10) };
	if (*end == '.') {
		long unit = 100000000;
		for (const char *digit = end + 1; *digit >= '0' && *digit <= '9' && unit > 0; digit++, unit /= 10)
			time.tv_nsec += (*digit - '0') * unit;
	}
	if (negative && time.tv_nsec > 0) {
		time.tv_sec -= 1;
		time.tv_nsec = 1000000000 - time.tv_nsec;
	}
	return time;
}

/* Decodes '%' and '=' in the name of an attribute, in place. */
static char *decode_name(char *name)
{
	char *to = name;
	for (const char *from = name; *from;) {
		if (strncmp(from, "%25", 3) == 0 || strncmp(from, "%3D", 3) == 0) {
			*to++ = from[1] == '2' ? '%' : '=';
			from += 3;
		} else {
			*to++ = *from++;
		}
	}
	*to = 0;
	return name;
}

static bool add_xattr(struct tar *tar, struct tar_member *member, char *name, const uint8_t *value, size_t length)
{
	if (member->xattr_count == tar->xattr_capacity) {
		size_t capacity = tar->xattr_capacity ? tar->xattr_capacity * 2 : 8;
		struct tar_xattr *grown = realloc(tar->xattrs, capacity * sizeof *grown);
		if (!grown)
			return wrong(tar, "out of memory");
		tar->xattrs = grown;
		tar->xattr_capacity = capacity;
	}
	tar->xattrs[member->xattr_count++] =
		(struct tar_xattr){ .name = decode_name(name), .value = value, .length = length };
	return true;
}

static bool use_record(struct tar *tar, struct tar_member *member, char *keyword, char *value, size_t length)
{
	static const char XATTR[] = "SCHILY.xattr.";
	if (strcmp(keyword, "path") == 0 || strcmp(keyword, "GNU.sparse.name") == 0)
		member->path = value;
	else if (strcmp(keyword, "linkpath") == 0)
		member->link = value;
	else if (strcmp(keyword, "size") == 0)
		member->size = strtoull(value, NULL, 10);
	else if (strcmp(keyword, "uid") == 0)
		member->uid = (uid_t)strtoull(value, NULL, 10);
	else if (strcmp(keyword, "gid") == 0)
		member->gid = (gid_t)strtoull(value, NULL, 10);
	else if (strcmp(keyword, "mtime") == 0)
		member->mtime = parse_time(value);
	else if (strcmp(keyword, "SCHILY.devmajor") == 0)
		member->device = makedev(strtoull(value, NULL, 10), minor(member->device));
	else if (strcmp(keyword, "SCHILY.devminor") == 0)
		member->device = makedev(major(member->device), strtoull(value, NULL, 10));
	else if (strcmp(keyword, "SCHILY.acl.access") == 0)
		member->acl = value;
	else if (strcmp(keyword, "SCHILY.acl.default") == 0)
		member->default_acl = value;
	else if (strncmp(keyword, XATTR, sizeof XATTR - 1) == 0)
		return add_xattr(tar, member, keyword + sizeof XATTR - 1, (const uint8_t *)value, length);
	return true;
}

/* Parses the records `LENGTH KEYWORD=VALUE\n` of the extended header; `*real_size` is a sparse file's. */
static bool use_records(struct tar *tar, struct tar_member *member, uint64_t *real_size, bool *sparse)
{
	char *at = (char *)tar->records, *end = at + tar->records_length;
	while (at < end && *at) {
		char *body;
		unsigned long length = strtoul(at, &body, 10);
		if (*body != ' ' || length < 5 || length > (size_t)(end - at) || at[length - 1] != '\n')
			return wrong(tar, "a record of an extended header makes no sense");
		char *next = at + length, *equals = memchr(body, '=', (size_t)(next - body));
		if (!equals)
			return wrong(tar, "a record of an extended header has no '='");
		next[-1] = 0;
		*equals = 0;
		if (strcmp(body + 1, "GNU.sparse.realsize") == 0) {
			*sparse = true;
			*real_size = strtoull(equals + 1, NULL, 10);
		} else if (!use_record(tar, member, body + 1, equals + 1, (size_t)(next - 1 - (equals + 1)))) {
			return false;
		}
		at = next;
	}
	return true;
}

/* Reads the extended header's records from the stream. */
static bool take_records(struct tar *tar, uint64_t length)
{
	if (length > RECORDS_MAX)
		return wrong(tar, "an extended header is too long");
	uint8_t *records = realloc(tar->records, length + 1);
	if (!records)
		return wrong(tar, "out of memory");
	tar->records = records;
	tar->records_length = length;
	records[length] = 0;
	return take(tar, records, length) && skip(tar, padding_of(length));
}

/* A decimal number on a line of a sparse file's map, which is part of the member's data. */
static bool take_map_number(struct tar *tar, uint64_t *number, uint64_t *taken)
{
	char line[MAP_LINE];
	for (size_t i = 0; i < sizeof line; i++) {
		if (*taken >= tar->left || !take(tar, line + i, 1))
			return wrong(tar, "a sparse file's map ends early");
		*taken += 1;
		if (line[i] == '\n') {
			line[i] = 0;
			*number = strtoull(line, NULL, 10);
			return true;
		}
	}
	return wrong(tar, "a number in a sparse file's map is too long");
}

static bool take_map(struct tar *tar, struct tar_member *member)
{
	uint64_t taken = 0, count;
	if (!take_map_number(tar, &count, &taken))
		return false;
	/* Each part takes two lines. */
	if (count > tar->left / 4)
		return wrong(tar, "a sparse file's map is longer than its data");
	uint8_t *room = realloc(tar->own_ranges, (count + 1) * sizeof(struct tar_range));
	if (!room)
		return wrong(tar, "out of memory");
	tar->own_ranges = room;
	member->ranges = (struct tar_range *)(void *)room;
	member->range_count = count;
	for (uint64_t i = 0; i < count; i++)
		if (!take_map_number(tar, &member->ranges[i].offset, &taken) ||
		    !take_map_number(tar, &member->ranges[i].length, &taken))
			return false;
	uint64_t padding = padding_of(taken);
	if (taken + padding > tar->left)
		return wrong(tar, "a sparse file's map is longer than its data");
	tar->left -= taken + padding;
	return skip(tar, padding);
}

enum tar_result tar_next(struct tar *tar, struct tar_member *member)
{
	uint8_t block[TAR_BLOCK];
	uint64_t real_size = 0;
	bool extended = false, sparse = false;
	if (!skip(tar, tar->left) || !skip(tar, tar->padding))
		return TAR_WRONG;
	tar->left = tar->padding = 0;
	for (;;) {
		if (!take(tar, block, sizeof block))
			return TAR_WRONG;
		if (is_zero(block))
			return TAR_END;
		if (!sum_is_right(block)) {
			wrong(tar, "a header has a wrong checksum");
			return TAR_WRONG;
		}
		if (block[156] != 'x')
			break;
		if (!take_records(tar, octal(block + 124, 12)))
			return TAR_WRONG;
		extended = true;
	}
	take_fields(tar, block, member);
	if (extended && !use_records(tar, member, &real_size, &sparse))
		return TAR_WRONG;
	member->xattrs = tar->xattrs;
	tar->left = member->type == '0' ? member->size : 0;
	tar->padding = padding_of(tar->left);
	if (sparse) {
		member->size = real_size;
		return take_map(tar, member) ? TAR_MEMBER : TAR_WRONG;
	}
	tar->whole = (struct tar_range){ .offset = 0, .length = tar->left };
	member->ranges = &tar->whole;
	member->range_count = 1;
	return TAR_MEMBER;
}
