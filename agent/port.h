/* The virtio-serial port to the host. */
#ifndef INARCH_PORT_H
#define INARCH_PORT_H

/* Opens the port called PORT_NAME; -1 if there is none (yet). */
int port_open(void);

#endif
