#include "report.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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

void fail_in_log(const char *text)
{
	/* An agent in an ordinary process has the log of its host. */
	int log = getpid() == 1 ? open("/dev/kmsg", O_WRONLY | O_CLOEXEC) : -1;
	if (log >= 0)
		dprintf(log, "<2>inarch: %s\n", text);
	power_off();
}

void lost(const struct channel *channel, const char *when)
{
	char text[256];
	snprintf(text, sizeof text, "the connection to the host ended %s: %s", when,
		 channel->error ? strerror(channel->error) : "the host closed it, or a frame is wrong");
	fail_in_log(text);
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
