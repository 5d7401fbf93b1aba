#include "acl.h"

#include <stdlib.h>
#include <string.h>

#include "channel.h"

#define ACL_VERSION 2
#define NO_QUALIFIER UINT32_MAX

static const struct {
	const char *word;
	uint16_t own, named; /* tags without and with a qualifier; 0: none */
} TAGS[] = {
	{ "user", 0x01, 0x02 },
	{ "group", 0x04, 0x08 },
	{ "mask", 0x10, 0 },
	{ "other", 0x20, 0 },
};

static void put_u16(uint8_t *bytes, uint16_t value)
{
	bytes[0] = (uint8_t)value;
	bytes[1] = (uint8_t)(value >> 8);
}

/* Parses one entry, which ends with `end`. */
static int put_entry(const char *text, const char *end, uint8_t entry[8])
{
	const char *first = memchr(text, ':', (size_t)(end - text));
	const char *second = first ? memchr(first + 1, ':', (size_t)(end - first - 1)) : NULL;
	if (!second || end - second != 4)
		return 0;
	for (size_t i = 0; i < sizeof TAGS / sizeof TAGS[0]; i++) {
		if (strlen(TAGS[i].word) != (size_t)(first - text) || memcmp(TAGS[i].word, text, (size_t)(first - text)) != 0)
			continue;
		char *after;
		uint32_t qualifier = second == first + 1 ? NO_QUALIFIER : (uint32_t)strtoul(first + 1, &after, 10);
		uint16_t tag = qualifier == NO_QUALIFIER ? TAGS[i].own : TAGS[i].named;
		if (tag == 0 || (qualifier != NO_QUALIFIER && after != second))
			return 0;
		put_u16(entry, tag);
		put_u16(entry + 2, (uint16_t)((second[1] == 'r') * 4 + (second[2] == 'w') * 2 + (second[3] == 'x')));
		put_u32(entry + 4, qualifier);
		return 1;
	}
	return 0;
}

size_t acl_from_text(const char *text, uint8_t value[ACL_BYTES_MAX])
{
	size_t count = 0;
	put_u32(value, ACL_VERSION);
	while (*text) {
		const char *end = text + strcspn(text, ",\n");
		if (count == ACL_ENTRIES_MAX || !put_entry(text, end, value + 4 + 8 * count))
			return 0;
		count++;
		text = *end ? end + 1 : end;
	}
	return count ? 4 + 8 * count : 0;
}
