#include "user.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "report.h"

#define GROUPS_MAX 65536
/* The most bytes of /etc/passwd or /etc/group. */
#define DATABASE_MAX (64 << 20)
/* The most bytes of a line, including its end: a group of tens of thousands fits. */
#define LINE_MOST (1 << 20)
/* Not a valid user or group number: it means "no change" to chown(2). */
#define NO_ID UINT32_MAX

struct user {
	const char *name, *directory, *shell;
	uint32_t uid, gid;
};

/* The lines of an /etc/passwd or /etc/group. fgetpwent(3) is unsuitable for hostile files: it rescans a long line
 * for every few bytes that it reads. */
struct database {
	FILE *file; /* NULL: no lines */
	size_t left; /* bytes that may still be read: the file may grow meanwhile */
	char line[LINE_MOST];
};

static struct database users, groups;

/* The root may be hostile: a pipe or a device in place of the file would block us for ever. */
static void database_open(struct database *database, const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct stat status;
	database->file = NULL;
	database->left = DATABASE_MAX;
	if (fd < 0)
		return;
	if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size <= DATABASE_MAX)
		database->file = fdopen(fd, "r");
	if (!database->file)
		close(fd);
}

static void database_close(struct database *database)
{
	if (database->file)
		fclose(database->file);
	database->file = NULL;
}

/* Reads the next line, without its end; skips lines that are too long or contain a NUL. Scans every byte once. */
static bool database_next(struct database *database)
{
	size_t length = 0;
	int byte = 0;
	while (database->file && database->left > 0 && (byte = getc_unlocked(database->file)) != EOF) {
		database->left--;
		if (byte == '\n' && length < LINE_MOST) {
			database->line[length] = 0;
			return true;
		}
		if (byte == '\n')
			length = 0;
		else if (byte == 0)
			length = LINE_MOST;
		else if (length < LINE_MOST)
			database->line[length++] = (char)byte;
	}
	if (byte != EOF || length == 0 || length == LINE_MOST)
		return false;
	/* The last line has no line end. */
	database->line[length] = 0;
	return true;
}

/* Cuts a line at its colons; false if it has fewer than `count` fields. The last field has the rest. */
static bool cut_fields(char *line, char **fields, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (!line)
			return false;
		fields[i] = line;
		line = i + 1 < count ? strchr(line, ':') : NULL;
		if (line)
			*line++ = 0;
	}
	return true;
}

/* Whether the text is a valid user or group number. */
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

/* Finds a user by name, or by uid if `name` is NULL. */
static bool find_user(const char *name, uint32_t uid, struct user *user)
{
	enum { NAME, PASSWORD, UID, GID, COMMENT, DIRECTORY, SHELL, FIELDS };
	char *fields[FIELDS];
	bool found = false;
	database_open(&users, "/etc/passwd");
	while (!found && database_next(&users))
		found = cut_fields(users.line, fields, FIELDS) && parse_id(fields[UID], &user->uid) &&
			parse_id(fields[GID], &user->gid) &&
			(name ? strcmp(fields[NAME], name) == 0 : user->uid == uid);
	database_close(&users);
	if (found) {
		user->name = fields[NAME];
		user->directory = fields[DIRECTORY];
		user->shell = fields[SHELL];
	}
	return found;
}

struct group_entry {
	const char *name;
	char *members; /* with commas between them */
	uint32_t gid;
};

/* Reads the next group; skips invalid lines. */
static bool next_group(struct group_entry *group)
{
	enum { NAME, PASSWORD, GID, MEMBERS, FIELDS };
	char *fields[FIELDS];
	while (database_next(&groups)) {
		if (!cut_fields(groups.line, fields, FIELDS) || !parse_id(fields[GID], &group->gid))
			continue;
		group->name = fields[NAME];
		group->members = fields[MEMBERS];
		return true;
	}
	return false;
}

/* Finds a group by name. */
static bool find_group(const char *name, uint32_t *gid)
{
	struct group_entry group;
	bool found = false;
	database_open(&groups, "/etc/group");
	while (!found && next_group(&group))
		found = strcmp(group.name, name) == 0;
	database_close(&groups);
	if (found)
		*gid = group.gid;
	return found;
}

static bool has_member(char *members, const char *name)
{
	const char *member;
	while ((member = strsep(&members, ",")))
		if (strcmp(member, name) == 0)
			return true;
	return false;
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
	struct group_entry group;
	database_open(&groups, "/etc/group");
	while (session->group_count < GROUPS_MAX && next_group(&group))
		if (has_member(group.members, name))
			add_group(session, group.gid);
	database_close(&groups);
}

/* Resolves USER[:GROUP] like Docker: a number need not be listed; with an explicit group the user is in no other
 * group. Returns whether the user has an entry. */
static bool resolve_name(struct channel *channel, struct session *session, struct user *user)
{
	char *name = session->user_name, *group = strchr(name, ':');
	if (group)
		*group++ = 0;
	bool is_number = parse_id(name, &session->uid);
	bool found = find_user(is_number ? NULL : name, session->uid, user);
	if (!found && !is_number)
		fail(channel, STATUS_FAILED, "the guest's /etc/passwd has no user '%s'", name);
	if (found)
		session->uid = user->uid;
	session->gid = found ? user->gid : 0;
	bool has_group = group && *group;
	if (has_group && !parse_id(group, &session->gid) && !find_group(group, &session->gid))
		fail(channel, STATUS_FAILED, "the guest's /etc/group has no group '%s'", group);
	/* The user's own group is also a supplementary one, as after initgroups(3). */
	add_group(session, session->gid);
	if (found && !has_group)
		add_groups_of(session, user->name);
	return found;
}

void user_resolve(struct channel *channel, struct session *session)
{
	struct user user;
	bool found = session->user_name ? resolve_name(channel, session, &user) : find_user(NULL, session->uid, &user);
	bool root = session->uid == 0;
	environment_default(&session->environment, "HOME", found ? user.directory : root ? "/root" : "/");
	environment_default(&session->environment, "SHELL", found && user.shell[0] ? user.shell : "/bin/sh");
	if (found) {
		environment_default(&session->environment, "USER", user.name);
		environment_default(&session->environment, "LOGNAME", user.name);
	}
	environment_default(&session->environment, "PATH",
			    root ? "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
				 : "/usr/local/bin:/usr/bin:/bin");
}
