/* Who runs the command. */
#ifndef INARCH_USER_H
#define INARCH_USER_H

#include "channel.h"
#include "session.h"

/* Settles uid, gid and groups, and gives HOME, USER, LOGNAME, SHELL and PATH to an environment without them. The
 * guest's /etc/passwd and /etc/group are read as files: a static program cannot use the guest's NSS. */
void user_resolve(struct channel *channel, struct session *session);

#endif
