/* Resolves the user that runs the command. */
#ifndef INARCH_USER_H
#define INARCH_USER_H

#include "channel.h"
#include "session.h"

/* Resolves uid, gid and groups, and adds HOME, USER, LOGNAME, SHELL and PATH to the environment if they are
 * missing. Reads the guest's /etc/passwd and /etc/group as files, because a static program cannot use the guest's
 * NSS. */
void user_resolve(struct channel *channel, struct session *session);

#endif
