#include "command.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"
#include "report.h"

enum step { STEP_USER, STEP_DIRECTORY, STEP_EXEC };

/* The child's report that it cannot become the command. */
struct child_error {
	enum step step;
	int number;
};

/* The descriptors that the child gets. */
struct child_ends {
	int input, output, error;
};

static _Noreturn void give_up(int report, enum step step, int number)
{
	struct child_error error = { step, number };
	write(report, &error, sizeof error);
	_exit(1);
}

/* A file of no executable format is a shell script, as for execvp(3). */
static void execute(const char *path, char **arguments, char **environment, size_t count)
{
	execve(path, arguments, environment);
	if (errno != ENOEXEC)
		return;
	char **script = calloc(count + 2, sizeof *script);
	if (!script)
		return;
	script[0] = "/bin/sh";
	script[1] = (char *)path;
	for (size_t i = 1; i < count; i++)
		script[i + 1] = arguments[i];
	execve(script[0], script, environment);
}

/* Searches for the program like a shell: in the session's PATH, unless its name contains a slash. Returns errno. */
static int execute_in_path(const struct session *session)
{
	char **arguments = session->arguments.items;
	size_t count = session->arguments.count;
	if (strchr(arguments[0], '/')) {
		execute(arguments[0], arguments, session->environment.items, count);
		return errno;
	}
	int result = ENOENT;
	const char *at = environment_get(&session->environment, "PATH");
	while (at) {
		size_t length = strcspn(at, ":");
		char path[PATH_MAX];
		int needed = snprintf(path, sizeof path, "%.*s%s%s", (int)length, at, length ? "/" : "./", arguments[0]);
		if (needed > 0 && (size_t)needed < sizeof path) {
			struct stat status;
			bool is_file = stat(path, &status) == 0 && S_ISREG(status.st_mode);
			if (is_file)
				execute(path, arguments, session->environment.items, count);
			if (is_file && errno != ENOTDIR)
				result = errno;
			if (is_file && errno != EACCES)
				return errno;
		}
		at = at[length] ? at + length + 1 : NULL;
	}
	return result;
}

static void set_limits(const struct session *session)
{
	struct rlimit files = { .rlim_cur = 1024, .rlim_max = 1048576 };
	if (session->has_open_files) {
		files.rlim_cur = session->open_files_soft;
		files.rlim_max = session->open_files_hard;
	}
	if (files.rlim_cur > files.rlim_max)
		files.rlim_cur = files.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &files) != 0) {
		/* Exceeds the kernel's fs.nr_open, or is not allowed: use the most there is. */
		getrlimit(RLIMIT_NOFILE, &files);
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
}

static _Noreturn void become_command(const struct session *session, struct child_ends ends, int report)
{
	setsid();
	if (session->terminal)
		ioctl(ends.input, TIOCSCTTY, 0);
	dup2(ends.input, STDIN_FILENO);
	dup2(ends.output, STDOUT_FILENO);
	dup2(ends.error, STDERR_FILENO);
	for (int number = 1; number < NSIG; number++)
		signal(number, SIG_DFL);
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	umask(session->has_umask ? (mode_t)session->umask : 022);
	set_limits(session);
	if ((session->has_user_ids || session->user_name) &&
	    (setgroups(session->group_count, session->groups) != 0 || setgid(session->gid) != 0 || setuid(session->uid) != 0))
		give_up(report, STEP_USER, errno);
	if (chdir(session->directory ? session->directory : "/") != 0)
		give_up(report, STEP_DIRECTORY, errno);
	give_up(report, STEP_EXEC, execute_in_path(session));
}

static void report_failure(struct channel *channel, const struct session *session, struct child_error error)
{
	const char *name = session->arguments.items[0], *why = strerror(error.number);
	switch (error.step) {
	case STEP_USER:
		fail(channel, STATUS_FAILED, "cannot become user %u, group %u in the guest: %s", session->uid, session->gid, why);
	case STEP_DIRECTORY:
		fail(channel, STATUS_FAILED, "the working directory %s cannot be entered in the guest: %s",
		     session->directory ? session->directory : "/", why);
	case STEP_EXEC:
		break;
	}
	struct stat status;
	if (error.number != ENOENT)
		fail(channel, STATUS_CANNOT_RUN, "%s: cannot be run: %s", name, why);
	if (strchr(name, '/') && name[0] == '/' && stat(name, &status) == 0)
		fail(channel, STATUS_NOT_FOUND, "%s: its interpreter is missing in the guest", name);
	fail(channel, STATUS_NOT_FOUND, "%s: command not found in the guest", name);
}

static void make_nonblocking(int fd)
{
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

/* Otherwise a command that does not run as root could not open /dev/stdin and the like. */
static void give_to_user(int fd, const struct session *session)
{
	if (session->has_user_ids || session->user_name)
		fchown(fd, session->uid, (gid_t)-1);
}

static void open_pipes(struct command *command, struct child_ends *ends, struct channel *channel,
		       const struct session *session)
{
	int input[2], output[2], error[2];
	if (pipe2(input, O_CLOEXEC) != 0 || pipe2(output, O_CLOEXEC) != 0 || pipe2(error, O_CLOEXEC) != 0)
		fail(channel, STATUS_FAILED, "cannot make the command's pipes: %s", strerror(errno));
	*ends = (struct child_ends){ input[0], output[1], error[1] };
	command->input = input[1];
	command->output = output[0];
	command->error = error[0];
	give_to_user(ends->input, session);
	give_to_user(ends->output, session);
	give_to_user(ends->error, session);
}

static void open_terminal(struct command *command, struct child_ends *ends, struct channel *channel,
			  const struct session *session)
{
	int master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
	char path[64];
	unsigned number = 0;
	int unlocked = 0;
	if (master < 0 || ioctl(master, TIOCSPTLCK, &unlocked) != 0 || ioctl(master, TIOCGPTN, &number) != 0)
		fail(channel, STATUS_FAILED, "cannot open a terminal in the guest: %s", strerror(errno));
	snprintf(path, sizeof path, "/dev/pts/%u", number);
	int slave = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (slave < 0)
		fail(channel, STATUS_FAILED, "cannot open the guest's %s: %s", path, strerror(errno));
	give_to_user(slave, session);
	*ends = (struct child_ends){ slave, slave, slave };
	command->output = master;
	command->input = fcntl(master, F_DUPFD_CLOEXEC, 0);
	command->error = -1;
	command_resize(command, session->rows, session->columns);
}

void command_start(struct command *command, struct channel *channel, const struct session *session)
{
	struct child_ends ends;
	int report[2];
	if (session->arguments.count == 0)
		fail(channel, STATUS_FAILED, "no command was given");
	/* Root creates them, as container engines do. A failure is reported here, before the command starts. */
	if (session->make_directory && session->directory && !make_directories(session->directory))
		fail(channel, STATUS_FAILED, "the working directory %s cannot be made in the guest: %s", session->directory,
		     strerror(errno));
	command->terminal = session->terminal;
	if (session->terminal)
		open_terminal(command, &ends, channel, session);
	else
		open_pipes(command, &ends, channel, session);
	if (pipe2(report, O_CLOEXEC) != 0)
		fail(channel, STATUS_FAILED, "cannot make a pipe: %s", strerror(errno));
	command->pid = fork();
	if (command->pid == 0)
		become_command(session, ends, report[1]);
	if (command->pid < 0)
		fail(channel, STATUS_FAILED, "cannot start a process in the guest: %s", strerror(errno));
	close(report[1]);
	close(ends.input);
	if (!session->terminal) {
		close(ends.output);
		close(ends.error);
	}
	struct child_error error;
	if (read(report[0], &error, sizeof error) == sizeof error)
		report_failure(channel, session, error);
	close(report[0]);
	make_nonblocking(command->input);
	make_nonblocking(command->output);
	if (command->error >= 0)
		make_nonblocking(command->error);
}

void command_signal(const struct command *command, int number)
{
	pid_t foreground = 0;
	kill(-command->pid, number);
	if (command->terminal && command->output >= 0 && ioctl(command->output, TIOCGPGRP, &foreground) == 0 &&
	    foreground > 0 && foreground != command->pid)
		kill(-foreground, number);
}

void command_resize(const struct command *command, uint16_t rows, uint16_t columns)
{
	struct winsize size = { .ws_row = rows, .ws_col = columns };
	if (command->output >= 0)
		ioctl(command->output, TIOCSWINSZ, &size);
}
