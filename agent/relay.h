/* The time while the command runs: bytes, signals and, at the end, its status. */
#ifndef INARCH_RELAY_H
#define INARCH_RELAY_H

#include "channel.h"
#include "command.h"

/* Relays until the host has acknowledged the command's end; false if the host is gone before. With `sets_clock` the host may set
 * the clock forward. */
bool relay_run(struct channel *channel, struct command *command, int child_signals, bool sets_clock);

#endif
