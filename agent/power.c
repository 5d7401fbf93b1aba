#include "power.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"

#define MOUNTS_MAX 256

/* Gives processes half a second after SIGTERM, then kills them. */
static void end_processes(void)
{
	kill(-1, SIGTERM);
	for (int i = 0; i < 50; i++) {
		pid_t pid = waitpid(-1, NULL, WNOHANG);
		if (pid < 0)
			return;
		if (pid == 0)
			sleep_milliseconds(10);
	}
	kill(-1, SIGKILL);
	while (waitpid(-1, NULL, 0) > 0)
		;
}

/* Decodes the escapes for blank characters in /proc/mounts (\040 and the like), in place. */
static void unescape(char *path)
{
	char *to = path;
	for (const char *from = path; *from; to++) {
		if (from[0] == '\\' && from[1] && from[2] && from[3]) {
			*to = (char)((from[1] - '0') * 64 + (from[2] - '0') * 8 + (from[3] - '0'));
			from += 4;
		} else {
			*to = *from++;
		}
	}
	*to = 0;
}

void unmount_all(void)
{
	static char *targets[MOUNTS_MAX];
	size_t count = 0;
	end_processes();
	FILE *mounts = fopen("/proc/self/mounts", "re");
	char *line = NULL;
	size_t capacity = 0;
	while (mounts && count < MOUNTS_MAX && getline(&line, &capacity, mounts) > 0) {
		char *target = strchr(line, ' ');
		char *end = target ? strchr(target + 1, ' ') : NULL;
		if (!end)
			continue;
		*end = 0;
		unescape(target + 1);
		targets[count++] = strdup(target + 1);
	}
	if (mounts)
		fclose(mounts);
	chdir("/");
	sync();
	/* The latest mount first, so that nested mounts go before their parents. A busy mount (the root always is)
	 * becomes read-only, which writes its journal and marks it clean. */
	while (count-- > 0)
		if (targets[count] && umount2(targets[count], 0) != 0)
			mount(NULL, targets[count], NULL, MS_REMOUNT | MS_RDONLY, NULL);
}

void power_off(void)
{
	if (getpid() != 1)
		_exit(0);
	reboot(RB_POWER_OFF);
	/* The machine cannot switch itself off: a reboot ends it, by QEMU's -no-reboot. */
	reboot(RB_AUTOBOOT);
	for (;;)
		pause();
}
