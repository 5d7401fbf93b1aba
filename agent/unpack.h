/* Unpacks an archive that the host streams. */
#ifndef INARCH_UNPACK_H
#define INARCH_UNPACK_H

#include "channel.h"

/* Unpacks the archive from the virtio-serial port `port` into the directory `target`, which the user knows as
 * `name`. One warning covers all attributes that its file system does not support; any other failure ends the
 * session. */
void unpack(struct channel *channel, const char *port, const char *target, const char *name);

#endif
