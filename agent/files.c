#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool read_line(const char *path, char *line, size_t capacity)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	ssize_t got = read(fd, line, capacity - 1);
	close(fd);
	if (got < 0)
		return false;
	line[got] = 0;
	line[strcspn(line, "\n")] = 0;
	return true;
}

bool write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0)
		return false;
	size_t length = strlen(text);
	bool done = write(fd, text, length) == (ssize_t)length;
	close(fd);
	return done;
}

bool make_directories(const char *path)
{
	char part[PATH_MAX];
	struct stat status;
	if (stat(path, &status) == 0) {
		errno = ENOTDIR;
		return S_ISDIR(status.st_mode);
	}
	if (strlen(path) >= sizeof part) {
		errno = ENAMETOOLONG;
		return false;
	}
	strcpy(part, path);
	for (char *slash = part + 1; (slash = strchr(slash, '/')); slash++) {
		*slash = 0;
		int number = mkdir(part, 0755) == 0 ? EEXIST : errno;
		/* For existing directories, too, a read-only file system returns EROFS. */
		bool is_there = number == EEXIST || (number == EROFS && access(part, F_OK) == 0);
		errno = number;
		if (!is_there)
			return false;
		*slash = '/';
	}
	return mkdir(part, 0755) == 0 || errno == EEXIST;
}
