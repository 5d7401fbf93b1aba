/* Mounts an overlayfs over a read-only file system. */
#ifndef INARCH_OVERLAY_H
#define INARCH_OVERLAY_H

#include <stdbool.h>
#include <stddef.h>

/* Where the layers are mounted before the overlay: devtmpfs is at /dev before and after the root is switched. */
#define OVERLAY_LOWER "/dev/inarch-lower"
#define OVERLAY_SCRATCH "/dev/inarch-scratch"

/* Mounts at `target` an overlay of OVERLAY_LOWER; writes go to the directory `number` of OVERLAY_SCRATCH. False on
 * failure; errno has the reason. */
bool overlay_mount(const char *target, size_t number, unsigned long flags);

#endif
