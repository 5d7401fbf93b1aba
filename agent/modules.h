/* Loading the kernel modules that the initramfs brought along. */
#ifndef INARCH_MODULES_H
#define INARCH_MODULES_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct module_list {
	char *text; /* one file name of /modules a line, dependencies first */
	char *next;
};

struct module_process {
	pid_t pid;
	int report;
};

/* Reads the list in the file `order`, and frees that. */
void modules_open(struct module_list *list, const char *order);
/* Loads the next module and frees its file. False when there is none left, or it cannot be loaded: then `error` says
 * which and why. */
bool modules_load_next(struct module_list *list, char *error, size_t capacity);

/* Loads the list in the file `order` in a process of its own, so that a second processor can do it. False if there
 * cannot be one. */
bool modules_load_beside(struct module_process *process, const char *order);
/* Waits for that process. `error` is empty, or says which module cannot be loaded, and why, or that the process was
 * killed. */
void modules_wait(struct module_process *process, char *error, size_t capacity);

#endif
