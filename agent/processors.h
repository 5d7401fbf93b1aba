/* Starts the guest's other processors. */
#ifndef INARCH_PROCESSORS_H
#define INARCH_PROCESSORS_H

#include "channel.h"

/* Starts the processors that the kernel left off (`maxcpus=1`; crates/vm/src/machine.rs says when and why), in
 * another process, in parallel with the loading of modules. */
void start_processors_beside(void);

/* Waits until all of them run. Warns if one does not start: the command then has fewer. */
void start_processors(struct channel *channel);

#endif
