/* Unmounts everything and powers the machine off. */
#ifndef INARCH_POWER_H
#define INARCH_POWER_H

/* Ends every process, and writes back and detaches every file system. */
void unmount_all(void);

/* Powers the machine off at once, without writing back. If the agent is not PID 1 it exits instead. */
_Noreturn void power_off(void);

#endif
