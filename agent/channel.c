#include "channel.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"

void channel_init(struct channel *channel, int fd)
{
	channel->fd = fd;
	channel->out_start = channel->out_end = 0;
	channel->in_start = channel->in_end = 0;
	channel->error = 0;
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	fcntl(fd, F_SETFD, FD_CLOEXEC);
}

static void put_header(uint8_t *at, uint8_t type, size_t length)
{
	at[0] = type;
	put_u32(at + 1, (uint32_t)length);
}

/* Moves the queued bytes to the front, so that the free space is contiguous. */
static void compact(struct channel *channel)
{
	if (channel->out_start == 0)
		return;
	memmove(channel->out, channel->out + channel->out_start, channel->out_end - channel->out_start);
	channel->out_end -= channel->out_start;
	channel->out_start = 0;
}

static size_t room(const struct channel *channel)
{
	return CHANNEL_OUT_CAPACITY - (channel->out_end - channel->out_start);
}

void channel_send(struct channel *channel, uint8_t type, const void *payload, size_t length)
{
	if (length > CHANNEL_OUT_RESERVE - FRAME_HEADER)
		length = CHANNEL_OUT_RESERVE - FRAME_HEADER;
	if (room(channel) < FRAME_HEADER + length && channel_flush_all(channel, 60) == CHANNEL_LOST)
		return;
	if (CHANNEL_OUT_CAPACITY - channel->out_end < FRAME_HEADER + length)
		compact(channel);
	put_header(channel->out + channel->out_end, type, length);
	if (length > 0)
		memcpy(channel->out + channel->out_end + FRAME_HEADER, payload, length);
	channel->out_end += FRAME_HEADER + length;
}

bool channel_has_room(const struct channel *channel)
{
	return room(channel) >= FRAME_HEADER + CHANNEL_DATA_FRAME + CHANNEL_OUT_RESERVE;
}

bool channel_is_idle(const struct channel *channel)
{
	return channel->out_start == channel->out_end;
}

long channel_send_from(struct channel *channel, uint8_t type, int fd, size_t limit)
{
	if (!channel_has_room(channel)) {
		errno = EAGAIN;
		return -1;
	}
	if (limit > CHANNEL_DATA_FRAME)
		limit = CHANNEL_DATA_FRAME;
	if (CHANNEL_OUT_CAPACITY - channel->out_end < FRAME_HEADER + limit)
		compact(channel);
	uint8_t *at = channel->out + channel->out_end;
	ssize_t got = read(fd, at + FRAME_HEADER, limit);
	if (got > 0) {
		put_header(at, type, (size_t)got);
		channel->out_end += FRAME_HEADER + (size_t)got;
	}
	return got;
}

enum channel_state channel_flush(struct channel *channel)
{
	while (channel->out_start < channel->out_end) {
		ssize_t sent = write(channel->fd, channel->out + channel->out_start, channel->out_end - channel->out_start);
		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0 && errno == EAGAIN)
			return CHANNEL_OPEN;
		if (sent <= 0) {
			channel->error = sent < 0 ? errno : EPIPE;
			return CHANNEL_LOST;
		}
		channel->out_start += (size_t)sent;
	}
	channel->out_start = channel->out_end = 0;
	return CHANNEL_OPEN;
}

/* Waits for an event on the port. While the host has not connected, the port is in POLLHUP, and poll(2) would
 * return at once again and again. */
static void wait_for(struct channel *channel, short events, int milliseconds)
{
	struct pollfd port = { .fd = channel->fd, .events = events };
	if (poll(&port, 1, milliseconds) > 0 && (port.revents & POLLHUP) && !(port.revents & events))
		sleep_milliseconds(1);
}

enum channel_state channel_flush_all(struct channel *channel, int seconds)
{
	uint64_t deadline = monotonic_microseconds() + (uint64_t)seconds * 1000000;
	for (;;) {
		if (channel_flush(channel) == CHANNEL_LOST)
			return CHANNEL_LOST;
		if (channel_is_idle(channel))
			return CHANNEL_OPEN;
		if (monotonic_microseconds() > deadline) {
			channel->error = ETIMEDOUT;
			return CHANNEL_LOST;
		}
		wait_for(channel, POLLOUT, 100);
	}
}

enum channel_state channel_fill(struct channel *channel)
{
	if (channel->in_start > 0) {
		memmove(channel->in, channel->in + channel->in_start, channel->in_end - channel->in_start);
		channel->in_end -= channel->in_start;
		channel->in_start = 0;
	}
	while (channel->in_end < CHANNEL_IN_CAPACITY) {
		ssize_t got = read(channel->fd, channel->in + channel->in_end, CHANNEL_IN_CAPACITY - channel->in_end);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && errno == EAGAIN)
			return CHANNEL_OPEN;
		if (got <= 0) {
			channel->error = got < 0 ? errno : 0;
			return CHANNEL_LOST;
		}
		channel->in_end += (size_t)got;
	}
	return CHANNEL_OPEN;
}

int channel_next(struct channel *channel, struct frame *frame)
{
	size_t have = channel->in_end - channel->in_start;
	const uint8_t *at = channel->in + channel->in_start;
	if (have < FRAME_HEADER)
		return 0;
	uint32_t length = get_u32(at + 1);
	if (length > FRAME_PAYLOAD_MAX)
		return -1;
	if (have - FRAME_HEADER < length)
		return 0;
	frame->type = at[0];
	frame->length = length;
	frame->payload = at + FRAME_HEADER;
	channel->in_start += FRAME_HEADER + length;
	return 1;
}

bool channel_wait(struct channel *channel, struct frame *frame)
{
	enum channel_state state = CHANNEL_OPEN;
	for (;;) {
		int found = channel_next(channel, frame);
		if (found != 0)
			return found > 0;
		if (state == CHANNEL_LOST)
			return false;
		wait_for(channel, POLLIN, -1);
		state = channel_fill(channel);
	}
}
