/* The framed connection to the host, with buffers; it blocks only where a function says so. */
#ifndef INARCH_CHANNEL_H
#define INARCH_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "protocol.h"

/* One frame of output data: a write of it fills one buffer of the kernel's virtio_console driver (32 KiB). */
#define CHANNEL_DATA_FRAME (32 * 1024 - FRAME_HEADER)
#define CHANNEL_OUT_CAPACITY (256 * 1024)
/* Room in the buffer that is reserved for control frames. */
#define CHANNEL_OUT_RESERVE 4096
#define CHANNEL_IN_CAPACITY (FRAME_HEADER + FRAME_PAYLOAD_MAX)

struct channel {
	int fd;
	size_t out_start, out_end;
	size_t in_start, in_end;
	int error; /* of read(2) or write(2), when the state is CHANNEL_LOST; 0: the host ended the connection, or broke the protocol */
	uint8_t out[CHANNEL_OUT_CAPACITY];
	uint8_t in[CHANNEL_IN_CAPACITY];
};

struct frame {
	uint8_t type;
	uint32_t length;
	const uint8_t *payload; /* valid until the next channel_fill() */
};

enum channel_state { CHANNEL_OPEN, CHANNEL_LOST };

void channel_init(struct channel *channel, int fd);

/* Queues a frame; blocks only if the buffer is full. */
void channel_send(struct channel *channel, uint8_t type, const void *payload, size_t length);
/* Reads from `fd` what is available, up to `limit` and CHANNEL_DATA_FRAME - CHANNEL_OUT_RESERVE bytes, and queues
 * it. Returns read(2)'s result. */
long channel_send_from(struct channel *channel, uint8_t type, int fd, size_t limit);
bool channel_has_room(const struct channel *channel);
bool channel_is_idle(const struct channel *channel);
/* Writes what the port accepts now. */
enum channel_state channel_flush(struct channel *channel);
/* Writes everything; blocks up to `seconds`. */
enum channel_state channel_flush_all(struct channel *channel, int seconds);

/* Reads what the port has now. */
enum channel_state channel_fill(struct channel *channel);
/* Takes the next frame from the buffer. Returns 1 if a frame is complete, 0 if not, -1 if the host breaks the protocol. */
int channel_next(struct channel *channel, struct frame *frame);
/* Blocks until there is a frame; false if the host is gone. */
bool channel_wait(struct channel *channel, struct frame *frame);

static inline uint32_t get_u32(const uint8_t *bytes)
{
	return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static inline uint16_t get_u16(const uint8_t *bytes)
{
	return (uint16_t)(bytes[0] | bytes[1] << 8);
}

static inline uint64_t get_u64(const uint8_t *bytes)
{
	return get_u32(bytes) | (uint64_t)get_u32(bytes + 4) << 32;
}

static inline void put_u32(uint8_t *bytes, uint32_t value)
{
	for (int i = 0; i < 4; i++)
		bytes[i] = (uint8_t)(value >> (8 * i));
}

static inline void put_u64(uint8_t *bytes, uint64_t value)
{
	put_u32(bytes, (uint32_t)value);
	put_u32(bytes + 4, (uint32_t)(value >> 32));
}

#endif
