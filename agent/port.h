/* Opens the connections to the host: virtio-serial ports, or where there are none, AF_VSOCK. */
#ifndef INARCH_PORT_H
#define INARCH_PORT_H

/* Opens the port called `wanted` with the flags of open(2) in `mode`. Waits for it, because the driver finds ports
 * in parallel; -1 if there is none. */
int port_open(const char *wanted, int mode);

/* Waits until the host has got what was written to a socket, and closes it. A virtio-serial port needs neither: its writes wait. */
void port_finish(int fd);

/* A connection to a port of the host by AF_VSOCK, or -1. */
int connect_to_host(unsigned int port);

#endif
