/* Loads the kernel modules in the initramfs. */
#ifndef INARCH_MODULES_H
#define INARCH_MODULES_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct module_process {
	pid_t pid;
	int report;
};

/* Loads the modules listed in the file `order`, one file of /modules on each line, dependencies first; frees their
 * files and the list's. `error` is empty, or says which module cannot be loaded, and why; the rest is not tried
 * then. */
void modules_load_all(const char *order, char *error, size_t capacity);

/* Loads the list in the file `order` in a separate process, so that a second processor can do it. False if there
 * cannot be one. */
bool modules_load_beside(struct module_process *process, const char *order);
/* Waits for that process. `error` is empty, or says which module cannot be loaded, and why, or that the process
 * was killed. */
void modules_wait(struct module_process *process, char *error, size_t capacity);

#endif
