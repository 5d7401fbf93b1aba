#include "modules.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

struct module_list {
	char *text;
	char *next;
};

static void open_list(struct module_list *list, const char *order)
{
	struct stat status;
	list->text = list->next = NULL;
	int fd = open(order, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	if (fstat(fd, &status) == 0 && (list->text = calloc(1, (size_t)status.st_size + 1)))
		if (read(fd, list->text, (size_t)status.st_size) == status.st_size)
			list->next = list->text;
	close(fd);
	unlink(order);
}

/* Loads the next module and frees its file. False if none is left, or on failure. */
static bool load_next(struct module_list *list, char *error, size_t capacity)
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
	/* EEXIST: the kernel has loaded it itself, or has it built in. */
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

void modules_load_all(const char *order, char *error, size_t capacity)
{
	struct module_list modules;
	open_list(&modules, order);
	error[0] = 0;
	while (load_next(&modules, error, capacity))
		;
	free(modules.text);
}

bool modules_load_beside(struct module_process *process, const char *order)
{
	int ends[2];
	if (pipe2(ends, O_CLOEXEC) != 0)
		return false;
	process->pid = fork();
	if (process->pid == 0) {
		char error[512];
		modules_load_all(order, error, sizeof error);
		if (write(ends[1], error, strlen(error)) < 0)
			_exit(1);
		_exit(0);
	}
	close(ends[1]);
	process->report = ends[0];
	if (process->pid > 0)
		return true;
	close(ends[0]);
	return false;
}

void modules_wait(struct module_process *process, char *error, size_t capacity)
{
	size_t length = 0;
	ssize_t got;
	while (length + 1 < capacity) {
		got = read(process->report, error + length, capacity - 1 - length);
		if (got > 0)
			length += (size_t)got;
		else if (got == 0 || errno != EINTR)
			break;
	}
	error[length] = 0;
	close(process->report);
	int status;
	pid_t ended;
	while ((ended = waitpid(process->pid, &status, 0)) < 0 && errno == EINTR)
		;
	bool whole = ended == process->pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
	if (!whole && !error[0])
		snprintf(error, capacity, "the loading of kernel modules was ended in the guest; give it more memory");
}
