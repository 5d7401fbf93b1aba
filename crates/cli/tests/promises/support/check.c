/* Runs in guests of another architecture, as their only program: tells what it sees, and writes. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/xattr.h>
#include <unistd.h>

static void fail(const char *what)
{
	perror(what);
	exit(99);
}

static void tell_content(const char *path)
{
	/* FNV-1a: enough to tell that bytes are others. */
	unsigned long long sum = 14695981039346656037ULL;
	unsigned char bytes[65536];
	ssize_t got;
	int fd = open(path, O_RDONLY);
	if (fd < 0)
		fail(path);
	while ((got = read(fd, bytes, sizeof bytes)) > 0)
		for (ssize_t i = 0; i < got; i++)
			sum = (sum ^ bytes[i]) * 1099511628211ULL;
	if (got < 0)
		fail(path);
	printf(" %016llx", sum);
	close(fd);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

static void tell(const char *path, size_t skipped)
{
	struct stat status;
	char text[4096];
	ssize_t length;
	if (lstat(path, &status) != 0)
		fail(path);
	printf("%s %o %u:%u %ld", path + skipped, status.st_mode, status.st_uid, status.st_gid, (long)status.st_mtime);
	if (S_ISREG(status.st_mode)) {
		printf(" %lld %u", (long long)status.st_size, (unsigned)status.st_nlink);
		tell_content(path);
		length = getxattr(path, "user.note", text, sizeof text);
		if (length >= 0)
			printf(" note=%.*s", (int)length, text);
	}
	if (S_ISLNK(status.st_mode) && (length = readlink(path, text, sizeof text)) >= 0)
		printf(" -> %.*s", (int)length, text);
	printf("\n");
	if (!S_ISDIR(status.st_mode))
		return;
	struct dirent **names;
	int count = scandir(path, &names, NULL, by_name);
	if (count < 0)
		fail(path);
	for (int i = 0; i < count; i++) {
		const char *name = names[i]->d_name;
		snprintf(text, sizeof text, "%s/%s", path, name);
		if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && strcmp(name, "lost+found") != 0)
			tell(text, skipped);
	}
}

static void write_to(const char *directory)
{
	char path[4096];
	snprintf(path, sizeof path, "%s/made", directory);
	int fd = open(path, O_WRONLY | O_CREAT, 0640);
	if (fd < 0 || write(fd, "guest\n", 6) != 6 || close(fd) != 0)
		fail(path);
	snprintf(path, sizeof path, "%s/file", directory);
	fd = open(path, O_WRONLY | O_APPEND);
	if (fd < 0 || write(fd, "more\n", 5) != 5 || close(fd) != 0)
		fail(path);
	snprintf(path, sizeof path, "%s/gone", directory);
	if (unlink(path) != 0)
		fail(path);
}

/* tell DIR... | write DIR... | machine STATUS */
int main(int argc, char **argv)
{
	struct utsname name;
	if (argc > 1 && strcmp(argv[1], "machine") == 0) {
		char line[256] = "";
		uname(&name);
		if (!fgets(line, sizeof line, stdin))
			fail("input");
		printf("%s %ld %s", name.machine, sysconf(_SC_NPROCESSORS_ONLN), line);
		fprintf(stderr, "error output\n");
		return atoi(argv[2]);
	}
	for (int i = 2; i < argc; i++) {
		if (strcmp(argv[1], "write") == 0)
			write_to(argv[i]);
		printf("== %s\n", argv[i]);
		tell(argv[i], strlen(argv[i]));
	}
	return 0;
}
