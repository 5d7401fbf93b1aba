/* An overlayfs over a file system that cannot be written to. */
#ifndef INARCH_OVERLAY_H
#define INARCH_OVERLAY_H

#include <stdbool.h>
#include <stddef.h>

/* Where the layers are mounted before the overlay is: devtmpfs is at /dev before and after the root is switched. */
#define OVERLAY_LOWER "/dev/inarch-lower"
#define OVERLAY_SCRATCH "/dev/inarch-scratch"

/* Mounts at `target` an overlay of OVERLAY_LOWER; what is written goes to the directory `number` of OVERLAY_SCRATCH. False if
 * that cannot be; errno tells why. */
bool overlay_mount(const char *target, size_t number, unsigned long flags);

#endif
