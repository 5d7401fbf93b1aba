/* The guest's network interfaces. */
#ifndef INARCH_NETWORK_H
#define INARCH_NETWORK_H

#include "channel.h"
#include "session.h"

/* Brings up `lo` and, if the session has a network, the first Ethernet interface, its route and /etc/resolv.conf. What
 * cannot be done is a warning. */
void network_up(struct channel *channel, const struct session *session);

#endif
