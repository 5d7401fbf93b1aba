/* The time while the command runs: bytes, signals and, at the end, its status. */
#ifndef INARCH_RELAY_H
#define INARCH_RELAY_H

#include "channel.h"
#include "command.h"
#include "session.h"

/* Relays until the host has acknowledged the command's end; false if the host is gone before. In a machine of its own, whose
 * session that is, the host may set the clock forward, and is told of what was against a command that failed; else it is
 * NULL. */
bool relay_run(struct channel *channel, struct command *command, int child_signals, const struct session *machine);

#endif
