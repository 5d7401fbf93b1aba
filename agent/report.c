#include "report.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "power.h"

static size_t bounded(int length, size_t capacity)
{
	if (length < 0)
		return 0;
	return (size_t)length < capacity ? (size_t)length : capacity - 1;
}

void fail(struct channel *channel, int status, const char *format, ...)
{
	uint8_t payload[2048];
	va_list arguments;
	va_start(arguments, format);
	int length = vsnprintf((char *)payload + 4, sizeof payload - 4, format, arguments);
	va_end(arguments);
	put_u32(payload, (uint32_t)status);
	channel_send(channel, FRAME_ERROR, payload, 4 + bounded(length, sizeof payload - 4));
	struct frame frame;
	if (channel_flush_all(channel, 60) == CHANNEL_OPEN)
		while (channel_wait(channel, &frame) && frame.type != FRAME_BYE)
			;
	power_off();
}

void warn(struct channel *channel, const char *format, ...)
{
	char text[2048];
	va_list arguments;
	va_start(arguments, format);
	int length = vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	channel_send(channel, FRAME_WARNING, text, bounded(length, sizeof text));
}
