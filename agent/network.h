/* Sets up the guest's network interfaces. */
#ifndef INARCH_NETWORK_H
#define INARCH_NETWORK_H

#include "channel.h"
#include "session.h"

/* Brings up `lo` and, if the session has a network, the first Ethernet interface and its route. A failure is a
 * warning. */
void network_up(struct channel *channel, const struct session *session);

/* Makes /etc/resolv.conf of the mounted root name the session's name server, if it has one. */
void network_name_server(struct channel *channel, const struct session *session);

#endif
