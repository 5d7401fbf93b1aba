/* Starts the guest's other processors; tells how long they rested. */
#ifndef INARCH_PROCESSORS_H
#define INARCH_PROCESSORS_H

#include <stdint.h>

#include "channel.h"

/* How long the processors had nothing to do since the boot, all together: microseconds. */
struct rest {
	uint64_t idle;
	uint64_t waiting; /* for a disk, with nothing else to do */
};

/* Starts the processors that the kernel left off (`maxcpus=1`; crates/vm/src/machine.rs says when and why), in
 * another process, in parallel with the loading of modules. */
void start_processors_beside(void);

/* Waits until all of them run. Warns if one does not start: the command then has fewer. */
void start_processors(struct channel *channel);

/* Zero without /proc. */
struct rest processors_rest(void);

#endif
