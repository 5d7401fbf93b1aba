/* Starts the command, a process in a session of its own, and sends it signals. */
#ifndef INARCH_COMMAND_H
#define INARCH_COMMAND_H

#include <sys/types.h>

#include "channel.h"
#include "session.h"

struct command {
	pid_t pid;
	bool terminal;
	/* Our ends, non-blocking. With a terminal, `input` and `output` are the pty's master and `error` is -1. */
	int input, output, error;
};

/* Starts the command, or ends the session with the status that a shell would give. */
void command_start(struct command *command, struct channel *channel, const struct session *session);
/* Sends a signal to the command's process group, and to the terminal's foreground group if there is a terminal. */
void command_signal(const struct command *command, int signal);
void command_resize(const struct command *command, uint16_t rows, uint16_t columns);

#endif
