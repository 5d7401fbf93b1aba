/* The disks that the command gets. */
#ifndef INARCH_DISKS_H
#define INARCH_DISKS_H

#include "channel.h"
#include "session.h"

/* Gives the command the session's disks: as /dev/disk/by-id/virtio-SERIAL, with -partN for partitions, as udev names
 * them; in variables INARCH_DISK_1 and so on; and as its user's own. Ends the session if a disk is missing. */
void give_disks(struct channel *channel, struct session *session);

#endif
