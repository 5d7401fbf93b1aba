/* Reports the guest's processes to the host: who started whom, what each executed, and how it ended. */
#ifndef INARCH_OBSERVE_H
#define INARCH_OBSERVE_H

#include "channel.h"

/* Begins to observe; returns the descriptor to poll, or -1 if the kernel does not report processes, about which the host is warned.
 * Processes that the caller starts afterwards are observed. */
int observe_start(struct channel *channel);

/* Reports all that happened until now. */
void observe_take(struct channel *channel, int fd);

#endif
