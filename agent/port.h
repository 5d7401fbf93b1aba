/* Opens the virtio-serial ports to the host. */
#ifndef INARCH_PORT_H
#define INARCH_PORT_H

/* Opens the port called `wanted` with the flags of open(2) in `mode`. Waits for it, because the driver finds ports
 * in parallel; -1 if there is none. */
int port_open(const char *wanted, int mode);

#endif
