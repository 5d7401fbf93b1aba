/* Relays while the command runs: bytes, signals and, at the end, its status. */
#ifndef INARCH_RELAY_H
#define INARCH_RELAY_H

#include "channel.h"
#include "command.h"
#include "session.h"

/* Relays until the host has acknowledged the command's end; false if the host is gone before. `processes` is observe_start()'s, or -1.
 * `machine` is the session in a machine of its own: then the host may set the clock forward, and gets warnings about a failed
 * command. Otherwise it is NULL. */
bool relay_run(struct channel *channel, struct command *command, int child_signals, int processes,
	       const struct session *machine);

#endif
