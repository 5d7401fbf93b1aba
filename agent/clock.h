/* Time of day, and pauses. */
#ifndef INARCH_CLOCK_H
#define INARCH_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t microseconds_of(clockid_t clock)
{
	struct timespec now = { 0 };
	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static inline uint64_t monotonic_microseconds(void)
{
	return microseconds_of(CLOCK_MONOTONIC);
}

/* Sets the time of day: nanoseconds since 1970. Returns -1 and errno on failure. */
static inline int set_clock(uint64_t nanoseconds)
{
	struct timespec now = { .tv_sec = (time_t)(nanoseconds / 1000000000), .tv_nsec = (long)(nanoseconds % 1000000000) };
	return clock_settime(CLOCK_REALTIME, &now);
}

static inline void sleep_milliseconds(long milliseconds)
{
	struct timespec pause = { .tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000 };
	nanosleep(&pause, 0);
}

#endif
