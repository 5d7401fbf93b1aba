#include "user.h"

#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"

#define GROUPS_MAX 65536

/* Finds a user by name, or by uid when `name` is NULL. The result lives until the next call. */
static const struct passwd *find_user(const char *name, uint32_t uid)
{
	FILE *file = fopen("/etc/passwd", "re");
	const struct passwd *entry = NULL;
	while (file && (entry = fgetpwent(file)))
		if (name ? strcmp(entry->pw_name, name) == 0 : entry->pw_uid == uid)
			break;
	if (file)
		fclose(file);
	return entry;
}

static void add_group(struct session *session, gid_t group)
{
	gid_t *groups = realloc(session->groups, (session->group_count + 1) * sizeof *groups);
	if (!groups)
		return;
	session->groups = groups;
	groups[session->group_count++] = group;
}

/* The user's own group is among the supplementary ones, as after initgroups(3). */
static void add_groups_of(struct session *session, const char *name)
{
	add_group(session, session->gid);
	FILE *file = fopen("/etc/group", "re");
	const struct group *entry;
	while (file && session->group_count < GROUPS_MAX && (entry = fgetgrent(file))) {
		for (char **member = entry->gr_mem; member && *member; member++) {
			if (strcmp(*member, name) != 0)
				continue;
			add_group(session, entry->gr_gid);
			break;
		}
	}
	if (file)
		fclose(file);
}

void user_resolve(struct channel *channel, struct session *session)
{
	const struct passwd *user = find_user(session->user_name, session->uid);
	if (session->user_name) {
		if (!user)
			fail(channel, STATUS_FAILED, "the guest's /etc/passwd has no user '%s'", session->user_name);
		session->uid = user->pw_uid;
		session->gid = NO_ID;
	}
	if (session->user_name || (session->has_user_ids && session->gid == NO_ID)) {
		session->gid = user ? user->pw_gid : 0;
		if (user) {
			char *name = strdup(user->pw_name);
			add_groups_of(session, name ? name : "");
			free(name);
		}
	}
	bool root = session->uid == 0;
	environment_default(&session->environment, "HOME", user && user->pw_dir ? user->pw_dir : root ? "/root" : "/");
	environment_default(&session->environment, "SHELL", user && user->pw_shell && user->pw_shell[0] ? user->pw_shell : "/bin/sh");
	if (user) {
		environment_default(&session->environment, "USER", user->pw_name);
		environment_default(&session->environment, "LOGNAME", user->pw_name);
	}
	environment_default(&session->environment, "PATH",
			    root ? "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
				 : "/usr/local/bin:/usr/bin:/bin");
}
