/* The guest's processors. */
#ifndef INARCH_PROCESSORS_H
#define INARCH_PROCESSORS_H

#include "channel.h"

/* Starts the processors that the kernel left off (`maxcpus=1`; crates/vm/src/machine.rs says when and why), in another process:
 * modules are loaded meanwhile. */
void start_processors_beside(void);

/* Waits until all of those run. One that does not start is warned of: the command has fewer. */
void start_processors(struct channel *channel);

#endif
