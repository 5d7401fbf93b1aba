#include "processes.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "files.h"

bool session_is_busy(pid_t session)
{
	DIR *processes = opendir("/proc");
	struct dirent *entry;
	bool busy = false;
	while (processes && !busy && (entry = readdir(processes))) {
		char path[512], line[512], state;
		int of;
		snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
		if (!isdigit((unsigned char)entry->d_name[0]) || !read_line(path, line, sizeof line))
			continue;
		/* proc_pid_stat(5): a name in parentheses, which may contain anything; state, parent, group, session. */
		const char *rest = strrchr(line, ')');
		busy = rest && sscanf(rest, ") %c %*d %*d %d", &state, &of) == 2 && of == session &&
		       (state == 'R' || state == 'D');
	}
	if (processes)
		closedir(processes);
	return busy;
}
