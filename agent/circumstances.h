/* What was against a command that failed, beside itself. */
#ifndef INARCH_CIRCUMSTANCES_H
#define INARCH_CIRCUMSTANCES_H

#include "channel.h"
#include "session.h"

/* From now on counts the questions to name servers in a guest that has no network. */
void watch_questions(const struct session *session);

/* Warns of a guest that ran out of memory, and of a network that was looked for and is not there. */
void warn_of_circumstances(struct channel *channel, const struct session *session);

#endif
