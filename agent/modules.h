/* Loading the kernel modules that the initramfs brought along. */
#ifndef INARCH_MODULES_H
#define INARCH_MODULES_H

#include <stdbool.h>
#include <stddef.h>

struct module_list {
	char *text; /* /modules/order: one file name a line, dependencies first */
	char *next;
};

void modules_open(struct module_list *list);
/* Loads the next module and frees its file. False when there is none left, or it cannot be loaded: then `error` says
 * which and why. */
bool modules_load_next(struct module_list *list, char *error, size_t capacity);

#endif
