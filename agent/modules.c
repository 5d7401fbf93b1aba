#include "modules.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ORDER "/modules/order"

void modules_open(struct module_list *list)
{
	struct stat status;
	list->text = list->next = NULL;
	int fd = open(ORDER, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	if (fstat(fd, &status) == 0 && (list->text = calloc(1, (size_t)status.st_size + 1)))
		if (read(fd, list->text, (size_t)status.st_size) == status.st_size)
			list->next = list->text;
	close(fd);
	unlink(ORDER);
}

bool modules_load_next(struct module_list *list, char *error, size_t capacity)
{
	error[0] = 0;
	if (!list->next || !*list->next)
		return false;
	char *name = list->next;
	char *end = strchr(name, '\n');
	list->next = end ? end + 1 : NULL;
	if (end)
		*end = 0;
	char path[256];
	snprintf(path, sizeof path, "/modules/%s", name);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	/* EEXIST: the kernel loaded it itself, or has it built in. */
	if (fd < 0 || (syscall(SYS_finit_module, fd, "", 0) != 0 && errno != EEXIST)) {
		snprintf(error, capacity, "cannot load the kernel module %s: %s", name, strerror(errno));
		if (fd >= 0)
			close(fd);
		return false;
	}
	close(fd);
	unlink(path);
	return true;
}
