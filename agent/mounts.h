/* Mounts the guest's file systems. */
#ifndef INARCH_MOUNTS_H
#define INARCH_MOUNTS_H

#include "channel.h"
#include "session.h"

/* Mounts /dev, /proc and /sys in the initramfs. */
void mount_early(void);
/* Mounts the session's root and makes it `/`, then everything below it. Ends the session if something is missing. */
void mount_session(struct channel *channel, const struct session *session);

#endif
