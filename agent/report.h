/* Reports errors and warnings to the host. */
#ifndef INARCH_REPORT_H
#define INARCH_REPORT_H

#include "channel.h"

/* Gives up: sends ERROR with this exit status, waits for BYE and ends the machine (or the process, if the agent is
 * not PID 1). */
_Noreturn void fail(struct channel *channel, int status, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Gives up without a connection: the kernel's log has the reason. */
_Noreturn void fail_in_log(const char *text);

/* The same after the connection was lost, `when` in the session. */
_Noreturn void lost(const struct channel *channel, const char *when);

/* Sends WARNING; the session continues. */
void warn(struct channel *channel, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
