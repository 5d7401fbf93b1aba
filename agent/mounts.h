/* Mounts the guest's file systems. */
#ifndef INARCH_MOUNTS_H
#define INARCH_MOUNTS_H

#include "channel.h"
#include "session.h"

/* Mounts /dev, /proc and /sys in the initramfs. */
void mount_early(void);
/* Finds the virtio-blk disk with this serial; waits for it, because the driver finds disks in parallel. The limit
 * is a time, not a number of attempts, which would last ten times as long on a busy host. */
bool find_disk(const char *serial, char *device, size_t capacity);
/* Mounts the session's root and makes it `/`, then everything below it. Ends the session if something is missing. */
void mount_session(struct channel *channel, const struct session *session);

#endif
