#include "user.h"

#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "report.h"

#define GROUPS_MAX 65536
/* Bytes of /etc/passwd or /etc/group, at most. */
#define DATABASE_MAX (64 << 20)
/* No user and no group has this number: it stands for none in chown(2). */
#define NO_ID UINT32_MAX

/* The root may be anybody's: a pipe or a device in the place of the file would hold us up for ever. */
static FILE *open_database(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct stat status;
	if (fd < 0)
		return NULL;
	FILE *file = NULL;
	if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size <= DATABASE_MAX)
		file = fdopen(fd, "r");
	if (!file)
		close(fd);
	return file;
}

/* Whether the text is a number that can be a user's or group's. */
static bool parse_id(const char *text, uint32_t *id)
{
	uint64_t number = 0;
	if (!*text)
		return false;
	for (; *text; text++) {
		if (*text < '0' || *text > '9')
			return false;
		number = number * 10 + (uint64_t)(*text - '0');
		if (number >= NO_ID)
			return false;
	}
	*id = (uint32_t)number;
	return true;
}

/* Finds a user by name, or by uid when `name` is NULL. The result lives until the next call. */
static const struct passwd *find_user(const char *name, uint32_t uid)
{
	FILE *file = open_database("/etc/passwd");
	const struct passwd *entry = NULL;
	while (file && (entry = fgetpwent(file)))
		if (name ? strcmp(entry->pw_name, name) == 0 : entry->pw_uid == uid)
			break;
	if (file)
		fclose(file);
	return entry;
}

/* Finds a group by name. */
static bool find_group(const char *name, uint32_t *gid)
{
	FILE *file = open_database("/etc/group");
	const struct group *entry = NULL;
	while (file && (entry = fgetgrent(file)))
		if (strcmp(entry->gr_name, name) == 0)
			break;
	if (entry)
		*gid = entry->gr_gid;
	if (file)
		fclose(file);
	return entry != NULL;
}

static void add_group(struct session *session, gid_t group)
{
	gid_t *groups = realloc(session->groups, (session->group_count + 1) * sizeof *groups);
	if (!groups)
		return;
	session->groups = groups;
	groups[session->group_count++] = group;
}

static void add_groups_of(struct session *session, const char *name)
{
	FILE *file = open_database("/etc/group");
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

/* Settles who USER[:GROUP] is, as Docker does it: a number need not be known; with a group of its own the user is in no
 * other. Returns the user's entry, if there is one. */
static const struct passwd *resolve_name(struct channel *channel, struct session *session)
{
	char *name = session->user_name, *group = strchr(name, ':');
	if (group)
		*group++ = 0;
	bool is_number = parse_id(name, &session->uid);
	const struct passwd *user = find_user(is_number ? NULL : name, session->uid);
	if (!user && !is_number)
		fail(channel, STATUS_FAILED, "the guest's /etc/passwd has no user '%s'", name);
	if (user)
		session->uid = user->pw_uid;
	session->gid = user ? user->pw_gid : 0;
	bool has_group = group && *group;
	if (has_group && !parse_id(group, &session->gid) && !find_group(group, &session->gid))
		fail(channel, STATUS_FAILED, "the guest's /etc/group has no group '%s'", group);
	/* The user's own group is among the supplementary ones, as after initgroups(3). */
	add_group(session, session->gid);
	if (user && !has_group)
		add_groups_of(session, user->pw_name);
	return user;
}

void user_resolve(struct channel *channel, struct session *session)
{
	const struct passwd *user =
		session->user_name ? resolve_name(channel, session) : find_user(NULL, session->uid);
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
