/* Finds causes of a command's failure outside of the command: memory and network. */
#ifndef INARCH_CIRCUMSTANCES_H
#define INARCH_CIRCUMSTANCES_H

#include "channel.h"
#include "session.h"

/* Starts counting questions to name servers, in a guest without a network. */
void watch_questions(const struct session *session);

/* Warns if the guest ran out of memory, or if the command looked for a network that is not there. */
void warn_of_circumstances(struct channel *channel, const struct session *session);

#endif
