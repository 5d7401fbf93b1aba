/* Reports the guest's processes to the host: who started whom, what each executed, and how it ended. */
#ifndef INARCH_OBSERVE_H
#define INARCH_OBSERVE_H

#include <sys/types.h>

#include "channel.h"

/* Begins to observe; returns the descriptor to poll, or -1 if the kernel does not report processes, about which the host is warned.
 * Processes that the caller starts afterwards are observed. */
int observe_start(struct channel *channel);

/* Names the process with whose end observe_end() ends. To be called before the first observe_take(). */
void observe_until(pid_t process);

/* Reports all that happened until now. */
void observe_take(struct channel *channel, int fd);

/* Reports all that happened until the end of observe_until()'s process, which the caller knows from wait(2), with `status`; and the ends of all
 * processes that have ended by then. */
void observe_end(struct channel *channel, int fd, int status);

#endif
