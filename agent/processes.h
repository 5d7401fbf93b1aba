/* Tells what the guest's processes are doing. */
#ifndef INARCH_PROCESSES_H
#define INARCH_PROCESSES_H

#include <stdbool.h>
#include <sys/types.h>

/* Whether a process of this session (setsid(2)) runs, or waits for a processor or a disk. False if /proc does not
 * say. */
bool session_is_busy(pid_t session);

#endif
