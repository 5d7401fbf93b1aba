/* Making files of an archive that the host streams. */
#ifndef INARCH_UNPACK_H
#define INARCH_UNPACK_H

#include "channel.h"

/* Unpacks what comes through the virtio-serial port `port` into the directory `target`, which the user knows as `name`. What
 * its file system does not take of attributes is told in one warning; everything else that fails ends the session. */
void unpack(struct channel *channel, const char *port, const char *target, const char *name);

#endif
